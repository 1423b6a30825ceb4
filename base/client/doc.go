// Package client is the in-process client of the apiserver: an http.RoundTripper that hands each request to the
// apiserver's own handler in memory, without a socket, TLS or a token.
//
// One InProcess exists per process. The apiserver component opens it with its outermost handler (InProcess.Open); every
// other component asks it for a rest.Config that carries an identity (InProcess.Config). Such a request runs through
// the whole filter chain (authentication, audit, flow control, authorization, admission), like one that arrives at the
// TLS port.
//
// The identity travels in the request's context under a key that only this package knows; InProcess.AuthenticateRequest
// reads it back inside the chain. No header and no token can forge it: net/http creates the contexts of requests from
// the network, and they never hold that key.
//
// Components that would have hundreds of writes at once have a few (Paced; docs/adr/064-concurrent-writes.md).
//
// While etcd has no leader, the requests of informers wait instead of failing (InProcess.AwaitStorage;
// docs/adr/061-back-after-a-cut.md).
//
// The package does not know how the apiserver is composed, and has no client for agents on other machines.
package client
