package join

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// writePair replaces the certificate of a node.
func writePair(t *testing.T, link string, pair *tls.Certificate) {
	t.Helper()
	path, err := filepath.EvalSymlinks(link)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// One watch spans two rotations of the certificate; requests use the new one at once, and the connections of the old
// one go when the watch has ended.
func TestRotationKeepsWatch(t *testing.T) {
	ca := newAuthority(t)
	a := newAPI(t, ca)
	c := joined(t, a.options(t))
	client, err := kubernetes.NewForConfig(c.Config("test"))
	if err != nil {
		t.Fatal(err)
	}
	watch, err := client.DiscoveryV1().EndpointSlices("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	old := c.way.current.Load()
	for _, name := range []string{"second", "third"} {
		c.way.use(ca.pair(t, subject(name), time.Now().Add(time.Hour)))
		if _, err := client.CoreV1().ConfigMaps("ns").Get(t.Context(), "settings", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if requests := a.requests(); requests[len(requests)-1] != "system:node:"+name+" GET /api/v1/namespaces/ns/configmaps/settings" {
			t.Errorf("after the rotation the request was %q", requests[len(requests)-1])
		}
		a.events <- sliceEvent(t, name)
		select {
		case e, ok := <-watch.ResultChan():
			if slice, is := e.Object.(*discoveryv1.EndpointSlice); !ok || !is || slice.Name != name {
				t.Fatalf("the watch got %v, %v", e, ok)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the watch is silent")
		}
	}
	c.way.retire()
	if n := c.way.balancer.count(old); n != 1 {
		t.Errorf("%d connections with the first certificate, want that of the watch", n)
	}
	watch.Stop()
	waitFor(t, "the old connection is closed", func() bool {
		c.way.retire()
		return c.way.balancer.count(old) == 0
	})
	c.way.mu.Lock()
	defer c.way.mu.Unlock()
	if len(c.way.old) != 0 {
		t.Errorf("%d old generations are kept", len(c.way.old))
	}
}

// While the server is away a request fails, and a watch waits: it begins when the server is back, without a failure
// that an informer would answer with a pause.
func TestWatchAwaitsServer(t *testing.T) {
	ca := newAuthority(t)
	a := newAPI(t, ca)
	c := joined(t, a.options(t))
	client, err := kubernetes.NewForConfig(c.Config("test"))
	if err != nil {
		t.Fatal(err)
	}
	address := a.address()
	a.CloseClientConnections()
	a.Close()
	if _, err := client.CoreV1().ConfigMaps("ns").Get(t.Context(), "settings", metav1.GetOptions{}); err == nil || !strings.Contains(err.Error(), "no server can be reached: "+address) {
		t.Fatalf("error %v", err)
	}
	brief, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := client.DiscoveryV1().EndpointSlices("default").Watch(brief, metav1.ListOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a watch that is given up: error %v", err)
	}
	began := make(chan error, 1)
	go func() {
		watch, err := client.DiscoveryV1().EndpointSlices("default").Watch(t.Context(), metav1.ListOptions{})
		if err == nil {
			watch.Stop()
		}
		began <- err
	}()
	select {
	case err := <-began:
		t.Fatalf("without a server: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	newAPIAt(t, ca, address)
	select {
	case err := <-began:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the watch does not begin")
	}
}

func sliceEvent(t *testing.T, name string, servers ...string) metav1.WatchEvent {
	t.Helper()
	slice := discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{Kind: "EndpointSlice", APIVersion: "discovery.k8s.io/v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: "2"}, AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Port: ptr.To[int32](6443)}}}
	for _, ip := range servers {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip}})
	}
	raw, err := json.Marshal(slice)
	if err != nil {
		t.Fatal(err)
	}
	return metav1.WatchEvent{Type: "ADDED", Object: runtime.RawExtension{Raw: raw}}
}

// A running agent renews a certificate whose time has come, in the files and on the wire, and leaves no old key behind.
func TestRenews(t *testing.T) {
	ca := newAuthority(t)
	a := newAPI(t, ca)
	a.life = time.Minute // of which an hour and a minute are over 70 to 90 % at once: it was signed an hour back
	o := a.options(t)
	c := joined(t, o)
	first := files(t, o.DataDir)["agent/pki/client-current.pem"]
	joinedIn := time.Now().Unix()
	waitFor(t, "the next second, by which files are named", func() bool { return time.Now().Unix() != joinedIn })
	a.mu.Lock()
	a.life = 23 * time.Hour
	a.mu.Unlock()
	stop := running(t, c)
	waitFor(t, "a new certificate", func() bool {
		pem := files(t, o.DataDir)["agent/pki/client-current.pem"]
		return pem != "" && pem != first
	})
	waitFor(t, "one file and a link", func() bool {
		found, _ := filepath.Glob(filepath.Join(PKI(o.DataDir), "client-*"))
		return len(found) == 2
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if m, err := c.store.load(); err != nil || time.Until(m.cert.Leaf.NotAfter) < time.Hour {
		t.Errorf("after the renewal: %v", err)
	}
	// It was asked for with the node's own certificate, not with the token.
	if !slices.Contains(a.requests(), "system:node:one POST /apis/certificates.k8s.io/v1/certificatesigningrequests") {
		t.Errorf("requests: %q", a.requests())
	}
}

// A machine that was killed while its certificate was replaced has joined: with the new one.
func TestKilledInRenewal(t *testing.T) {
	a := newAPI(t, newAuthority(t))
	o := a.options(t)
	c := joined(t, o)
	if err := os.Rename(c.store.clientCert(), c.store.path("pki", "client-updated.pem")); err != nil {
		t.Fatal(err)
	}
	if m, err := c.store.load(); err != nil || m == nil || !c.store.exists(c.store.clientCert()) {
		t.Errorf("%v, %v", m, err)
	}
}

// The servers that the cluster names are used, and stored for a start without the given one.
func TestLearnsServers(t *testing.T) {
	a := newAPI(t, newAuthority(t))
	o := a.options(t)
	c := joined(t, o)
	running(t, c)
	a.events <- sliceEvent(t, "kubernetes", "192.0.2.1", "192.0.2.2")
	waitFor(t, "they are stored", func() bool {
		m, err := c.store.load()
		return err == nil && slices.Equal(m.servers, []string{"192.0.2.1:6443", "192.0.2.2:6443"})
	})
	if got, want := c.way.balancer.order(), []string{a.address(), "192.0.2.1:6443", "192.0.2.2:6443"}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
	// A server that starts publishes nothing for a moment.
	a.events <- sliceEvent(t, "kubernetes")
	a.events <- sliceEvent(t, "kubernetes", "192.0.2.3")
	waitFor(t, "the next ones", func() bool { return slices.Contains(c.way.balancer.order(), "192.0.2.3:6443") })
}

// Settings that the agent has started with and that changed end it, with the reason.
func TestSettingsChange(t *testing.T) {
	a := newAPI(t, newAuthority(t))
	o := a.options(t)
	c := joined(t, o)
	c.settle = 10 * time.Millisecond
	c.OnChange(func(old, current []byte) string {
		if string(old) != `{"one": 1}` {
			t.Errorf("old settings %s", old)
		}
		if strings.Contains(string(current), "restart") {
			return "the settings changed"
		}
		return ""
	})
	a.mu.Lock()
	a.settings = `{"restart": true}`
	a.mu.Unlock()
	ended := make(chan error, 1)
	go func() { ended <- c.Run(t.Context(), func() {}) }()
	select {
	case err := <-ended:
		if err == nil || err.Error() != "the settings changed: the agent has to restart" {
			t.Errorf("error %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it still runs")
	}
	if got := files(t, o.DataDir)["agent/cluster.json"]; got != `{"restart": true}` {
		t.Errorf("stored: %s", got)
	}
}

// The stop ends every connection, also with a watch on it (goleak sees the goroutines).
func TestStopEndsConnections(t *testing.T) {
	a := newAPI(t, newAuthority(t))
	c := joined(t, a.options(t))
	stop := running(t, c)
	client, err := kubernetes.NewForConfig(c.Config("test"))
	if err != nil {
		t.Fatal(err)
	}
	watch, err := client.DiscoveryV1().EndpointSlices("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-watch.ResultChan():
	case <-time.After(20 * time.Second):
		t.Fatal("the watch was not ended")
	}
	if n := c.way.balancer.count(c.way.current.Load()); n != 0 {
		t.Errorf("%d connections", n)
	}
}

func TestAddresses(t *testing.T) {
	got := addresses(&discoveryv1.EndpointSlice{
		Ports: []discoveryv1.EndpointPort{{Port: ptr.To[int32](6443)}, {}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"2001:db8::1"}},
			{Addresses: []string{"192.0.2.1"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}},
			{Addresses: []string{"192.0.2.9"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(false)}},
		},
	})
	if want := []string{"192.0.2.1:6443", "[2001:db8::1]:6443"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Settings that the server takes back at once are no reason to start again, nor to be stored: another client has
// written them.
func TestSettingsSettle(t *testing.T) {
	ca := newAuthority(t)
	o := newAPI(t, ca).options(t)
	c := joined(t, o)
	before := files(t, o.DataDir)["agent/cluster.json"]
	c.settle = 3 * time.Second
	c.OnChange(func(_, current []byte) string {
		if strings.Contains(string(current), "forged") {
			return "the settings are forged"
		}
		return ""
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	receive := func(text string) {
		c.receiveSettings(&corev1.ConfigMap{Data: map[string]string{c.opts.Settings.Key: text}})
	}
	go func() { ended <- c.Run(ctx, func() {}) }()
	for range 5 {
		receive(`{"forged": true}`)
		for len(c.received) > 0 { // the agent has not read them yet
			time.Sleep(time.Millisecond)
		}
		select {
		case err := <-ended:
			t.Fatalf("it has ended: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		receive(before)
	}
	if got := files(t, o.DataDir)["agent/cluster.json"]; got != before {
		t.Errorf("stored: %s", got)
	}
	receive(`{"forged": true}`)
	if err := <-ended; err == nil || !strings.HasPrefix(err.Error(), "the settings are forged") {
		t.Errorf("what stands: %v", err)
	}
	cancel()
}
