package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/sirupsen/logrus"
	"k8s.io/component-base/version"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/sealed"
	"kubelith.io/kubelith/components/controlplane/etcd"
	"kubelith.io/kubelith/components/controlplane/servers"
)

// membership is how this server belongs to a cluster of several.
type membership struct {
	stored   *servers.Membership // nil: it is alone, or about to join
	newcomer *servers.Newcomer   // it joins, or comes back
	byToken  bool                // it joins with the configured token rather than with its own identity
	initial  string              // the members that etcd begins with, when it has no data
}

// findServers finds out whether this server has others, and takes the cluster's settings. It writes nothing.
func findServers(ctx context.Context, cfg *config.Server, log logrus.FieldLogger) (*membership, error) {
	stored, err := servers.Load(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	hasData := etcd.Begun(filepath.Join(cfg.DataDir, datadir.Etcd))
	_, noToken := os.Stat(tokenFile(cfg)) // of an API that has answered; keys alone may be from a join that was interrupted
	m := &membership{stored: stored}
	n := &servers.Newcomer{
		Name: cfg.NodeName, Kubernetes: version.Get().GitVersion,
		DataDir: cfg.DataDir, TLSDir: tlsDir(cfg), EncryptionConfig: encryptionConfig(cfg), Log: log,
	}
	switch {
	case cfg.Witness:
		return m, findForWitness(ctx, cfg, m, n, hasData, noToken == nil)
	case stored != nil && stored.Witness:
		return nil, fmt.Errorf("data directory %s is a witness': start it with --witness, or run kubelith reset --data "+
			"to make a server of this machine", cfg.DataDir)
	case stored == nil && cfg.Server == "":
		return m, nil
	case stored == nil && (hasData || noToken == nil):
		return nil, fmt.Errorf("data directory %s has its own cluster: leave out --server, or run kubelith reset --data "+
			"to give that cluster up and join another", cfg.DataDir)
	case stored == nil:
		if err := findByToken(ctx, cfg, n); err != nil {
			return nil, err
		}
		m.newcomer, m.byToken = n, true
		err = adoptFound(cfg, n)
	case stored.Removed:
		m.newcomer = n
		found := findByToken(ctx, cfg, n)
		if m.byToken = found == nil; m.byToken { // other settings may be set there now
			err = adoptFound(cfg, n)
			break
		}
		n.Return(stored, cfg.Server)
		if err = adoptStored(cfg); err != nil && cfg.Server != "" {
			err = fmt.Errorf("this server was removed from the cluster, and cannot join with other settings: %w", found)
		}
	case !hasData:
		m.newcomer = n
		n.Return(stored, cfg.Server)
		err = adoptStored(cfg)
	default:
		err = adoptStored(cfg)
	}
	n.PeerURL = peerURL(cfg) // of an address that fits the cluster
	return m, err
}

// findByToken asks the configured server for the cluster's settings, with the configured token.
func findByToken(ctx context.Context, cfg *config.Server, n *servers.Newcomer) error {
	if cfg.Server == "" {
		return errors.New("the address of a server is needed to join: pass it with --server")
	}
	text, err := readToken(cfg.Token, cfg.TokenFile)
	if err != nil {
		return err
	}
	if text == "" {
		return errors.New("a token is needed to join: create one with kubelith token create --usages server on a server, " +
			"and pass it with --token-file or --token")
	}
	return n.Find(ctx, cfg.Server, text)
}

// joinsAnew reports whether this server was removed and has what it needs to join by a token: it takes the settings
// that the cluster has now.
func joinsAnew(cfg *config.Server) bool {
	stored, err := servers.Load(cfg.DataDir)
	return err == nil && stored != nil && stored.Removed && cfg.Server != "" && cfg.Token+cfg.TokenFile != ""
}

// adoptFound takes the settings of the cluster that this server is about to join.
func adoptFound(cfg *config.Server, n *servers.Newcomer) error {
	if err := sameVirtualAddress(cfg, n.Settings); err != nil {
		return err
	}
	return adopt(cfg, n.Settings)
}

// adoptStored takes the settings of the cluster that this server has joined, if it has.
func adoptStored(cfg *config.Server) error {
	stored, err := servers.Load(cfg.DataDir)
	if err != nil || stored == nil || len(stored.Settings) == 0 {
		return err
	}
	return adopt(cfg, stored.Settings)
}

// adopt takes the settings of the cluster, and finds this machine's addresses again for its networks.
func adopt(cfg *config.Server, settings json.RawMessage) error {
	cluster, err := config.ParseClusterInfo(settings)
	if err != nil {
		return err
	}
	if err := cfg.Adopt(cluster); err != nil {
		return err
	}
	if before := cfg.NodeIP; cfg.NodeIPDetected {
		if cfg.NodeIP, err = config.DetectNodeIPs(cfg.ClusterCIDR); err != nil {
			return err
		}
		if cfg.AdvertiseAddress == before[0] { // the user has not set it
			cfg.AdvertiseAddress = cfg.NodeIP[0]
		}
	}
	return cfg.Validate()
}

// join joins this machine to the cluster as a server, if it is about to be one. It changes the data directory. A server
// that comes back does so with its own identity or, if that was revoked, with the configured token; one that was
// removed uses the token first.
func (m *membership) join(ctx context.Context, cfg *config.Server) (err error) {
	if m.newcomer == nil {
		return nil
	}
	former := m.stored
	if former != nil && !cfg.Witness {
		defer func() {
			if err == nil {
				err = asJoined(cfg, m.stored.Settings)
			}
		}()
	}
	m.stored, m.initial, err = m.newcomer.Join(ctx)
	var no sealed.Refusal
	if former == nil || cfg.Witness || !errors.As(err, &no) || cfg.Server == "" || cfg.Token+cfg.TokenFile == "" {
		return err
	}
	if m.byToken { // it may be of the first join
		m.newcomer.Return(former, cfg.Server)
	} else if again := findByToken(ctx, cfg, m.newcomer); again != nil {
		return fmt.Errorf("%w; %s: %w", err, uselessToken, again)
	}
	var again error
	if m.stored, m.initial, again = m.newcomer.Join(ctx); again == nil {
		return nil
	}
	if m.byToken {
		err, again = again, err
	}
	return fmt.Errorf("%w; %s: %w", err, uselessToken, again)
}

// asJoined refuses to go on with other settings than those of the cluster that this server has joined just now. The
// next start has them.
func asJoined(cfg *config.Server, settings json.RawMessage) error {
	if len(settings) == 0 {
		return nil
	}
	cluster, err := config.ParseClusterInfo(settings)
	if err != nil {
		return err
	}
	if !slices.Equal(cfg.ClusterCIDR, cluster.ClusterCIDR) || !slices.Equal(cfg.ServiceCIDR, cluster.ServiceCIDR) ||
		cfg.ClusterDomain != cluster.ClusterDomain || cfg.Network != cluster.Network || cfg.Profile != cluster.Profile {
		return errors.New("the cluster's settings changed while this server was down: start it again to apply them")
	}
	return nil
}

const uselessToken = "the token that it was started with does not help"

func peerURL(cfg *config.Server) string {
	return "https://" + net.JoinHostPort(cfg.AdvertiseAddress, strconv.Itoa(names.PeerPort))
}

// noteRemoval records that the others have removed this server. On an error the next start finds it out again.
func noteRemoval(cfg *config.Server) {
	_ = servers.Update(cfg.DataDir, func(m *servers.Membership) { m.Removed = true })
}

// peer returns how other servers reach this one's etcd.
func (h *machine) peer(cfg *config.Server) etcd.Peer {
	return etcd.Peer{URL: peerURL(cfg), Cert: h.pki.Peer.Cert, Key: h.pki.Peer.Key, CA: h.pki.PeerCA.Cert}
}

// ofSeveral returns the same with the members that this one joins; nil for a server that is alone.
func (h *machine) ofSeveral(cfg *config.Server) *etcd.Peer {
	if h.membership == nil || h.membership.stored == nil {
		return nil
	}
	p := h.peer(cfg)
	p.Initial = h.membership.initial
	return &p
}

// otherServers returns the component that looks after the cluster's servers.
func otherServers(p *plane, store *etcd.Server, socket string) (*servers.Server, error) {
	settings, err := json.Marshal(p.cfg.ClusterInfo(version.Get().GitVersion, p.machine.release))
	if err != nil {
		return nil, err
	}
	return servers.New(servers.Options{
		NodeName:         p.cfg.NodeName,
		Etcd:             store,
		Socket:           socket,
		Peer:             p.machine.peer(p.cfg),
		DataDir:          p.cfg.DataDir,
		TLSDir:           tlsDir(p.cfg),
		EncryptionConfig: encryptionConfig(p.cfg),
		Settings:         settings,
		Kubernetes:       version.Get().GitVersion,
		Client:           p.clients.Config(client.Servers),
		Removed:          p.api.Removed,
		Log:              p.logFor("servers"),
	})
}
