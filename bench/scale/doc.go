// Package scale measures one server with many nodes and pods that kwok plays: it keeps their objects as kubelets would, and runs
// nothing. `make bench-scale` runs it; without BENCH_RESULTS it does nothing.
//
// A run has four stages, one after the other: the server alone; its hollow nodes; pods of ten Deployments being made; nodes and pods with
// nothing to do. In each, memory and CPU are those of the server's process; a client over TLS reads, updates and watches a
// ConfigMap and lists 500 pods all the time; and the server's own histogram says how long all requests took, those of kwok and of its
// controllers included. kwok, the client and the server share the machine. A stage that does not get ready within ten minutes is
// reported with how far it came, and measured all the same.
//
// metrics-server is off: hollow nodes have no figures, and asking them would measure only how a connection is refused.
//
// Variables, which bench.mk sets: BENCH_RESULTS (file of samples), BENCH_BUILD (what they are samples of), KWOK (directory of the
// program and its stages), SCALE_NODES, SCALE_PODS, IDLE_SECONDS.
package scale
