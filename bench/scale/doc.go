// Package scale measures one server with many nodes and pods that kwok plays: it keeps their objects as kubelets would, and runs
// nothing. `make bench-scale` runs it; without BENCH_RESULTS it does nothing.
//
// A run has four stages, one after the other: the server alone; its hollow nodes; pods of ten Deployments being made; nodes and pods with
// nothing to do. In each, memory and CPU are those of the server's process, and a client over TLS reads and
// updates a ConfigMap and lists 500 pods all the time. kwok, the client and the server share the machine.
//
// Variables, which bench.mk sets: BENCH_RESULTS (file of samples), BENCH_BUILD (what they are samples of), KWOK (directory of the
// program and its stages), SCALE_NODES, SCALE_PODS, IDLE_SECONDS.
package scale
