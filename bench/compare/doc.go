// Package compare measures Kubelith against the same upstream programs as separate processes, in
// interleaved rounds on one machine. It is a test binary because it uses the sandboxes of integration/harness (a
// network and a mount namespace and a cgroup root for each cluster); `make bench` runs it, and without
// BENCH_RESULTS it does nothing.
//
// Three clusters are compared (see bench/results for their names):
//
//   - kubelith: the executable as shipped.
//   - composition: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy, CoreDNS
//     and containerd, built from this module, over TLS, with Kubelith's settings: no leader election, no profiling,
//     limits for clients that nothing reaches, the runtime's seccomp profile by default, the same containerd
//     configuration, the same GOGC, pods connected in the same way. etcd has ticks of 20 ms, to elect itself soon.
//   - product: the same programs with upstream's defaults for all of those.
//
// What cannot be the same, and for whom that is better, is in docs/performance.md.
//
// Both kinds of peers get their certificates and kubeconfigs beforehand, and all programs are started at
// once and started again when they end, as a service manager does. They run the same images as Kubelith,
// upstream's runc of the same version, containerd's shim and upstream's CNI programs.
//
// A round of kind "pods" is: cold start, first pod, one pod three times, 50 pods, delete all, stop, warm start. A round
// of kind "idle" is: cold start, 10 pods, then nothing for IDLE_SECONDS. The floor is 50 pods made of the shim, runc
// and the CNI programs without containerd and Kubernetes (floor_test.go).
//
// TestScale (`make bench-scale`) measures each cluster with many nodes and pods that kwok plays: it keeps their objects
// as kubelets would, and runs nothing. It has four stages, one after the other: the cluster alone; its hollow nodes;
// pods of ten Deployments being created; nodes and pods with nothing to do. In each, memory and CPU are those of all
// processes but kwok; a client over TLS reads, updates and watches a ConfigMap and lists 500 pods all the time; and the
// apiserver's own histogram shows how long all requests took, those of kwok and of the controllers included. kwok, the
// client and the cluster share the machine. A stage that does not get ready within ten minutes is reported with how far
// it came, and measured all the same.
//
// Variables, which bench.mk sets: BENCH_RESULTS (file of samples), BENCH_BUILD (what they are samples of), BENCH_PEERS
// (directory of the peers' programs), ROUNDS, IDLE_ROUNDS, IDLE_SECONDS, PEER_GOGC (GOGC of the composition),
// PEER_START=ordered (start the clients of the apiserver when it is ready, instead of all at once), KWOK (directory of
// the program and its stages), SCALE_NODES, SCALE_PODS. For working on the benchmark itself: BENCH_ONLY (clusters to
// measure, separated by commas) and BENCH_LOGS (directory for the logs of what failed).
package compare
