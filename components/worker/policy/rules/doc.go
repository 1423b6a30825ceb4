// Package rules turns network policies into tables that a packet filter looks up: pure functions, which know no kernel
// and no API server.
//
// For each direction, the pods of this node that are selected by the same policies form a class. A class decides about
// a connection by its peer, protocol and port:
//
//   - Tier: the rules of all policies of one pod and direction, in the order in which they count (tiers.go).
//   - Decision: what the tiers decide about one peer, for each protocol and port (decision.go).
//   - Class: the decisions of all peers, as few entries as possible: of addresses in general, and of those pods that are
//     decided otherwise (class.go, blocks.go).
//   - Compiler: follows objects of the API, and reports what changes (compiler.go).
//
// explain.go finds the rule that decides about one connection.
//
// Source of the semantics: the API documentation of networking.k8s.io/v1 NetworkPolicy, and of
// policy.networking.k8s.io.
package rules
