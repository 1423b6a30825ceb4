package node

import (
	"context"
	"encoding/json"
	"net/netip"
	"net/url"
	"os"
	"time"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/components/controlplane/servers"
	"kubelith.io/kubelith/components/controlplane/vip"
	"kubelith.io/kubelith/host/preflight"
)

// virtualAddress returns the address that this server carries when its turn comes; the zero Addr while there is none.
func (h *machine) virtualAddress(cfg *config.Server) netip.Addr {
	h.certificates.mu.Lock()
	defer h.certificates.mu.Unlock()
	if h.certificates.vip.IsValid() {
		return h.certificates.vip
	}
	return cfg.VirtualAddress()
}

// virtualAddress returns the component that carries the virtual address.
func virtualAddress(p *plane, alone func() bool, slowSync func() time.Duration) *vip.Server {
	log := p.logFor("vip")
	api, _ := url.Parse(p.cfg.URL()) // our own, valid
	return vip.New(vip.Options{
		NodeName: p.cfg.NodeName,
		Address:  p.cfg.VirtualAddress(),
		Follow:   p.cfg.VIPAdopted,
		Client:   p.clients.Config(client.Election),
		Alone:    alone,
		SlowSync: slowSync,
		Certify: func(address netip.Addr) error {
			changed, err := p.machine.certify(p.cfg, address)
			for _, name := range changed {
				log.Infof("renewed %s", name)
			}
			return err
		},
		API: api.Host,
		Log: log,
	})
}

// checkVirtualAddress refuses an address that this machine was given and cannot carry, and of a server without others
// one that another machine has.
func checkVirtualAddress(ctx context.Context, cfg *config.Server, others *membership) error {
	address := cfg.VirtualAddress()
	if !address.IsValid() || cfg.VIPAdopted {
		return nil
	}
	return vip.Check(ctx, address, others.stored == nil && others.newcomer == nil)
}

// virtualAddressResults reports whether this machine can carry the virtual address that it was given; nothing without
// one. Without root it checks nothing; the missing root is a separate line.
func virtualAddressResults(ctx context.Context, cfg *config.Server) []preflight.Result {
	stored, err := servers.Load(cfg.DataDir)
	if !cfg.VirtualAddress().IsValid() || cfg.VIPAdopted || err != nil || os.Geteuid() != 0 {
		return nil
	}
	const name = "virtual address"
	if err := vip.Check(ctx, cfg.VirtualAddress(), stored == nil && cfg.Server == ""); err != nil {
		return []preflight.Result{{Name: name, Status: preflight.Fail, Message: err.Error()}}
	}
	return []preflight.Result{{Name: name, Status: preflight.OK, Message: cfg.VIP}}
}

// sameVirtualAddress refuses another address than that of the cluster that this server joins.
func sameVirtualAddress(cfg *config.Server, settings json.RawMessage) error {
	cluster, err := config.ParseClusterInfo(settings)
	if err != nil {
		return err
	}
	return cfg.SameVIP(cluster)
}
