package preflight

import (
	"fmt"
	"strings"
)

// checkForwarding warns of a packet filter that drops forwarded packets by default, as Docker and firewalls configure
// it: pods then cannot reach other nodes or networks, unless the filter has rules for them.
func checkForwarding(p probe) Result {
	const name = "forwarding"
	if chain := droppingChain(p); chain != "" {
		return Result{name, Warn, fmt.Sprintf("the packet filter drops forwarded packets that no rule accepts (%s)", chain),
			"accept packets from and to the interface cni0"}
	}
	return Result{Name: name, Status: OK, Message: "no packet filter drops forwarded packets by default"}
}

// droppingChain names the first base chain at the hook forward whose policy is drop. nftables has the rules of
// iptables-nft too; only the older iptables lists its own, and doing so loads its modules: it is called only where they
// are in use.
func droppingChain(p probe) string {
	if chain := p.drops(); chain != "" {
		return "nftables: " + chain
	}
	for family, program := range map[string]string{"ip": "iptables-legacy", "ip6": "ip6tables-legacy"} {
		if !strings.Contains(" "+strings.ReplaceAll(p.files.Text("/proc/net/"+family+"_tables_names"), "\n", " ")+" ", " filter ") {
			continue
		}
		if path, err := p.look(program); err == nil {
			if text, err := p.run("", path, "-S", "FORWARD"); err == nil && strings.Contains(text, "-P FORWARD DROP") {
				return program + ": chain FORWARD"
			}
		}
	}
	return ""
}
