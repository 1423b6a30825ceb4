// Package servers forms one cluster of several servers: which ones join, have a vote, or are missing.
//
//	machine that joins                             server of the cluster
//	Find    ----- cluster-info, settings ------->
//	Join    ----- POST Path: name, address, key -> Handler: token, names, etcd learner
//	        <---- keys, encrypted for it ---------
//	starts etcd as a learner, copies the data   -> Server (the component "servers") gives it a vote
//	starts everything else
//
// The servers of a cluster share its private keys. They travel once, over TLS and encrypted for a key that the joining
// machine has just generated; they are never in a token, nor in etcd. etcd's membership is the list of servers: a
// member has its Node's name. A server is removed by an administrator only (Remove), never because its Node is gone.
package servers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/components/controlplane/etcd"
)

const (
	// tickEvery is how often a server looks after the others, and newcomerEvery while one of them has no vote.
	tickEvery, newcomerEvery = 5 * time.Second, 300 * time.Millisecond
	// probeTimeout bounds the question whether another server's etcd answers.
	probeTimeout = 3 * time.Second
	// orphanAfter is how long a server that joins may be away before it has to join again: meanwhile no other can join.
	orphanAfter = 2 * time.Minute
	// absentAfter is how long a server must have been missing before another machine may take its place.
	absentAfter = 30 * time.Second
	// changeTimeout bounds a change of etcd's members.
	changeTimeout = 10 * time.Second
	// addressesEvery is how often the addresses of the API are stored.
	addressesEvery = 10 * time.Second
	// evenAfter is how long the number of servers may be even before that is a warning: a third one may be on its way.
	evenAfter = 10 * time.Minute
)

// Member is a server's etcd: an etcd.Server.
type Member interface {
	// Members returns all members as this one knows them, without asking the others.
	Members() []etcd.Member
	// Open reports whether it can have others, and OpenToPeers lets it have some.
	Open() bool
	OpenToPeers(context.Context, etcd.Peer) error
	// Removed reports whether the others have removed it.
	Removed() bool
}

var _ Member = (*etcd.Server)(nil)

// Options configures the component.
type Options struct {
	// NodeName is this server's.
	NodeName string
	// Etcd is this server's member, and Socket where it serves clients.
	Etcd   Member
	Socket string
	// Peer is how others reach it.
	Peer etcd.Peer
	// DataDir is the data directory, TLSDir has the cluster's keys and EncryptionConfig the keys of Secrets.
	DataDir, TLSDir, EncryptionConfig string
	// Settings is the cluster's, for a server that joins: a config.ClusterInfo in JSON.
	Settings []byte
	// Kubernetes is the version of this program, with a leading v.
	Kubernetes string
	// Client reads Nodes, and uses up tokens; nil for a witness, which has no API, and so no Handler.
	Client *rest.Config
	// Removed reports whether a server was removed by an administrator since it joined.
	Removed func(name string, joined time.Time) bool
	// Log receives joins, votes, and servers that are missing.
	Log logrus.FieldLogger
}

// Server is the component "servers" of each server. The one whose etcd leads gives newcomers a vote; all watch for
// missing ones.
type Server struct {
	opts   Options
	client kubernetes.Interface // nil for a witness
	work   lifecycle.Watchdog
	long   lifecycle.Watchdog // of defragmentations
	probe  http.Client
	join   sync.Mutex // one join at a time
	trial  trial

	reportSpace func(status corev1.ConditionStatus, reason, message string) // or nil

	orphanAfter, absentFor time.Duration // see the constants

	mu      sync.Mutex
	missing map[uint64]time.Time // since when
}

var (
	_ lifecycle.Component = (*Server)(nil)
	_ lifecycle.Health    = (*Server)(nil)
	_ lifecycle.Listener  = (*Server)(nil)
)

// New returns the component; nothing is touched before Run.
func New(o Options) (*Server, error) {
	s := &Server{opts: o, missing: map[uint64]time.Time{}, probe: http.Client{
		Timeout:   probeTimeout,
		Transport: &http.Transport{DialTLSContext: dialPeer(o.Peer), MaxIdleConnsPerHost: 1},
	}, long: lifecycle.Watchdog{Limit: defragTimeout + lifecycle.WorkLimit}, orphanAfter: tested(orphanAfter), absentFor: tested(absentAfter)}
	if o.Client == nil {
		return s, nil
	}
	var err error
	s.client, err = kubernetes.NewForConfig(o.Client)
	return s, err
}

// dialPeer connects to the etcd of another server, with the certificates as they are now.
func dialPeer(p etcd.Peer) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		pair, err := tls.LoadX509KeyPair(p.Cert, p.Key)
		if err != nil {
			return nil, err
		}
		roots, err := pki.Pool(p.CA)
		if err != nil {
			return nil, err
		}
		d := tls.Dialer{Config: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, MinVersion: tls.VersionTLS12}}
		return d.DialContext(ctx, network, address)
	}
}

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "servers" }

// Needs implements lifecycle.Component.
func (s *Server) Needs() []string { return []string{"etcd"} }

// RestartPolicy implements lifecycle.Restarter.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartBeside }

// Ports implements lifecycle.Listener: etcd listens there, once there are or were other servers.
func (s *Server) Ports() []lifecycle.Port {
	if m, err := Load(s.opts.DataDir); m == nil || err != nil { // the start reports the error
		return nil
	}
	return []lifecycle.Port{{Network: "tcp", Number: names.PeerPort}}
}

// Healthy implements lifecycle.Health: no change of the members takes too long.
func (s *Server) Healthy(ctx context.Context) error {
	return errors.Join(s.work.Healthy(ctx), s.long.Healthy(ctx))
}

// Run implements lifecycle.Component. It is ready at once.
func (s *Server) Run(ctx context.Context, ready func()) error {
	s.work.Reset()
	s.long.Reset()
	defer s.probe.CloseIdleConnections()
	defer s.trial.stop()
	ready()
	var probed, stored time.Time
	orphans := map[uint64]time.Time{} // learners, and since when they do not answer
	var room space
	var pair even
	for {
		every := tickEvery
		room.keep(ctx, s)
		if members := s.opts.Etcd.Members(); len(members) > 1 {
			if time.Since(probed) >= tickEvery {
				s.look(ctx, members)
				probed = time.Now()
			}
			s.keepAddress(ctx, members)
			if votes, witnesses := count(members); pair.watch(votes, leads(members), time.Now()) {
				s.tell(ctx, corev1.EventTypeWarning, "EvenServers", "the cluster has "+described(votes, witnesses))
			}
			if s.isWitness() {
				s.handOver(ctx)
			}
			if i := slices.IndexFunc(members, func(m etcd.Member) bool { return m.Learner }); i >= 0 {
				every = newcomerEvery
				if leads(members) {
					s.settle(ctx, members[i], orphans)
				}
			}
			if !s.isWitness() && time.Since(stored) >= addressesEvery && s.storeAddresses(ctx) {
				stored = time.Now()
			}
		} else if s.opts.Etcd.Open() { // the others are gone: a machine may join with its former address
			s.keepAddress(ctx, members)
		}
		if !reconcile.Sleep(ctx, every) {
			return nil
		}
	}
}

// isWitness reports whether this is a witness.
func (s *Server) isWitness() bool { return s.client == nil }

// leads reports whether this server's etcd leads.
func leads(members []etcd.Member) bool {
	return slices.ContainsFunc(members, func(m etcd.Member) bool { return m.Self && m.Leader })
}

// look checks whether the etcd of each other server answers, and logs changes.
func (s *Server) look(ctx context.Context, members []etcd.Member) {
	var wg sync.WaitGroup
	now := time.Now()
	for _, m := range members {
		if m.Self {
			continue
		}
		wg.Go(func() {
			err := s.ask(ctx, m)
			if ctx.Err() != nil {
				return
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			since, missing := s.missing[m.ID]
			switch {
			case err != nil && !missing:
				s.missing[m.ID] = now
				if m.Name == "" { // it has not begun; settle removes one that never does
					s.opts.Log.Infof("joining server (%s) does not answer yet: %v", m.URL, err)
					return
				}
				s.opts.Log.Warnf("%s %s (%s) does not answer: %v", kind(m), nameOf(m), m.URL, err)
			case err == nil && missing:
				delete(s.missing, m.ID)
				s.opts.Log.Infof("%s %s (%s) answers again, after %s", kind(m), nameOf(m), m.URL, now.Sub(since).Round(time.Second))
			}
		})
	}
	wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.missing {
		if !slices.ContainsFunc(members, func(m etcd.Member) bool { return m.ID == id }) {
			delete(s.missing, id)
		}
	}
}

// nameOf returns the name of a member; a newcomer has none.
func nameOf(m etcd.Member) string {
	if m.Name == "" {
		return "that joins"
	}
	return m.Name
}

// kind is what a member is to an operator.
func kind(m etcd.Member) string {
	if m.Witness {
		return "witness"
	}
	return "server"
}

// ask returns why the etcd of another server does not answer. One that defragments answers this, from memory.
func (s *Server) ask(ctx context.Context, m etcd.Member) error { return s.get(ctx, m, "/members") }

// get returns why the etcd of another server does not answer a request.
func (s *Server) get(ctx context.Context, m etcd.Member, path string) error {
	return Ask(ctx, &s.probe, m.URL+path)
}

// Ask returns why the etcd of a server does not answer a GET with success.
func Ask(ctx context.Context, c *http.Client, address string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	response, err := c.Do(request)
	if err != nil {
		var why *url.Error
		if errors.As(err, &why) {
			err = why.Err
		}
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("HTTP %d", response.StatusCode)
	}
	return nil
}

// settle gives a newcomer a vote once it has the data, and removes one that has gone: etcd admits one at a time.
func (s *Server) settle(ctx context.Context, m etcd.Member, orphans map[uint64]time.Time) {
	defer s.work.Begin("giving a server its vote")()
	err := s.change(ctx, func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.MemberPromote(ctx, m.ID)
		return err
	})
	if err == nil {
		s.opts.Log.Infof("%s %s (%s) has all data, and a vote: the cluster has %s", kind(m), nameOf(m), m.URL, described(count(s.opts.Etcd.Members())))
		delete(orphans, m.ID)
		return
	}
	if s.ask(ctx, m) == nil || ctx.Err() != nil {
		delete(orphans, m.ID)
		return
	}
	since, known := orphans[m.ID]
	if !known {
		orphans[m.ID] = time.Now()
		return
	}
	if time.Since(since) < s.orphanAfter {
		return
	}
	err = s.change(ctx, func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.MemberRemove(ctx, m.ID)
		return err
	})
	if err != nil {
		s.opts.Log.Warnf("cannot remove the server at %s, which began to join and does not answer: %v", m.URL, err)
		return
	}
	delete(orphans, m.ID)
	s.opts.Log.Warnf("removed the server at %s: it began to join, and has not answered for %s", m.URL, s.orphanAfter)
}

// count returns the number of members with a vote, and how many of them are witnesses.
func count(members []etcd.Member) (votes, witnesses int) {
	for _, m := range members {
		if m.Learner {
			continue
		}
		votes++
		if m.Witness {
			witnesses++
		}
	}
	return votes, witnesses
}

// described describes a number of votes, of which some are witnesses'.
func described(votes, witnesses int) string {
	who := fmt.Sprintf("%d servers", votes-witnesses)
	if votes-witnesses == 1 {
		who = "one server"
	}
	if witnesses > 0 {
		who += " and a witness"
	}
	switch {
	case votes == 1:
		return who
	case votes%2 == 0:
		return fmt.Sprintf("%s, and can lose %d of them, as with %d: add or remove one", who, (votes-1)/2, votes-1)
	}
	return fmt.Sprintf("%s, and can lose %d of them", who, (votes-1)/2)
}

// keepAddress publishes this server's address to the others when it has changed.
func (s *Server) keepAddress(ctx context.Context, members []etcd.Member) {
	i := slices.IndexFunc(members, func(m etcd.Member) bool { return m.Self })
	if i < 0 || members[i].URL == s.opts.Peer.URL {
		return
	}
	defer s.work.Begin("telling the other servers this one's address")()
	err := s.change(ctx, func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.MemberUpdate(ctx, members[i].ID, []string{s.opts.Peer.URL})
		return err
	})
	if err != nil {
		s.opts.Log.Warnf("cannot tell the other servers that this one has moved from %s to %s: %v", members[i].URL, s.opts.Peer.URL, err)
		return
	}
	s.opts.Log.Infof("the cluster knows that this server has moved from %s to %s", members[i].URL, s.opts.Peer.URL)
}

// change changes etcd's members.
func (s *Server) change(ctx context.Context, do func(context.Context, *clientv3.Client) error) error {
	return s.use(ctx, changeTimeout, do)
}

// use has do use this server's etcd, for as long as timeout.
func (s *Server) use(ctx context.Context, timeout time.Duration, do func(context.Context, *clientv3.Client) error) error {
	c, err := etcd.Dial(s.opts.Socket)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return do(ctx, c)
}

// storeAddresses stores where the API is served, for the time when this server must ask the others to readmit it.
func (s *Server) storeAddresses(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	slice, err := s.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil || len(slice.Ports) == 0 || slice.Ports[0].Port == nil {
		return false
	}
	var urls []string
	for _, e := range slice.Endpoints {
		for _, a := range e.Addresses {
			urls = append(urls, "https://"+net.JoinHostPort(a, strconv.Itoa(int(*slice.Ports[0].Port))))
		}
	}
	slices.Sort(urls)
	return len(urls) > 1 && Update(s.opts.DataDir, func(m *Membership) {
		if m.PeerURL == "" {
			m.PeerURL = s.opts.Peer.URL
		}
		m.Servers = urls
	}) == nil
}

// View is what names.ServersPath shows to administrators.
type View struct {
	// Asked is the server that answers.
	Asked string `json:"asked"`
	// Servers are all, by name, as that one knows them.
	Servers []Status `json:"servers"`
	// Space is the size of its database, with the alarms of all servers; nil: its etcd does not answer.
	Space *Space `json:"space,omitempty"`
}

// Roles of a server's etcd.
const (
	RoleLeader   = "leader"
	RoleFollower = "follower"
	RoleJoining  = "joining" // it has no vote yet
)

// Status is a server as another one knows it.
type Status struct {
	Name    string `json:"name"`
	PeerURL string `json:"peerURL"`
	// Role is RoleLeader, RoleFollower or RoleJoining.
	Role string `json:"role"`
	// Witness means that it runs etcd and nothing else.
	Witness bool `json:"witness,omitempty"`
	// Missing is since when it does not answer the one that was asked; zero: it answers.
	Missing time.Time `json:"missing,omitzero"`
}

// view returns what this server knows.
func (s *Server) view(ctx context.Context) View {
	v := View{Asked: s.opts.NodeName}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if room, err := s.space(ctx); err == nil {
		room.SlowSync = etcd.SlowSyncs().Seconds()
		v.Space = &room
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.opts.Etcd.Members() {
		st := Status{Name: m.Name, PeerURL: m.URL, Role: RoleFollower, Witness: m.Witness, Missing: s.missing[m.ID]}
		switch {
		case m.Learner:
			st.Role = RoleJoining
		case m.Leader:
			st.Role = RoleLeader
		}
		v.Servers = append(v.Servers, st)
	}
	slices.SortFunc(v.Servers, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	return v
}

// Names returns the names of all servers; witnesses are none.
func Names(e Member) []string {
	var names []string
	for _, m := range e.Members() {
		if m.Name != "" && !m.Witness {
			names = append(names, m.Name)
		}
	}
	return names
}

// Verdict sums up the state of the servers in a sentence.
func Verdict(all []Status) string {
	votes, witnesses, missing := 0, 0, 0
	for _, s := range all {
		if s.Role == RoleJoining {
			continue
		}
		votes++
		if s.Witness {
			witnesses++
		}
		if !s.Missing.IsZero() {
			missing++
		}
	}
	majority, who := votes/2+1, "servers"
	if witnesses > 0 {
		who = "servers, witness included,"
	}
	switch {
	case votes-missing < majority:
		return fmt.Sprintf("Nothing can be written: %d of %d %s answer, and at least %d must. "+
			"Start the missing ones, or run kubelith server --cluster-reset on one.", votes-missing, votes, who, majority)
	case missing > 0:
		return fmt.Sprintf("The cluster works: %d of %d %s answer, and at least %d must.", votes-missing, votes, who, majority)
	}
	return fmt.Sprintf("The cluster has %s.", described(votes, witnesses))
}
