package join

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate"

	"kubelith.io/kubelith/base/informers"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/renewal"
)

const (
	// retireEvery is how often connections of older certificates, and the certificate itself, are checked.
	retireEvery = 10 * time.Second
	// settleFor is how long new settings must stand before this agent stores them, or restarts for them. The server
	// reverts at once what it has not written itself (components/cluster/token).
	settleFor = 5 * time.Second
	// logEvery is how often a refusal of this node by the server is logged.
	logEvery = 10 * time.Minute
	// apiService is the name, in the namespace default, of the Service and the EndpointSlice of the API servers.
	apiService = "kubernetes"
)

// Connection is an agent's connection to the API: the component "connection".
type Connection struct {
	opts     Options
	store    store
	way      *transport
	settings []byte
	// changed compares the cluster's settings; see OnChange.
	changed func(old, current []byte) string
	// learned receives the cluster's settings when they change; it holds the latest.
	received chan []byte
	settle   time.Duration // see settleFor
	manager  atomic.Pointer[renewal.Manager]
}

var (
	_ lifecycle.Component = (*Connection)(nil)
	_ lifecycle.Provider  = (*Connection)(nil)
)

func newConnection(c *Cluster) *Connection {
	return &Connection{opts: c.opts, store: c.store, way: c.way, settings: c.settings, received: make(chan []byte, 1), settle: settleFor}
}

// OnChange sets the function that compares the settings of this process with new ones. When it returns a text, Run ends
// with an error that begins with it, so that the service manager starts the agent with the new settings.
func (c *Connection) OnChange(compare func(old, current []byte) string) { c.changed = compare }

// Config returns a client configuration that acts as this node, for the component with that name.
func (c *Connection) Config(component string) *rest.Config { return restConfig(c.way, component) }

// Disconnect is for a client that gets no answer: it closes the silent connections. The next request opens another,
// perhaps to another server.
func (c *Connection) Disconnect() { c.way.balancer.closeSilent(silentFor) }

// Servers returns the addresses, HOST:PORT, of the servers that the cluster lists, and the one that the user has given.
func (c *Connection) Servers() (listed []string, given string) { return c.way.balancer.known() }

// Dial connects to one server with the node's newest certificate, for HTTP/1.1. Unlike the connections of Config, this
// one is the caller's to end.
func (c *Connection) Dial(ctx context.Context, server string) (net.Conn, error) {
	return c.way.dialOne(ctx, server)
}

// Trust sets the CAs of the API, in PEM, for new connections and later starts.
func (c *Connection) Trust(cas []byte) error {
	parsed, err := cert.ParseCertsPEM(cas)
	if err != nil {
		return fmt.Errorf("the CAs of the API: %w", err)
	}
	before := c.way.trusted()
	if slices.EqualFunc(parsed, before, (*x509.Certificate).Equal) {
		return nil
	}
	if err := c.store.trust(cas, before); err != nil {
		return err
	}
	c.way.trust(parsed)
	return nil
}

// Certificate returns the node's; nil before Run.
func (c *Connection) Certificate() *x509.Certificate {
	if m := c.manager.Load(); m != nil {
		return m.Leaf()
	}
	return nil
}

// Renew requests another certificate of the node, and waits until it is in use.
func (c *Connection) Renew(ctx context.Context) error {
	m := c.manager.Load()
	if m == nil {
		return errors.New("the connection to the API has not started yet")
	}
	return m.Renew(ctx)
}

// Name implements lifecycle.Component.
func (c *Connection) Name() string { return "connection" }

// Needs implements lifecycle.Component.
func (c *Connection) Needs() []string { return nil }

// Provides implements lifecycle.Provider: other components of an agent reach the API server over the connection.
func (c *Connection) Provides() string { return "apiserver" }

// Run implements lifecycle.Component. It is ready at once: an agent starts with or without the server.
func (c *Connection) Run(ctx context.Context, ready func()) error {
	defer c.way.close()
	client, err := kubernetes.NewForConfig(c.Config("connection"))
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	manager, err := c.certificates(ctx, client)
	if err != nil {
		return err
	}
	c.manager.Store(manager)
	manager.Start() // until ctx ends
	defer manager.Stop()
	defer c.watch(ctx, client)()
	ready()
	tick := time.NewTicker(retireEvery)
	defer tick.Stop()
	var newest []byte
	var logged time.Time // when a refusal by the server was last logged
	settled := time.NewTimer(c.settle)
	defer settled.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case newest = <-c.received:
			settled.Reset(c.settle)
			continue
		case <-settled.C:
			if why := c.adopt(newest); why != "" {
				return fmt.Errorf("%s: the agent has to restart", why)
			}
			continue
		case <-tick.C:
		}
		c.way.retire()
		if c.way.refused.Swap(false) && time.Since(logged) > logEvery {
			c.opts.Log.Warn(shutOut)
			logged = time.Now()
		}
		if manager.Current() == nil {
			return errors.New("the node's certificate expired before a server renewed it: " +
				"start the agent with a token, created with kubelith token create on the server")
		}
	}
}

// certificates renews the node's certificate when most of its life is over.
func (c *Connection) certificates(ctx context.Context, client kubernetes.Interface) (*renewal.Manager, error) {
	store, err := c.store.certificates(func(next *tls.Certificate) {
		c.way.use(next)
		c.opts.Log.Infof("the node has a new certificate, valid until %s", next.Leaf.NotAfter.UTC().Format(time.RFC3339))
	})
	if err != nil {
		return nil, err
	}
	manager, err := renewal.New(certificate.Config{
		ClientsetFn:      func(*tls.Certificate) (kubernetes.Interface, error) { return client, nil },
		Template:         &x509.CertificateRequest{Subject: subject(c.opts.NodeName)},
		SignerName:       certificatesv1.KubeAPIServerClientKubeletSignerName,
		GetUsages:        certificate.DefaultKubeletClientGetUsages,
		CertificateStore: store,
		Name:             "client",
		Ctx:              &ctx,
	})
	if err != nil {
		return nil, fmt.Errorf("renew the node's certificate: %w", err)
	}
	return manager, nil
}

// watch follows the servers and the settings of the cluster. The returned function ends it and waits.
func (c *Connection) watch(ctx context.Context, client kubernetes.Interface) (stop func()) {
	servers := informers.One(client, metav1.NamespaceDefault, apiService)
	settings := informers.One(client, c.opts.Settings.Namespace, c.opts.Settings.Name)
	// Adding a handler fails only on a stopped informer.
	_, _ = servers.Discovery().V1().EndpointSlices().Informer().AddEventHandler(follow(func(slice *discoveryv1.EndpointSlice) { c.receiveServers(slice) }))
	_, _ = settings.Core().V1().ConfigMaps().Informer().AddEventHandler(follow(func(object *corev1.ConfigMap) { c.receiveSettings(object) }))
	return informers.Start(ctx, servers, settings)
}

// follow calls see with each state of an object except its deletion: the last state stays valid.
func follow[T any](see func(T)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { see(object.(T)) },
		UpdateFunc: func(_, object any) { see(object.(T)) },
	}
}

// receiveServers passes the addresses of the API servers to the balancer, and stores them for the next start.
func (c *Connection) receiveServers(slice *discoveryv1.EndpointSlice) {
	servers := addresses(slice)
	if !c.way.balancer.set(servers) {
		return
	}
	text, err := json.Marshal(servers)
	if err == nil {
		err = c.store.replace(c.store.servers(), append(text, '\n'))
	}
	if err != nil {
		c.opts.Log.Warnf("cannot store the addresses of the servers: %v", err)
	}
}

// addresses returns those of the slice, HOST:PORT, in a stable order.
func addresses(slice *discoveryv1.EndpointSlice) []string {
	var out []string
	for _, port := range slice.Ports {
		if port.Port == nil {
			continue
		}
		for _, endpoint := range slice.Endpoints {
			if ready := endpoint.Conditions.Ready; ready != nil && !*ready {
				continue
			}
			for _, ip := range endpoint.Addresses {
				out = append(out, net.JoinHostPort(ip, strconv.Itoa(int(*port.Port))))
			}
		}
	}
	slices.Sort(out)
	return out
}

// receiveSettings passes the cluster's settings to Run.
func (c *Connection) receiveSettings(object *corev1.ConfigMap) {
	text, ok := object.Data[c.opts.Settings.Key]
	if !ok {
		return
	}
	select {
	case <-c.received: // not read yet: replace them
	default:
	}
	c.received <- []byte(text)
}

// adopt stores the cluster's settings for the next start, and returns the reason if this process must restart for them.
// current is nil until the server has sent them.
func (c *Connection) adopt(current []byte) (why string) {
	if current == nil {
		return ""
	}
	if err := c.store.replace(c.store.settings(), current); err != nil {
		c.opts.Log.Warnf("cannot store the cluster's settings: %v", err)
	}
	if c.changed == nil {
		return ""
	}
	return c.changed(c.settings, current)
}
