// Package join makes this machine a node of a cluster whose server runs on another machine, and keeps the connection to
// the API.
//
//	Find ----> Cluster --Join--> Connection --Run--> (component "connection")
//
// Find takes the cluster from the files of an earlier join, or finds it with a token (base/jointoken): the public
// cluster-info has the cluster's CA, which must be the one that the token names. Only then is the token sent, over a
// connection that the CA verifies. Find writes nothing. Join requests the node's certificate with a key that stays on
// this machine (enroll.go) and stores what a later start needs (store.go). A Connection has the client configurations
// of this process (transport.go, balancer.go), renews the certificate, and watches which servers exist.
//
// The package does not decide which certificates are signed (components/cluster/approver does, on the server), knows
// nothing about the kubelet, which manages its own serving certificate, and opens no port.
package join

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/jointoken"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
)

const (
	// findTimeout bounds the first join's requests before the certificate request.
	findTimeout = 30 * time.Second
	// refreshTimeout is how long a later start waits for a server that may be down.
	refreshTimeout = 5 * time.Second
)

// Options configures which cluster to join, and as what.
type Options struct {
	// DataDir is the data directory; the files are in its directory "agent".
	DataDir string
	// Server is https://HOST:PORT.
	Server string
	// Token is required for a machine that has not joined, or whose certificate has expired; otherwise it may be empty.
	Token string
	// NodeName is the name under which the machine joins.
	NodeName string
	// Version of Kubernetes in this program, for example v1.37.1.
	Version string
	// Settings is the ConfigMap with the cluster's settings, which this package stores and passes on.
	Settings ConfigMapKey
	// Log receives what a user should know.
	Log logrus.FieldLogger
}

// ConfigMapKey is a key of a ConfigMap.
type ConfigMapKey struct{ Namespace, Name, Key string }

// Cluster is one that this machine is a node of, or can join.
type Cluster struct {
	opts     Options
	store    store
	token    *jointoken.Token // nil when this machine has a valid certificate
	settings []byte
	way      *transport
}

// IsAgent reports whether the data directory is that of an agent that has joined.
func IsAgent(dataDir string) bool { return store{dataDir}.exists(store{dataDir}.clientCert()) }

// PKI is the directory of the certificates in a data directory: that of the cluster's CA, and the node's own.
func PKI(dataDir string) string { return store{dataDir}.pki() }

// CACert is the path of the certificate of the cluster's CA, which exists after Join.
func CACert(dataDir string) string { return store{dataDir}.ca() }

// NodeConfig is a client of the API for commands on the machine of an agent that has joined: it acts as the node.
func NodeConfig(dataDir, server string) *rest.Config {
	s := store{dataDir}
	return &rest.Config{Host: server, TLSClientConfig: rest.TLSClientConfig{CAFile: s.ca(), CertFile: s.clientCert(), KeyFile: s.clientCert()}}
}

// Servers are the addresses at which an agent that has joined knows the API, https://HOST:PORT, the given one first.
func Servers(dataDir, given string) []string {
	all := []string{given}
	if known, err := (store{dataDir}).load(); err == nil && known != nil {
		for _, server := range known.servers { // HOST:PORT
			if address := "https://" + server; !slices.Contains(all, address) {
				all = append(all, address)
			}
		}
	}
	return all
}

// Certificates returns those of an agent's data directory, without writing anything; with an error those that can be
// read. It returns none for a machine that has not joined.
func Certificates(dataDir string) ([]pki.Certificate, error) {
	s := store{dataDir}
	if !IsAgent(dataDir) {
		return nil, nil
	}
	var out []pki.Certificate
	var errs []error
	for _, f := range []struct{ path, use string }{
		{s.ca(), "verifies the API servers"},
		{s.clientCert(), "this node calls the API"},
		{s.kubeletCert(), "serves the kubelet of this node"},
	} {
		if f.path == s.kubeletCert() && !s.exists(f.path) { // it is requested after the start
			continue
		}
		all, err := pki.Read(f.path, f.use)
		out, errs = append(out, all...), append(errs, err)
	}
	return out, errors.Join(errs...)
}

// Find returns the cluster. It writes nothing. Its errors are one line and say what to do.
func Find(ctx context.Context, o Options) (*Cluster, error) {
	c := &Cluster{opts: o, store: store{o.DataDir}}
	if c.store.exists(filepath.Join(o.DataDir, datadir.Member)) {
		return nil, fmt.Errorf("%s has a server's data: an agent needs its own directory, use another --data-dir", o.DataDir)
	}
	var given *jointoken.Token
	if o.Token != "" {
		t, err := jointoken.Parse(o.Token)
		if err != nil {
			return nil, err
		}
		given = &t
	}
	known, err := c.store.load()
	if err != nil {
		return nil, err
	}
	if known == nil {
		if given == nil {
			return nil, errors.New("a token is needed to join: create one with kubelith token create on the server, and pass it with --token-file or --token")
		}
		return c, c.discover(ctx, given)
	}
	if err := c.fits(known, given); err != nil {
		return nil, err
	}
	if given != nil && slices.Contains(known.former, given.CAHash) { // it was of use once
		given = nil
	}
	if now := time.Now(); now.After(known.cert.Leaf.NotAfter) {
		if given == nil {
			return nil, fmt.Errorf("the node's certificate expired at %s (the clock says %s): join again with a token, created with kubelith token create on the server",
				known.cert.Leaf.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
		}
		return c, c.discover(ctx, given)
	}
	return c, c.refresh(ctx, known, given)
}

// fits checks the stored cluster against the options.
func (c *Cluster) fits(known *membership, given *jointoken.Token) error {
	ofToken := func(ca *x509.Certificate) bool { return jointoken.SPKIHash(ca) == given.CAHash }
	if given != nil && !slices.ContainsFunc(known.cas, ofToken) && !slices.Contains(known.former, given.CAHash) {
		return fmt.Errorf("%s belongs to a node of another cluster than the token: run kubelith reset --data first, or use another --data-dir", c.opts.DataDir)
	}
	if name := known.cert.Leaf.Subject.CommonName; name != commonName(c.opts.NodeName) {
		return fmt.Errorf("this machine has joined as %s: use --node-name %[1]s, or run kubelith reset --data to join under another name", nodeNameOf(name))
	}
	return nil
}

// Settings are the cluster's, as published by its server.
func (c *Cluster) Settings() []byte { return c.settings }

// discover finds the cluster with a token. If this machine refuses the server, it reports that to the server.
func (c *Cluster) discover(ctx context.Context, t *jointoken.Token) error {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	err := c.contact(ctx, t)
	jointoken.ReportRefusal(ctx, c.opts.Server, err)
	return err
}

// contact fetches what the server publishes, and checks that it is the server that the token names.
func (c *Cluster) contact(ctx context.Context, t *jointoken.Token) error {
	ca, doubt, err := jointoken.Discover(ctx, c.opts.Server, *t)
	if err != nil {
		return err
	}
	c.token = t
	c.way = newTransport(newBalancer(host(c.opts.Server), nil, c.opts.Log), []*x509.Certificate{ca}, nil)
	client, err := c.bootstrapClient()
	if err != nil {
		return err
	}
	if err := c.checkVersion(client, doubt); err != nil {
		return err
	}
	c.settings, err = c.readSettings(ctx, client)
	return err
}

// bootstrapClient authenticates with the token.
func (c *Cluster) bootstrapClient() (kubernetes.Interface, error) {
	config := restConfig(c.way, "join")
	config.BearerToken = c.token.Bearer()
	return kubernetes.NewForConfig(config)
}

// checkVersion refuses a server that is older than this program: Kubernetes allows no kubelet that is newer than the
// API. It is also the first use of the token, so that the server logs a refused one; doubt is the reason.
func (c *Cluster) checkVersion(client kubernetes.Interface, doubt error) error {
	server, err := client.Discovery().ServerVersion()
	if apierrors.IsUnauthorized(err) && doubt != nil {
		return doubt
	}
	if apierrors.IsUnauthorized(err) {
		return fmt.Errorf("the server refuses token %s: it has just expired, or was created without the usage authentication", c.token.ID)
	}
	if err != nil {
		return fmt.Errorf("read the version of %s: %w", c.opts.Server, err)
	}
	newer, err := newerMinor(c.opts.Version, server.GitVersion)
	if err != nil {
		return err
	}
	if newer {
		why := fmt.Errorf("this kubelith has Kubernetes %s, but the server has %s: "+
			"upgrade the server first, or install the server's version here", c.opts.Version, server.GitVersion)
		return jointoken.NewRefusal(why, names.RefusedVersion)
	}
	return nil
}

// newerMinor reports whether a has a newer minor version than b.
func newerMinor(a, b string) (bool, error) {
	left, err := utilversion.ParseGeneric(a)
	if err != nil {
		return false, fmt.Errorf("version of this program: %w", err)
	}
	right, err := utilversion.ParseGeneric(b)
	if err != nil {
		return false, fmt.Errorf("version of the server: %w", err)
	}
	if left.Major() != right.Major() {
		return left.Major() > right.Major(), nil
	}
	return left.Minor() > right.Minor(), nil
}

func (c *Cluster) readSettings(ctx context.Context, client kubernetes.Interface) ([]byte, error) {
	at := c.opts.Settings
	object, err := client.CoreV1().ConfigMaps(at.Namespace).Get(ctx, at.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("the server has no settings for agents (ConfigMap %s/%s): wait until it is ready, or upgrade it", at.Namespace, at.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("read the cluster's settings: %w", err)
	}
	text, ok := object.Data[at.Key]
	if !ok {
		return nil, fmt.Errorf("the server's settings for agents (ConfigMap %s/%s) lack %s: restart the server, which writes them", at.Namespace, at.Name, at.Key)
	}
	return []byte(text), nil
}

// refresh reads the newer settings from the server if it answers, otherwise it uses the stored ones: a node works
// without the server. A removed node joins again if it was given a token.
func (c *Cluster) refresh(parent context.Context, known *membership, given *jointoken.Token) error {
	c.settings = known.settings
	c.way = newTransport(newBalancer(host(c.opts.Server), known.servers, c.opts.Log), known.cas, known.cert)
	ctx, cancel := context.WithTimeout(parent, refreshTimeout)
	defer cancel()
	config := restConfig(c.way, "join")
	config.Timeout = refreshTimeout
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	settings, err := c.readSettings(ctx, client)
	var foreign *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	switch {
	case err == nil:
		c.settings = settings
		if server, err := client.Discovery().ServerVersion(); err == nil {
			if newer, err := newerMinor(c.opts.Version, server.GitVersion); err == nil && newer {
				c.opts.Log.Warnf("this kubelith has Kubernetes %s, but the server has %s: upgrade the server", c.opts.Version, server.GitVersion)
			}
		}
	case apierrors.IsUnauthorized(err) && given != nil:
		c.way.close()
		return c.discover(parent, given)
	case apierrors.IsUnauthorized(err):
		c.opts.Log.Warn(shutOut)
	case errors.As(err, &foreign) && errors.As(err, &unknown):
		return fmt.Errorf("the server %s is not in the cluster that this machine joined: set --server to one that is, "+
			"or run kubelith reset --data to join another cluster, or this one if it has replaced its CA", c.opts.Server)
	default:
		c.opts.Log.Warnf("the server does not answer; the node starts with its stored settings: %v", err)
	}
	return nil
}

// shutOut is logged by a node that the server refuses.
const shutOut = "the server refuses this node's certificate: if the node was removed from the cluster, " +
	"start its agent with a token to join again, created with kubelith token create on the server"

// host returns the HOST:PORT of a server's URL, whose format the configuration has checked.
func host(server string) string {
	u, err := url.Parse(server)
	if err != nil {
		return server
	}
	return u.Host
}
