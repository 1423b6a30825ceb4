package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/pkg/v3/featuregate"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/features"
	"go.uber.org/zap"
)

// Peer is how the members of several servers reach each other: over TLS, with certificates of a CA that signs nothing
// else. The files are read again for each connection.
type Peer struct {
	// URL is https://ADDRESS:PORT, where the others reach this member.
	URL string
	// Cert, Key and CA are paths.
	Cert, Key, CA string
	// Initial is the cluster that this member joins, as "name=url,name=url" with its own; empty when it has data
	// (Begun).
	Initial string
}

// peerTickMs and peerElectionMs are the heartbeat and the election timeout of members on a network, in milliseconds.
// They are etcd's defaults, and the same on all members.
const peerTickMs, peerElectionMs = 100, 1000

func (p *Peer) configure(cfg *embed.Config) error {
	u, err := url.Parse(p.URL)
	if err != nil {
		return fmt.Errorf("the address for other servers: %w", err)
	}
	cfg.TickMs, cfg.ElectionMs = peerTickMs, peerElectionMs
	all := net.IPv4zero // a member may have moved to another address
	if ip := net.ParseIP(u.Hostname()); ip != nil && ip.To4() == nil {
		all = net.IPv6zero
	}
	listen := *u
	listen.Host = net.JoinHostPort(all.String(), u.Port())
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{listen}, []url.URL{*u}
	cfg.PeerTLSInfo = transport.TLSInfo{
		CertFile: p.Cert, KeyFile: p.Key, TrustedCAFile: p.CA, ClientCertAuth: true,
		SkipClientSANVerify: true, // the signer counts: behind NAT, and after a move, the address differs
	}
	cfg.InitialCluster = cfg.Name + "=" + p.URL
	cfg.ClusterState = embed.ClusterStateFlagExisting // one of several never starts its own cluster
	if p.Initial != "" {
		cfg.InitialCluster = p.Initial
	}
	// A member whose data differs from that of the others is found at its start, and at compactions (every 5 min).
	// Source: https://etcd.io/docs/v3.6/op-guide/data_corruption/.
	gate, ok := cfg.ServerFeatureGate.(featuregate.MutableFeatureGate)
	if !ok {
		return errors.New("etcd's feature gates cannot be set")
	}
	return gate.SetFromMap(map[string]bool{string(features.InitialCorruptCheck): true, string(features.CompactHashCheck): true})
}

// permanentlyRemoved is etcd's message that the other members have removed this one.
// Source: etcd/server/etcdserver/api/rafthttp/transport.go.
const permanentlyRemoved = "the member has been permanently removed from the cluster"

// ErrRemoved means that the other members have removed this one: its data is useless.
var ErrRemoved = errors.New("this server was removed from the cluster of its etcd: " +
	"at its next start it asks the others to take it back; kubelith reset --data removes its old data")

// Removed reports whether the other members have removed this one.
func (s *Server) Removed() bool {
	e := s.running.Load()
	return s.removed.Load() || e != nil && e.Server.IsIDRemoved(uint64(e.Server.MemberID()))
}

// ended returns ErrRemoved for the end of a member that was removed.
func (s *Server) ended(err error) error {
	if s.Removed() {
		if s.opts.Removed != nil {
			s.opts.Removed()
		}
		return ErrRemoved
	}
	return err
}

// voteEvery is how often a member that joins checks whether it has a vote.
const voteEvery = 100 * time.Millisecond

// Open reports whether the member can have others.
func (s *Server) Open() bool {
	e := s.running.Load()
	return e != nil && e.Config().AdvertisePeerUrls[0].Scheme == "https"
}

// OpenToPeers lets a member that runs alone have others. It ends the member and starts it again, in place and within a
// second; its clients connect again by themselves. It returns when the member answers. It does nothing when the member
// is open.
func (s *Server) OpenToPeers(ctx context.Context, p Peer) error {
	before := s.running.Load()
	if before == nil {
		return errors.New("etcd does not run yet")
	}
	if before.Config().AdvertisePeerUrls[0].Scheme == "https" {
		return nil
	}
	next, err := s.configure(&p)
	if err != nil {
		return err
	}
	select {
	case s.reopen <- next:
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		next := s.begun.Next()
		if e := s.running.Load(); e != nil && e != before {
			select {
			case <-e.Server.ReadyNotify():
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		select {
		case <-next:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Member is one of the cluster.
type Member struct {
	ID      uint64
	Name    string // empty until it has started
	URL     string // where the others reach it; a unix socket while there is one server
	Learner bool   // it has no vote, and not yet all data
	Leader  bool
	Self    bool
	// Witness means that it has a vote and the data, but no server.
	Witness bool
}

// witnessPath is the path of the unix socket that a witness advertises to clients, which is how all members know it:
// etcd keeps it with the name. No client connects to it; clients use the socket of the member on their machine.
const witnessPath = "/kubelith-witness"

// Members returns the members as this one knows them, without asking the others. It returns none before etcd runs.
func (s *Server) Members() []Member {
	e := s.running.Load()
	if e == nil {
		return nil
	}
	var all []Member
	for _, m := range e.Server.Cluster().Members() {
		all = append(all, Member{
			ID: uint64(m.ID), Name: m.Name, URL: first(m.PeerURLs), Learner: m.IsLearner,
			Leader: m.ID == e.Server.Leader(), Self: m.ID == e.Server.MemberID(),
			Witness: first(m.ClientURLs) == "unix://"+witnessPath,
		})
	}
	return all
}

func first(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return all[0]
}

// spareTimeout bounds the attempts to have a server lead; one that is away does not take over.
const spareTimeout = 5 * time.Second

// spareWitness has a server lead before a member that leads ends, if one of the others is a witness: etcd itself would
// choose the one that has been connected for longest.
func (s *Server) spareWitness(e *embed.Etcd) {
	members := s.Members()
	if e.Server.Leader() != e.Server.MemberID() || !slices.ContainsFunc(members, func(m Member) bool { return m.Witness }) {
		return
	}
	candidates := slices.DeleteFunc(members, func(m Member) bool { return m.Self || m.Learner || m.Witness })
	for _, m := range candidates {
		ctx, cancel := context.WithTimeout(context.Background(), spareTimeout/time.Duration(len(candidates)))
		err := e.Server.MoveLeader(ctx, uint64(e.Server.MemberID()), m.ID)
		cancel()
		if err == nil {
			return
		}
	}
}

// Alone reports whether this is the only member. It is also true before etcd runs, unless others are configured.
func (s *Server) Alone() bool {
	if e := s.running.Load(); e != nil {
		return len(e.Server.Cluster().Members()) <= 1
	}
	return s.opts.Peer == nil
}

// Dial returns a client of the member with this socket.
func Dial(socket string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{Endpoint(socket)}, DialTimeout: answerTimeout, Logger: zap.NewNop(), MaxCallRecvMsgSize: maxAnswer})
}
