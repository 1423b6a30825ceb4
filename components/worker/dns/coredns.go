package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	k8splugin "github.com/coredns/coredns/plugin/kubernetes"
	"github.com/miekg/dns"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nodeaddr"
)

// kubernetesPlugin wraps CoreDNS's kubernetes plugin: upstream's own set-up takes a client only from a kubeconfig and
// redirects klog of the whole process.
const kubernetesPlugin = "kubelith_kubernetes"

// registerPlugins registers our plugin with CoreDNS, and the order in which a query passes the plugins (upstream's).
// The registry is process-wide and accepts a name once: all runs use the client of a Server's first run.
func registerPlugins(client *rest.Config) {
	if slices.Contains(caddy.ListPlugins()["others"], "dns."+kubernetesPlugin) {
		return
	}
	dnsserver.Quiet = true
	dnsserver.Directives = []string{"bind", "errors", "log", sourcesPlugin, "loadbalance", "rewrite", "cache", "header", "hosts", kubernetesPlugin, "forward"}
	plugin.Register(sourcesPlugin, setupSources)
	plugin.Register(kubernetesPlugin, func(c *caddy.Controller) error { return setupKubernetes(c, client) })
}

// setupKubernetes does what the set-up of CoreDNS's kubernetes plugin does, with our client.
func setupKubernetes(c *caddy.Controller, client *rest.Config) error {
	c.Next() // to the directive's name
	k, err := k8splugin.ParseStanza(c)
	if err != nil {
		return plugin.Error(kubernetesPlugin, err)
	}
	k.ClientConfig = givenClient{client}
	// The shutdown callback ends the cache, not a context.
	onStart, onShut, err := k.InitKubeCache(context.Background())
	if err != nil {
		return plugin.Error(kubernetesPlugin, err)
	}
	c.OnStartup(onStart)
	c.OnShutdown(onShut)
	dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler {
		k.Next = next
		return k
	})
	return nil
}

// givenClient is a clientcmd.ClientConfig for an existing rest.Config.
type givenClient struct{ config *rest.Config }

var _ clientcmd.ClientConfig = givenClient{}

func (g givenClient) ClientConfig() (*rest.Config, error) { return rest.CopyConfig(g.config), nil }
func (g givenClient) RawConfig() (clientcmdapi.Config, error) {
	return clientcmdapi.Config{}, errors.New("there is no kubeconfig")
}
func (g givenClient) Namespace() (string, bool, error)     { return "default", false, nil }
func (g givenClient) ConfigAccess() clientcmd.ConfigAccess { return nil }

// instance is one running CoreDNS.
type instance struct {
	caddy *caddy.Instance
	settings
}

// settings are those whose change replaces a running CoreDNS.
type settings struct {
	ips       []net.IP // of the node
	upstreams []string
	custom    custom
}

func (s settings) equal(other settings) bool {
	return nodeaddr.Same(s.ips, other.ips) && slices.Equal(s.upstreams, other.upstreams) && s.custom.text == other.custom.text
}

// start runs CoreDNS; it returns when the sockets are open and the cluster's Services are known. A user's configuration
// that makes a plugin of CoreDNS panic is an error like any other.
func start(c corefile, with settings) (running *instance, err error) {
	defer func() {
		if r := recover(); r != nil {
			running, err = nil, fmt.Errorf("CoreDNS: %v", r)
		}
	}()
	text, err := c.render()
	if err != nil {
		return nil, err
	}
	i, err := caddy.Start(caddy.CaddyfileInput{Filepath: "Corefile", Contents: text, ServerTypeName: "dns"})
	if err != nil {
		if i != nil {
			i.ShutdownCallbacks()
		}
		return nil, err
	}
	return &instance{caddy: i, settings: with}, nil
}

// stop ends all listeners and watches of the instance, after it has answered queries in flight.
func (i *instance) stop() {
	_ = i.caddy.Stop() // it logs its errors and returns none
	_ = i.caddy.ShutdownCallbacks()
}

// serving is the instance that answers queries during a run.
type serving struct {
	mu       sync.Mutex
	instance *instance
	ended    bool
}

// get returns the instance.
func (s *serving) get() *instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.instance
}

// set replaces the instance with one that is already started.
func (s *serving) set(next *instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended && next != s.instance {
		next.stop()
	}
	s.instance = next
}

// endWith ends the instance when the run ends for another one, even if the run hangs: the next one needs the port. The
// returned function is called when the run ends for any reason, and leaves the instance alone when the whole process
// stops.
func (s *serving) endWith(ctx context.Context) (wait func()) {
	runEnds, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-runEnds:
		case <-ctx.Done():
		}
		if ctx.Err() == nil || lifecycle.Restarting(ctx) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.ended = true
			s.instance.stop()
		}
	}()
	return func() { close(runEnds); <-done }
}

// portFree returns an error if our port is in use: CoreDNS opens its sockets with SO_REUSEPORT, so that two servers of
// one user would silently share the queries instead of failing.
func portFree(ips []net.IP) error {
	for _, ip := range bindAddresses(ips) {
		addr := net.JoinHostPort(ip, strconv.Itoa(names.DNSPort))
		udp, err := net.ListenPacket("udp", addr)
		if err != nil {
			return notFree(addr+"/udp", err)
		}
		udp.Close()
		tcp, err := net.Listen("tcp", addr)
		if err != nil {
			return notFree(addr+"/tcp", err)
		}
		tcp.Close()
	}
	return nil
}

// notFree adds what to do.
func notFree(addr string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("listen on %s: %w: stop the program that has the port (`ss -lnp` shows it), or use --disable dns", addr, err)
	}
	return fmt.Errorf("listen on %s: %w: check --node-ip", addr, err)
}

// answers sends our own server one query; any answer will do.
func answers(ctx context.Context, domain string) error {
	query := new(dns.Msg)
	query.SetQuestion(dns.Fqdn("kubernetes.default.svc."+domain), dns.TypeA)
	client := &dns.Client{Timeout: 5 * time.Second}
	if _, _, err := client.ExchangeContext(ctx, query, net.JoinHostPort("127.0.0.1", strconv.Itoa(names.DNSPort))); err != nil {
		return fmt.Errorf("CoreDNS does not answer: %w", err)
	}
	return nil
}

// waitForAnswer queries our own server for the Service of the apiserver until there is an answer or ctx ends.
func waitForAnswer(ctx context.Context, domain string) {
	server := net.JoinHostPort("127.0.0.1", strconv.Itoa(names.DNSPort))
	name := dns.Fqdn("kubernetes.default.svc." + domain)
	client := &dns.Client{Timeout: time.Second}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA} {
			query := new(dns.Msg)
			query.SetQuestion(name, kind)
			if reply, _, err := client.ExchangeContext(ctx, query, server); err == nil && len(reply.Answer) > 0 {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
