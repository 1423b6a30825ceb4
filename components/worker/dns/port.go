package dns

import (
	"context"
	"fmt"
	"os/exec"

	"sigs.k8s.io/knftables"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/netevents"
	"kubelith.io/kubelith/base/nft"
)

// keepPort keeps the port of DNS for root until ctx ends, and after it: see reservePort.
func (s *Server) keepPort(ctx context.Context) {
	if _, err := exec.LookPath("nft"); err != nil {
		s.opts.Log.Warn("nft not found, so any user of this host can answer the DNS of pods while Kubelith is stopped: install nftables")
		return
	}
	netevents.Keep(ctx, names.DNSTable, "the rule that keeps the port of DNS for root", s.opts.Log, reservePort)
}

// reservePort drops what other users than root send from the port of DNS. Any user may listen at such a high port, and
// pods would believe the answers. The rule stays when Kubelith stops, since only then the port is free.
func reservePort(ctx context.Context) error {
	table, err := nft.Open(knftables.InetFamily, names.DNSTable)
	if err != nil {
		return err
	}
	chain := &knftables.Chain{
		Name: "output", Type: knftables.PtrTo(knftables.FilterType), Hook: knftables.PtrTo(knftables.OutputHook),
		Priority: knftables.PtrTo(knftables.FilterPriority),
	}
	tx := table.NewTransaction()
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("Kubelith: only root answers DNS of pods")})
	tx.Add(chain)
	tx.Flush(chain)
	tx.Add(&knftables.Rule{
		Chain: chain.Name,
		Rule:  fmt.Sprintf("meta l4proto { tcp, udp } th sport %d meta skuid != 0 drop", names.DNSPort),
	})
	return table.Run(ctx, tx)
}
