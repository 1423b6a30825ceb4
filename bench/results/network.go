package results

import (
	"fmt"
	"io"
)

// The ways of bench/network, in place of a cluster. VXLAN and HostGW are also the names of the backends.
const (
	BareVeth   = "bare veth"
	NodeToNode = "node to node"
	SameNode   = "same node"
	VXLAN      = "vxlan"
	HostGW     = "host-gw"
	// ByService is added to a way when it leads by a Service.
	ByService = ", by Service"
	// The way between two pods of a node, by the number of network policies.
	NoPolicies       = "no network policy"
	TenPolicies      = "10 network policies"
	ThousandPolicies = "1,000 network policies"
	// Agent is what an agent costs.
	Agent = "agent"
)

// Metrics of bench/network.
const (
	Throughput   = "one TCP stream (Gbit/s)"
	RoundTrip    = "round trip of one byte, median (µs)"
	RoundTripP99 = "round trip of one byte, p99 (µs)"
	Connect      = "connect and one round trip, median (µs)"

	AgentReady  = "`kubelith agent` to node Ready, first join (s)"
	AgentMemory = "anonymous memory of an agent, idle with 10 pods (MB)"
	AgentCPU    = "CPU of an agent, idle with 10 pods (% of a core)"
)

// NetworkTable writes the markdown of docs/performance.md about the network and agents.
func NetworkTable(w io.Writer, s *Store) {
	figures := []string{Throughput, RoundTrip, RoundTripP99, Connect}
	fmt.Fprint(w, "| way |")
	for _, f := range figures {
		fmt.Fprintf(w, " %s |", f)
	}
	fmt.Fprint(w, " throughput to bare veth |\n|---|---|---|---|---|---|\n")
	bare := s.Values(BareVeth, Throughput)
	for _, way := range []string{
		BareVeth, NodeToNode, SameNode, SameNode + ByService, VXLAN, VXLAN + ByService, HostGW, HostGW + ByService,
	} {
		if s.Rounds("network", way) == 0 {
			continue
		}
		fmt.Fprintf(w, "| %s |", way)
		for _, f := range figures {
			fmt.Fprintf(w, " %s |", cell(s.Values(way, f)))
		}
		fmt.Fprintf(w, " %s |\n", ratio(s.Values(way, Throughput), bare))
	}
	policiesTable(w, s)
	fmt.Fprint(w, "\n| metric | agent | goal | met |\n|---|---|---|---|\n")
	for _, r := range []row{{AgentReady, 0}, {AgentMemory, 150}, {AgentCPU, 1}} {
		v := s.Values(Agent, r.figure)
		if len(v) == 0 {
			continue
		}
		goal, met := "", ""
		if r.goal > 0 {
			goal, met = fmt.Sprintf("<= %g", r.goal), verdict(Median(v) <= r.goal, true)
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", r.figure, cell(v), goal, met)
	}
	fmt.Fprintf(w, "\nMedians of %d rounds (agents: %d).\n", s.Rounds("network", VXLAN), s.Rounds("agent", Agent))
}

// policiesTable compares the path between two pods with and without network policies, by ratio; the goal is 1.03.
func policiesTable(w io.Writer, s *Store) {
	figures := []string{Throughput, RoundTrip, Connect}
	fmt.Fprint(w, "\n| way |")
	for _, f := range figures {
		fmt.Fprintf(w, " %s | to none |", f)
	}
	fmt.Fprint(w, "\n|---|---|---|---|---|---|---|\n")
	for _, way := range []string{NoPolicies, TenPolicies, ThousandPolicies} {
		fmt.Fprintf(w, "| %s |", way)
		for _, f := range figures {
			fmt.Fprintf(w, " %s | %s |", cell(s.Values(way, f)), ratio(s.Values(way, f), s.Values(NoPolicies, f)))
		}
		fmt.Fprintln(w)
	}
}
