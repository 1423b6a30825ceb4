package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"

	"kubelith.io/kubelith/base/jointoken"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/base/removed"
	"kubelith.io/kubelith/base/sealed"
	"kubelith.io/kubelith/components/controlplane/etcd"
)

// maxRequest bounds a request, in bytes.
const maxRequest = 64 << 10

// request is what a machine that joins sends.
type request struct {
	Name       string    `json:"name"`
	PeerURL    string    `json:"peerURL"`
	Recipient  string    `json:"recipient"` // a public key of age, generated for this request
	Kubernetes string    `json:"kubernetes"`
	Joined     time.Time `json:"joined,omitzero"` // of a server that was in the cluster
	// Listens means that it accepts connections at PeerURL, and wants to know which addresses it has to reach itself.
	Listens bool `json:"listens,omitempty"`
	// Witness means that it will run etcd and nothing else, and gets the keys for that only.
	Witness bool `json:"witness,omitempty"`
}

// answer is what it gets.
type answer struct {
	// Sealed is a bundle in JSON, encrypted for the Recipient.
	Sealed []byte `json:"sealed,omitempty"`
	// Reach are the servers that it must reach before it retries, by name.
	Reach map[string]string `json:"reach,omitempty"`
	// Witnesses means that the server knows witnesses: an older one would give it all keys.
	Witnesses bool `json:"witnesses,omitempty"`
	// Wait is why it must retry later, and Refused why it cannot join.
	Wait    string `json:"wait,omitempty"`
	Refused string `json:"refused,omitempty"`
}

// bundle is what a server needs of the others. That of a witness has fewer keys, and no Encryption.
type bundle struct {
	Keys       map[string][]byte `json:"keys"` // pki.Shared
	Encryption []byte            `json:"encryption,omitempty"`
	Initial    string            `json:"initialCluster"`
	Settings   json.RawMessage   `json:"settings"`
	Time       time.Time         `json:"time"`
}

// wait is why a machine cannot join yet.
type wait string

func (w wait) Error() string { return string(w) }

// refuse returns why a machine cannot join, or a request of an administrator is not met.
func refuse(format string, args ...any) error { return sealed.Refusal(fmt.Sprintf(format, args...)) }

// minority is why nothing can be written.
const minority = "the servers that answer are not a majority: start the missing ones, or run kubelith server --cluster-reset " +
	"on one that has the data"

// Paths below names.ServersPath, for POST requests of administrators: they concern the etcd of the server that gets
// them.
const (
	DefragPath = names.ServersPath + "/defrag"
	DisarmPath = names.ServersPath + "/disarm"
)

// Handler serves names.ServersPath and those below, and passes on other requests. Requests have been authorized.
func (s *Server) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch ctx := req.Context(); {
		case req.URL.Path != names.ServersPath && !strings.HasPrefix(req.URL.Path, names.ServersPath+"/"):
			next.ServeHTTP(w, req)
		case req.URL.Path == names.ServersPath && req.Method == http.MethodGet:
			sealed.Reply(w, http.StatusOK, s.view(ctx))
		case req.URL.Path == names.ServersPath && req.Method == http.MethodPost:
			s.serveJoin(w, req)
		case req.URL.Path == names.ServersPath && req.Method == http.MethodDelete:
			done(w, s.remove(ctx, req.URL.Query().Get("name")))
		case req.URL.Path == DefragPath && req.Method == http.MethodPost:
			done(w, s.Defragment(ctx))
		case req.URL.Path == DisarmPath && req.Method == http.MethodPost:
			done(w, s.Disarm(ctx))
		default:
			http.NotFound(w, req)
		}
	})
}

// done answers an administrator, with a Status of the API: clients show its message.
func done(w http.ResponseWriter, err error) {
	sealed.Answer(w, metav1.Status{TypeMeta: sealed.StatusType(), Status: metav1.StatusSuccess}, err)
}

// remove takes a server out of the cluster for good: it cannot come back without a token.
func (s *Server) remove(ctx context.Context, name string) error {
	members := s.opts.Etcd.Members()
	i := slices.IndexFunc(members, func(m etcd.Member) bool { return m.Name == name && name != "" })
	if i < 0 {
		return refuse("there is no server %q: list the servers with kubelith etcd members", name)
	}
	if voters, witnesses := count(members); voters-witnesses == 1 && !members[i].Learner && !members[i].Witness {
		return refuse("%s is the only server: a cluster needs one", name)
	}
	const majority = "without %s the servers that answer would not be a majority: " +
		"start the missing ones first, or run kubelith server --cluster-reset on one"
	s.look(ctx, members) // what is known may be from before a server came back
	switch {             // before it is recorded as removed
	case s.noMajority() && !slices.ContainsFunc(members, func(m etcd.Member) bool { return m.Leader }):
		return sealed.Refusal(minority) // with a leader there is a majority, although this server cannot reach it
	case s.needed(members, members[i]):
		return refuse(majority, name)
	}
	// Recorded first: a server comes back at once when it notices its removal, and one that removes itself cannot write
	// any more.
	withdraw := func(context.Context) error { return nil }
	if !members[i].Witness { // it has no credentials that must be refused
		var err error
		if withdraw, err = removed.Record(ctx, s.client, name); err != nil {
			return err
		}
	}
	ctx = context.WithoutCancel(ctx) // what is recorded is also done, or withdrawn, when the client is gone
	if members[i].Self {
		s.handOver(ctx)
	}
	err := s.change(ctx, func(ctx context.Context, c *clientv3.Client) error {
		return whileUnhealthy(ctx, func() error {
			_, err := c.MemberRemove(ctx, members[i].ID)
			return err
		})
	})
	if errors.Is(err, rpctypes.ErrMemberNotFound) { // another request has removed it meanwhile
		err = nil
	}
	if members[i].Self && s.opts.Etcd.Removed() { // it may have ended before it could answer
		err = nil
	}
	if err == nil {
		s.opts.Log.Infof("removed %s %s (%s): the cluster has %s", kind(members[i]), name, members[i].URL, described(count(s.opts.Etcd.Members())))
		return nil
	}
	// What etcd refuses has not happened; another failure may still take effect, and then the record must stand.
	if !errors.Is(err, rpctypes.ErrUnhealthy) && !errors.Is(err, rpctypes.ErrMemberNotEnoughStarted) {
		if members[i].Witness {
			return err
		}
		return fmt.Errorf("%s is still in the cluster, but its node is blocked (%w): start the missing servers, and run this again", name, err)
	}
	if gone := withdraw(ctx); gone != nil {
		return fmt.Errorf("%s is still in the cluster, but its node is blocked, and could not be admitted again (%w): "+
			"start the missing servers, and run this again", name, gone)
	}
	return refuse(majority, name)
}

// whileUnhealthy repeats a change of etcd's members until they are connected: those that have just started must have
// been for some seconds. Source: HealthInterval in etcd/server/etcdserver/server.go.
func whileUnhealthy(ctx context.Context, change func() error) error {
	for {
		err := change()
		if !errors.Is(err, rpctypes.ErrUnhealthy) || ctx.Err() != nil {
			return err
		}
		if !reconcile.Sleep(ctx, retryEvery) {
			return err
		}
	}
}

// needed reports whether without a member those that answer would not be a majority: etcd refuses to remove it then.
func (s *Server) needed(members []etcd.Member, m etcd.Member) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, missing := s.missing[m.ID]; missing || m.Learner {
		return false
	}
	votes, answer := 0, 0
	for _, other := range members {
		if other.Learner || other.ID == m.ID {
			continue
		}
		votes++
		if _, missing := s.missing[other.ID]; !missing {
			answer++
		}
	}
	return answer <= votes/2
}

func (s *Server) serveJoin(w http.ResponseWriter, req *http.Request) {
	var a answer
	status := http.StatusOK
	bundled, reach, err := s.admit(req)
	var no sealed.Refusal
	var later wait
	switch {
	case err == nil:
		a.Sealed, a.Reach, a.Witnesses = bundled, reach, true
	case errors.As(err, &no):
		a.Refused, status = no.Error(), http.StatusForbidden
	case errors.As(err, &later):
		a.Wait, status = later.Error(), http.StatusServiceUnavailable
	default:
		s.opts.Log.Warnf("a server could not join: %v", err)
		a.Wait, status = err.Error(), http.StatusServiceUnavailable
	}
	sealed.Reply(w, status, a)
}

// admit makes the machine a member of etcd, without a vote yet, and returns its bundle. First it tries whether the two
// reach each other, and returns the servers that the machine must reach.
func (s *Server) admit(req *http.Request) (bundled []byte, reach map[string]string, err error) {
	var r request
	if err := json.NewDecoder(io.LimitReader(req.Body, maxRequest)).Decode(&r); err != nil {
		return nil, nil, refuse("the request cannot be read: %v", err)
	}
	recipient, err := s.check(r)
	if err != nil {
		return nil, nil, err
	}
	if !s.join.TryLock() {
		return nil, nil, wait("another server is joining")
	}
	defer s.join.Unlock()
	ctx := req.Context()
	who, ok := apirequest.UserFrom(ctx)
	if !ok {
		return nil, nil, refuse("the request has no user")
	}
	s.look(ctx, s.opts.Etcd.Members()) // what follows is of this moment
	if s.noMajority() {
		return nil, nil, wait(minority)
	}
	if err := s.checkNode(ctx, r); err != nil {
		return nil, nil, err
	}
	stale, err := s.stale(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	// Before it uses up its token.
	if err := s.disconnected(s.opts.Etcd.Members(), stale); err != nil {
		return nil, nil, err
	}
	if r.Listens {
		reach, err = s.rehearse(ctx, r)
		return nil, reach, err
	}
	if err := s.entitled(ctx, who, r); err != nil {
		return nil, nil, err
	}
	if err := s.open(ctx); err != nil {
		return nil, nil, err
	}
	b := bundle{Settings: s.opts.Settings, Time: time.Now().UTC()}
	var newcomer uint64
	err = s.change(ctx, func(ctx context.Context, c *clientv3.Client) error {
		for _, id := range stale {
			if _, err := c.MemberRemove(ctx, id); err != nil && !errors.Is(err, rpctypes.ErrMemberNotFound) {
				return err
			}
		}
		var added *clientv3.MemberAddResponse
		err := whileUnhealthy(ctx, func() (err error) {
			added, err = c.MemberAddAsLearner(ctx, []string{r.PeerURL})
			return err
		})
		if err != nil {
			return err
		}
		newcomer = added.Member.ID
		var initial []string
		for _, m := range added.Members {
			name := m.Name
			if m.ID == added.Member.ID {
				name = r.Name
			}
			for _, u := range m.PeerURLs {
				initial = append(initial, name+"="+u)
			}
		}
		b.Initial = strings.Join(initial, ",")
		return nil
	})
	switch {
	case errors.Is(err, rpctypes.ErrTooManyLearners):
		return nil, nil, wait("another server is joining")
	case errors.Is(err, rpctypes.ErrUnhealthy), errors.Is(err, rpctypes.ErrMemberNotEnoughStarted):
		return nil, nil, wait("the servers that the cluster has are not all connected: kubelith etcd status shows which do not answer")
	case err != nil:
		return nil, nil, err
	}
	if err := s.learned(ctx, newcomer); err != nil {
		return nil, nil, err
	}
	s.opts.Log.Infof("%s %s (%s) joins: it copies the data", kind(etcd.Member{Witness: r.Witness}), r.Name, r.PeerURL)
	if err := s.giveKeys(&b, r); err != nil {
		return nil, nil, err
	}
	bundled, err = sealed.Seal(b, recipient)
	return bundled, nil, err
}

// giveKeys adds the keys that the machine needs to a bundle.
func (s *Server) giveKeys(b *bundle, r request) (err error) {
	if r.Witness {
		b.Keys, err = pki.Shared(s.opts.TLSDir, pki.ForWitness)
		return err
	}
	if b.Keys, err = pki.Shared(s.opts.TLSDir, pki.ForServer); err != nil {
		return err
	}
	b.Encryption, err = os.ReadFile(s.opts.EncryptionConfig)
	return err
}

// noMajority reports whether so many servers are missing that nothing can be written.
func (s *Server) noMajority() bool {
	members := s.opts.Etcd.Members()
	s.mu.Lock()
	defer s.mu.Unlock()
	there := 0
	for _, m := range members {
		if _, missing := s.missing[m.ID]; !m.Learner && !missing {
			there++
		}
	}
	votes, _ := count(members)
	return there < votes/2+1
}

// check refuses what can be refused without a request to another server or the API.
func (s *Server) check(r request) (age.Recipient, error) {
	if problems := validation.IsDNS1123Subdomain(r.Name); len(problems) > 0 {
		return nil, refuse("%q cannot be a server's name: use another --node-name", r.Name)
	}
	u, err := url.Parse(r.PeerURL)
	if err != nil || u.Scheme != "https" || u.Port() == "" || u.Path != "" || u.RawQuery != "" {
		return nil, refuse("%q is not the address of a server", r.PeerURL)
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err != nil || ip.IsLoopback() || ip.IsUnspecified() {
		return nil, refuse("the other servers cannot reach a server at %s: set --advertise-address", u.Hostname())
	}
	ours, err := utilversion.ParseGeneric(s.opts.Kubernetes)
	if err != nil {
		return nil, err
	}
	theirs, err := utilversion.ParseGeneric(r.Kubernetes)
	if err != nil {
		return nil, refuse("%q is not a version of Kubernetes", r.Kubernetes)
	}
	// API servers of one cluster differ by one minor release at most.
	// Source: https://kubernetes.io/releases/version-skew-policy/#kube-apiserver.
	switch newer := int(theirs.Minor()) - int(ours.Minor()); {
	case theirs.Major() != ours.Major(), newer > 0:
		return nil, refuse("this machine has Kubernetes %s, newer than the cluster's %s: "+
			"install the cluster's release here, and upgrade all servers later", r.Kubernetes, s.opts.Kubernetes)
	case newer < -1:
		return nil, refuse("this machine has Kubernetes %s, and the cluster %s: install the cluster's release here", r.Kubernetes, s.opts.Kubernetes)
	}
	recipient, err := age.ParseX25519Recipient(r.Recipient)
	if err != nil {
		return nil, refuse("the key for the answer cannot be read: %v", err)
	}
	return recipient, nil
}

// checkNode refuses the name of an agent and, for a witness, which is no node, that of any node.
func (s *Server) checkNode(ctx context.Context, r request) error {
	node, err := s.client.CoreV1().Nodes().Get(ctx, r.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if r.Witness {
		return refuse("the cluster has a node %s, and a witness is not a node: "+
			"use another --node-name, or remove the node with kubelith node remove %[1]s", r.Name)
	}
	if _, server := node.Labels[removed.ServerLabel]; !server {
		return refuse("the cluster has a node %s, which is not a server: "+
			"use another --node-name, or remove it with kubelith node remove %[1]s", r.Name)
	}
	return nil
}

// entitled uses up the token of a machine; a server of the cluster needs none, unless it was removed.
func (s *Server) entitled(ctx context.Context, who user.Info, r request) error {
	if slices.Contains(who.GetGroups(), names.Servers) {
		if who.GetName() != names.ServerUserPrefix+r.Name {
			return refuse("%s cannot join as %s", who.GetName(), r.Name)
		}
		if s.opts.Removed(r.Name, r.Joined) {
			return refuse("server %s was removed from the cluster: start it with --server and --token-file to join again, "+
				"with a token from kubelith token create --usages server", r.Name)
		}
		return nil
	}
	id, ok := strings.CutPrefix(who.GetName(), bootstrapapi.BootstrapUserPrefix)
	if !ok || !slices.Contains(who.GetGroups(), names.JoiningServers) {
		return refuse("%s cannot become a server: create a token with kubelith token create --usages server", who.GetName())
	}
	why, err := jointoken.Spend(ctx, s.client, id, strings.ToLower(r.Recipient))
	if err != nil {
		return err
	}
	if why != "" {
		return sealed.Refusal(why)
	}
	return nil
}
