// Package requests measures what a request to the apiserver costs in CPU, client included: through the
// in-process transport and over TLS, to the same apiserver with the same etcd in the same process. Its
// benchmarks are in requests_test.go; `make bench` runs them.
package requests
