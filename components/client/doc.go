// Package client is the in-process client of the apiserver: an
// http.RoundTripper that hands each request to the apiserver's own handler in
// memory, without a socket, TLS or a token.
//
// One InProcess exists per process. The apiserver component opens it with its
// outermost handler (InProcess.Open); everyone else asks it for a rest.Config
// that carries an identity (InProcess.Config). The whole filter chain
// (authentication, audit, flow control, authorization, admission) runs for such
// a request as it does for one that came through the TLS port.
//
// The identity travels in the request's context under a key that only this
// package knows; InProcess.AuthenticateRequest reads it back inside the chain.
// No header and no token can forge it: the contexts of requests from the
// network are made by net/http and never hold that key.
//
// The package does not know what the apiserver is made of, and it has no
// client for agents on other machines.
package client
