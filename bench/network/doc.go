// Package network measures what the path between two pods costs, and what an agent costs. Like bench/compare it is a
// test binary, because it uses the sandboxes of integration/harness; `make bench-network` runs it, and without
// BENCH_RESULTS it does nothing.
//
// For each backend there is a cluster of a server and two agents, whose nodes are network namespaces joined by veth
// pairs and a bridge. TCP goes from a pod of the first agent to a pod of the same and of the second one, straight and
// by a Service; between the two nodes themselves; and over one veth pair between two namespaces that nothing else is
// in. Everything is on one host: the results compare paths; they are not those of a network card.
//
// An agent round joins one more agent to a server, runs ten pods on it, and then leaves it alone for IDLE_SECONDS.
//
// TestEnforcers runs other programs that enforce network policies in place of Kubelith, and logs the same of each:
// costs, how soon a change holds, what a pod's first instruction reaches, and what passes while the program is dead.
// They are given in BENCH_ENFORCERS.
//
// Variables, which bench.mk sets: BENCH_RESULTS (file of samples), BENCH_BUILD (what they are samples of), ROUNDS,
// IDLE_SECONDS.
package network
