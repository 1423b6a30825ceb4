package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/sirupsen/logrus"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/components/controlplane/certificates"
	"kubelith.io/kubelith/components/controlplane/etcd"
	"kubelith.io/kubelith/components/controlplane/servers"
	"kubelith.io/kubelith/components/node/noproxy"
	"kubelith.io/kubelith/components/node/progress"
	"kubelith.io/kubelith/components/worker/join"
	componentstatus "kubelith.io/kubelith/components/worker/status"
	"kubelith.io/kubelith/host/preflight"
)

// serveWitness runs a witness: a member of the servers' etcd with a vote, and nothing else. It is ready when its etcd
// has all data and a vote.
func serveWitness(ctx context.Context, cfg *config.Server, release string, out Output) error {
	cfg.Disable = withoutNode()
	p, err := newProcess(ctx, &cfg.Node, out)
	if err != nil {
		return err
	}
	defer p.out.Close()
	prepared := p.awaitStep(ctx, "preparation (finding the servers)")
	defer prepared()
	others, err := findServers(ctx, cfg, logging.Component(p.log, "servers"))
	if err != nil {
		return err
	}
	if err := noproxy.Set(&cfg.Node, cfg.ClusterInfo("", ""), cfg.Server); err != nil {
		return err
	}
	machine, err := prepareWitness(ctx, cfg, others, release)
	if err != nil {
		return err
	}
	defer machine.Close()
	components, err := witness(cfg, machine, p.log)
	if err != nil {
		return err
	}
	if err := p.breakLoops(&cfg.Node); err != nil {
		return err
	}
	p.follow(&cfg.Node, cfg.ClusterCIDR)
	prepared()
	goal := progress.Goal{Role: roleWitness, Needed: []string{"etcd"}, Reached: "the cluster's witness " + cfg.NodeName}
	return p.run(ctx, machine, components, goal)
}

// roleWitness is shown to the user.
const roleWitness = "witness"

// withoutNode are the components of which a directory or a program would be prepared.
func withoutNode() []string { return []string{"containerd", "kubelet", "network", "proxy"} }

// witness builds the components of a witness. It touches nothing on the host.
func witness(cfg *config.Server, machine *machine, log *logrus.Logger) ([]lifecycle.Component, error) {
	var b builder
	logFor := func(component string) logrus.FieldLogger { return logging.Component(log, component) }
	b.add(certificates.New(certificates.Options{
		Renew: func() ([]string, error) {
			bundle, err := ensurePeer(cfg)
			if err != nil {
				return nil, err
			}
			return bundle.Changed, nil
		},
		Every: testedLife() / 20,
		Log:   logFor("certificates"),
	}))
	socket := cfg.EtcdSocket()
	store, err := etcd.New(etcd.Options{
		DataDir: filepath.Join(cfg.DataDir, datadir.Etcd),
		Socket:  socket,
		Name:    cfg.NodeName,
		Args:    machine.args.etcd,
		Peer:    machine.ofSeveral(cfg),
		Witness: true,
		Removed: func() { noteRemoval(cfg) },
		First:   func(context.Context) { logFor("servers").Info("this witness has all data, and a vote") },
		Zap:     logging.Zap(logging.Component(log, "etcd")),
	})
	b.add(store, err)
	if err == nil {
		b.add(servers.New(servers.Options{
			NodeName: cfg.NodeName,
			Etcd:     store,
			Socket:   socket,
			Peer:     machine.peer(cfg),
			DataDir:  cfg.DataDir,
			TLSDir:   tlsDir(cfg),
			Log:      logFor("servers"),
		}))
	}
	return b.enabled(nil)
}

// prepareWitness does everything that must be done before a component is built. A refused start leaves the machine as
// it was.
func prepareWitness(ctx context.Context, cfg *config.Server, others *membership, release string) (_ *machine, err error) {
	h := &machine{
		release:    release,
		status:     componentstatus.NewObserver(),
		ending:     make(chan struct{}),
		membership: others,
		args:       upstreamArgs{etcd: cfg.EtcdArgs},
	}
	if err := planWitness(cfg); err != nil {
		return nil, err
	}
	if err := datadir.CheckSettings(cfg.DataDir, fixedSettings(cfg)); err != nil {
		return nil, err
	}
	attempt := begin(&cfg.Node)
	defer func() {
		if err != nil {
			attempt.takeBack()
		}
	}()
	if err := h.settle(ctx, attempt, &cfg.Node, release, witnessCheckOptions(cfg)); err != nil {
		return nil, err
	}
	attempt.onRefusal(forget(filepath.Join(cfg.DataDir, "server")))
	attempt.making(tlsDir(cfg))
	attempt.onRefusal(forget(servers.File(cfg.DataDir)))
	if err := others.join(ctx, cfg); err != nil {
		return nil, err
	}
	if h.pki, err = ensurePeer(cfg); err != nil {
		return nil, err
	}
	return h, h.dir.KeepSettings(fixedSettings(cfg))
}

// planWitness builds the components once without credentials, to check their arguments.
func planWitness(cfg *config.Server) error {
	_, err := witness(cfg, &machine{pki: &pki.Bundle{}, args: upstreamArgs{etcd: cfg.EtcdArgs}}, silent())
	return err
}

// ensurePeer creates or renews the certificate of a witness' etcd.
func ensurePeer(cfg *config.Server) (*pki.Bundle, error) {
	return pki.EnsurePeer(pki.Options{
		Dir:      tlsDir(cfg),
		NodeName: cfg.NodeName,
		NodeIPs:  append(cfg.NodeIPs(), cfg.ExternalIPs()...),
		SANs:     slices.Concat(cfg.APIAddresses(), cfg.TLSSAN), // the others reach it at --advertise-address
		Life:     testedLife(),
	})
}

// findForWitness is findServers for a witness. It has no key to prove its identity with, so that it joins, or comes
// back when its data is gone or it was removed, with a token only.
func findForWitness(ctx context.Context, cfg *config.Server, m *membership, n *servers.Newcomer, hasData, hasToken bool) error {
	stored := m.stored
	switch {
	case join.IsAgent(cfg.DataDir):
		return fmt.Errorf("%s is the data directory of an agent: use another --data-dir for a witness", cfg.DataDir)
	case stored != nil && !stored.Witness, stored == nil && (hasData || hasToken):
		return fmt.Errorf("data directory %s is a server's: leave out --witness, or let the server leave its cluster "+
			"and run kubelith reset --data first", cfg.DataDir)
	case stored != nil && !stored.Removed && hasData:
		return adoptStored(cfg)
	case cfg.Server == "" && stored == nil:
		return errors.New("a witness joins the cluster of others: add --server https://HOST:6443 and --token-file FILE, " +
			"with a token from kubelith token create --usages server")
	}
	if cfg.Server == "" || cfg.Token == "" && (cfg.TokenFile == "" || absent(cfg.TokenFile)) {
		why := "its data is gone"
		switch {
		case stored == nil:
			return findByToken(ctx, cfg, n) // its error names what is missing
		case stored.Removed:
			why = "it was removed from the cluster"
		}
		return fmt.Errorf("this witness has to join again (%s): start it with --server and --token-file, "+
			"with a token from kubelith token create --usages server", why)
	}
	if err := findByToken(ctx, cfg, n); err != nil {
		return err
	}
	if err := adopt(cfg, n.Settings); err != nil {
		return err
	}
	n.Witness, n.PeerURL, m.newcomer = true, peerURL(cfg), n
	return nil
}

// witnessMemory is what a witness of a small cluster uses, in bytes, with room for its database.
const witnessMemory = 150 << 20

// witnessCheckOptions returns what a witness needs of this host: a port, and a clock that is not far off.
func witnessCheckOptions(cfg *config.Server) preflight.Options {
	return preflight.Options{
		DataDir:     cfg.DataDir,
		NodeName:    cfg.NodeName,
		AnyUser:     true,
		Memory:      witnessMemory,
		Ports:       []preflight.Port{{Component: "etcd", Port: lifecycle.Port{Network: "tcp", Number: names.PeerPort}}},
		NotBefore:   buildTime(),
		NotBeforeOf: "this program was built at",
	}
}

// preflightWitness is Preflight for a witness. wrong is an error in its settings.
func preflightWitness(ctx context.Context, cfg *config.Server, wrong error) []preflight.Result {
	cfg.Disable = withoutNode()
	opts := witnessCheckOptions(cfg)
	opts.Syncs = true // see Preflight
	results := append(argumentResults(planWitness(cfg)), preflight.Check(ctx, opts)...)
	return append(results, directoryResult(&cfg.Node, wrong, datadir.CheckSettings(cfg.DataDir, fixedSettings(cfg))))
}
