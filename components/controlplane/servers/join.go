package servers

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"filippo.io/age"
	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"kubelith.io/kubelith/base/atomicfile"
	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/jointoken"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/base/sealed"
)

const (
	// findTimeout bounds what precedes the join.
	findTimeout = 30 * time.Second
	// admitTimeout bounds one request to join, and joinTimeout all of them: other servers may be joining.
	admitTimeout = 30 * time.Second
	joinTimeout  = 10 * time.Minute
	// retryEvery is the time between two requests.
	retryEvery = time.Second
	// remindEvery is how often a join logs what it waits for.
	remindEvery = 30 * time.Second
	// maxAnswer bounds an answer, in bytes.
	maxAnswer = 4 << 20
)

// joinByToken is the remedy for a server whose own credentials do not admit it.
const joinByToken = "start it with --server and --token-file, with a token from kubelith token create --usages server"

// FormerDir is below a data directory, and has the data of etcd from before this server was removed from its cluster.
const FormerDir = "server/former"

// Newcomer is this machine, which is about to join the servers of a cluster.
type Newcomer struct {
	// Name, PeerURL and Kubernetes are as in the request.
	Name, PeerURL, Kubernetes string
	// DataDir is the data directory; TLSDir and EncryptionConfig receive the keys.
	DataDir, TLSDir, EncryptionConfig string
	// Witness means that it will run etcd and nothing else: it receives the keys for that only. It comes back with a
	// token only: it has no key to sign itself an identity with.
	Witness bool
	Log     logrus.FieldLogger

	// Settings are the cluster's, a config.ClusterInfo in JSON. Find sets them.
	Settings []byte

	ca      *x509.Certificate
	servers []string // URLs; one of them has to answer
	token   *jointoken.Token
	former  *Membership // of a server that was in the cluster
}

// Find finds the cluster by a token. It writes nothing, and sends the token only to the cluster that it names.
func (n *Newcomer) Find(ctx context.Context, server, tokenText string) error {
	t, err := jointoken.Parse(tokenText)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	ca, doubt, err := jointoken.Discover(ctx, server, t)
	if err != nil {
		return err
	}
	if doubt != nil {
		return doubt
	}
	n.ca, n.servers, n.token, n.former = ca, []string{strings.TrimSuffix(server, "/")}, &t, nil
	n.Settings, err = n.readSettings(ctx, n.servers[0])
	return err
}

// Return prepares a server that was in the cluster, and whose data is gone or useless, to come back: at the servers
// that it knew, and at the given one, if any.
func (n *Newcomer) Return(former *Membership, server string) {
	n.former, n.servers, n.token = former, slices.Clone(former.Servers), nil
	if server = strings.TrimSuffix(server, "/"); server != "" && !slices.Contains(n.servers, server) {
		n.servers = append(n.servers, server)
	}
}

// client verifies the server as one of the cluster, and has this machine's credentials.
func (n *Newcomer) client() (*http.Client, error) {
	var to *http.Transport
	if n.former != nil {
		cert, roots, err := pki.ServerClient(n.TLSDir, n.Name, time.Now())
		if err != nil { // the files may be those of two CAs, when the power failed: a token helps
			return nil, sealed.Refusal(err.Error())
		}
		to = client.ServerTransport(roots, cert)
	} else {
		to = client.ServerTransport(n.roots())
	}
	return &http.Client{
		Timeout:       admitTimeout,
		Transport:     to,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// roots has the CA that the token names.
func (n *Newcomer) roots() *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AddCert(n.ca)
	return roots
}

func (n *Newcomer) readSettings(ctx context.Context, server string) ([]byte, error) {
	cs, err := kubernetes.NewForConfig(&rest.Config{
		Host:      server,
		Timeout:   findTimeout,
		Transport: transport.NewBearerAuthRoundTripper(n.token.Bearer(), client.ServerTransport(n.roots())), // client-go adds no token to another's transport
	})
	if err != nil {
		return nil, err
	}
	object, err := cs.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, names.ClusterInfo, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the cluster's settings from %s: %w: a server joins with a token from kubelith token create --usages server", server, err)
	}
	return []byte(object.Data[names.ClusterInfoKey]), nil
}

// Join asks the servers to admit this machine, waits while others join, and places what a server needs in the data
// directory. Data of an earlier membership is moved aside. It returns the members that etcd begins with; a machine that
// dies before etcd has data joins again. After a Refusal nothing has changed.
func (n *Newcomer) Join(ctx context.Context) (m *Membership, initial string, err error) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, "", err
	}
	if len(n.servers) == 0 {
		return nil, "", fmt.Errorf("this server cannot join the cluster again: %w",
			sealed.Refusal("it does not know the addresses of the others: "+joinByToken))
	}
	client, err := n.client()
	if err != nil {
		return nil, "", err
	}
	port, err := acceptAt(ctx, n.PeerURL) // the servers try whether they reach it
	if err != nil {
		return nil, "", fmt.Errorf("cannot listen for the other servers: %w: stop what uses port %d", err, names.PeerPort)
	}
	defer port.Close()
	r := request{Name: n.Name, PeerURL: n.PeerURL, Recipient: identity.Recipient().String(), Kubernetes: n.Kubernetes, Listens: true, Witness: n.Witness}
	if n.former != nil {
		r.Joined = n.former.Joined
	}
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	var reminded time.Time
	var waited error // what the servers let it wait for
	for {
		a, err := n.ask(ctx, client, r)
		if err == nil && len(a.Sealed) > 0 {
			return n.place(a.Sealed, identity)
		}
		if err == nil {
			if n.Witness && !a.Witnesses {
				return nil, "", errors.New("the cluster's servers do not support witnesses: upgrade them first")
			}
			if err := reachAll(ctx, a.Reach); err != nil {
				return nil, "", err
			}
			r.Listens = false
			continue
		}
		var no sealed.Refusal
		if errors.As(err, &no) && waited != nil && slices.ContainsFunc(n.servers, func(server string) bool { return no == noAccess(server) }) {
			no = sealed.Refusal(fmt.Sprintf("its token became invalid while it waited (%v): "+
				"create another with kubelith token create --usages server", waited))
		}
		if no != "" {
			return nil, "", fmt.Errorf("the cluster refuses this server: %w", no)
		}
		var later wait
		if errors.As(err, &later) {
			waited = later
		}
		if time.Since(reminded) > remindEvery {
			reminded = time.Now()
			n.Log.Infof("waiting to join the cluster's servers: %v", err)
		}
		if !reconcile.Sleep(ctx, retryEvery) {
			return nil, "", fmt.Errorf("cannot join the cluster's servers: %w", err)
		}
	}
}

// ask tries each server until one gives an answer that counts.
func (n *Newcomer) ask(ctx context.Context, client *http.Client, r request) (*answer, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	var why error // what a server says, rather than that another one does not answer
	waits := false
	for _, server := range n.servers {
		var no sealed.Refusal
		var later wait
		a, err := n.askOne(ctx, client, server, body)
		switch {
		case err == nil, errors.As(err, &no) && !waits: // it may be of another cluster
			return a, err
		case errors.As(err, &later):
			why, waits = err, true
		case why == nil:
			why = err
		}
	}
	return nil, why
}

func (n *Newcomer) askOne(ctx context.Context, client *http.Client, server string, body []byte) (*answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, server+names.ServersPath, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if n.token != nil {
		req.Header.Set("Authorization", "Bearer "+n.token.Bearer())
	}
	response, err := client.Do(req)
	if err != nil {
		var why *url.Error
		if errors.As(err, &why) {
			err = why.Err
		}
		var unknown x509.UnknownAuthorityError
		if n.former != nil && errors.As(err, &unknown) {
			return nil, sealed.Refusal("the cluster has replaced its CA while this server was away: " + joinByToken)
		}
		return nil, fmt.Errorf("the server %s does not answer (%w)", server, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	var a answer
	switch err := json.Unmarshal(text, &a); {
	case err == nil && a.Refused != "":
		return nil, sealed.Refusal(a.Refused)
	case err == nil && a.Wait != "":
		return nil, wait(a.Wait)
	case err == nil && len(a.Sealed)+len(a.Reach) > 0:
		return &a, nil
	case response.StatusCode == http.StatusNotFound:
		return nil, sealed.Refusal(fmt.Sprintf("the server %s does not support several servers: upgrade it", server))
	case response.StatusCode == http.StatusUnauthorized || response.StatusCode == http.StatusForbidden:
		return nil, noAccess(server)
	}
	return nil, fmt.Errorf("the server %s is not ready (HTTP %d)", server, response.StatusCode)
}

// noAccess is the refusal of the API: the token is for agents, or has ended.
func noAccess(server string) sealed.Refusal {
	return sealed.Refusal(fmt.Sprintf("the server %s does not let this machine join as a server: use a token from kubelith token create --usages server", server))
}

// openingTime is how long a server may refuse connections because its etcd opens just now, for another machine.
const openingTime = 5 * time.Second

// reachAll returns which server this machine cannot reach.
func reachAll(ctx context.Context, servers map[string]string) error {
	until := time.Now().Add(openingTime)
	for name, peerURL := range servers {
		err := dial(ctx, peerURL)
		for errors.Is(err, syscall.ECONNREFUSED) && time.Now().Before(until) && ctx.Err() == nil {
			select {
			case <-time.After(retryEvery / 2):
				err = dial(ctx, peerURL)
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		if err != nil {
			return fmt.Errorf("this machine cannot reach the etcd of server %s at %s (%w): open its port %d/tcp for the servers", name, peerURL, err, names.PeerPort)
		}
	}
	return nil
}

// place decrypts the bundle and stores it; the membership comes last, with it this machine is a server of the cluster.
func (n *Newcomer) place(sealed []byte, identity age.Identity) (*Membership, string, error) {
	plain, err := age.Decrypt(bytes.NewReader(sealed), identity)
	if err != nil {
		return nil, "", fmt.Errorf("decrypt the cluster's keys: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(plain, maxAnswer))
	if err != nil {
		return nil, "", fmt.Errorf("decrypt the cluster's keys: %w", err)
	}
	var b bundle
	if err := json.Unmarshal(data, &b); err != nil {
		return nil, "", fmt.Errorf("the cluster's keys cannot be decoded: %w", err)
	}
	if err := n.moveAside(); err != nil {
		return nil, "", err
	}
	if err := n.placeKeys(&b); err != nil {
		return nil, "", err
	}
	m := &Membership{PeerURL: n.PeerURL, Joined: b.Time, Settings: b.Settings, Servers: n.servers, Witness: n.Witness}
	return m, b.Initial, m.Save(n.DataDir)
}

func (n *Newcomer) placeKeys(b *bundle) error {
	if n.Witness {
		return pki.Place(n.TLSDir, b.Keys, pki.ForWitness)
	}
	if err := pki.Place(n.TLSDir, b.Keys, pki.ForServer); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(n.EncryptionConfig), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(n.EncryptionConfig, b.Encryption)
}

// moveAside keeps the data of an earlier membership; etcd must not find it. Where server/db is a disk of its own, the
// data stays on it.
func (n *Newcomer) moveAside() error {
	db := filepath.Join(n.DataDir, datadir.Etcd)
	if _, err := os.Lstat(filepath.Join(db, memberDir)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	name := "db-" + time.Now().UTC().Format("20060102T150405Z")
	to := filepath.Join(n.DataDir, FormerDir, name)
	err := moveMember(db, to)
	if errors.Is(err, syscall.EXDEV) {
		if err := os.Remove(to); err != nil {
			return err
		}
		to = filepath.Join(db, "former", name)
		err = moveMember(db, to)
	}
	if err != nil {
		return err
	}
	n.Log.Warnf("moved the former data of this server to %s", to)
	return atomicfile.SyncDir(db)
}

// memberDir is below etcd's data directory, and has all its data.
const memberDir = "member"

func moveMember(db, to string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	return os.Rename(filepath.Join(db, memberDir), filepath.Join(to, memberDir))
}
