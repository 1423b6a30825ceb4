package node

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"

	"github.com/sirupsen/logrus"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/jointoken"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/components/node/noproxy"
	"kubelith.io/kubelith/components/node/progress"
	"kubelith.io/kubelith/components/worker/upgrader"
)

// Serve runs a server until ctx is cancelled or a component fails. release is the version of Kubelith, noted in the
// data directory.
func Serve(ctx context.Context, cfg *config.Server, release string, out Output) error {
	if cfg.Witness {
		return serveWitness(ctx, cfg, release, out)
	}
	p, err := newProcess(ctx, &cfg.Node, out)
	if err != nil {
		return err
	}
	defer p.out.Close()
	prepared := p.awaitStep(ctx, "preparation (writing programs, keys and certificates)")
	defer prepared()
	others, err := findServers(ctx, cfg, logging.Component(p.log, "servers"))
	if err != nil {
		return err
	}
	if err := noproxy.Set(&cfg.Node, cfg.ClusterInfo("", ""), cfg.URL()); err != nil {
		return err
	}
	machine, err := prepare(ctx, cfg, others, release)
	if err != nil {
		return err
	}
	defer machine.Close()

	components, err := server(cfg, machine, p.log)
	if err != nil {
		return err
	}
	// A server cannot work without storage, the API and the node. A start that lacks another component is still
	// complete: systemd must not end etcd and the API for it.
	needed := only(components, "etcd", "apiserver", "kubelet")
	goal := progress.Goal{Role: names.RoleServer, Needed: needed, Reached: "kubeconfig: " + cfg.WriteKubeconfig,
		Next: func() string { return joinHint(cfg) }}
	if err := p.breakLoops(&cfg.Node); err != nil {
		return err
	}
	p.follow(&cfg.Node, cfg.ClusterCIDR)
	if err := exportCertificates(&cfg.Node); err != nil {
		return err
	}
	prepared()
	return p.run(ctx, machine, components, goal)
}

// server builds all components of a server. It touches nothing on the host.
func server(cfg *config.Server, machine *machine, log *logrus.Logger) ([]lifecycle.Component, error) {
	var b builder
	p := controlPlane(&b, cfg, machine, log)
	cluster(&b, p)
	worker(&b, workerOptions{
		cfg:      &cfg.Node,
		machine:  machine,
		log:      log,
		role:     names.RoleServer,
		apiNames: cfg.APINames(),
		cluster:  cfg.ClusterInfo("", ""), // without its versions, which are not needed here
		client:   p.workerClient,
		plugins:  p.plugins,
		clientCA: machine.pki.ClusterTrust,
		serving:  machine.pki.KubeletServer,
		publish:  p.api.Informers,
		fetch:    upgrader.FromServers(p.clients.Config(client.Servers), p.identity),
	})
	return b.enabled(slices.Concat(cfg.Disable, p.elsewhere))
}

// tokenFile returns the file in which a server keeps a valid token.
func tokenFile(cfg *config.Server) string { return filepath.Join(cfg.DataDir, "server", "token") }

// joinURL returns the URL at which other machines reach the API: the virtual address, if this server has one.
func joinURL(cfg *config.Server) string {
	address := cfg.AdvertiseAddress
	if vip := cfg.VirtualAddress(); vip.IsValid() {
		address = vip.String()
	}
	return "https://" + net.JoinHostPort(address, fmt.Sprint(cfg.HTTPSPort))
}

// joinHint is shown to the user at the terminal.
func joinHint(cfg *config.Server) string {
	return fmt.Sprintf("to join a machine, create a token here:\n  %s\nthen run there, with that file:\n  %s\n",
		jointoken.MakeCommand, jointoken.Command(joinURL(cfg)))
}

// only returns those of the names that components have, in the order of the components.
func only(components []lifecycle.Component, names ...string) []string {
	return slices.DeleteFunc(namesOf(components), func(name string) bool { return !slices.Contains(names, name) })
}

func namesOf(components []lifecycle.Component) []string {
	all := make([]string, 0, len(components))
	for _, c := range components {
		all = append(all, c.Name())
	}
	return all
}
