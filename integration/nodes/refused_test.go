package nodes

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// refusedServers are joins that the agent itself refuses, though the server would accept it. The server logs that too.
func refusedServers(t *testing.T, c *harness.Cluster) []refusal {
	fresh := func(t *testing.T) string { return c.Server.Token(t) }
	return []refusal{
		{name: "clock", make: fresh, url: clockAhead(t, c, time.Hour), agent: `the clock of this machine is 1h0m0s behind the server's: set it`, unnamed: true,
			server: `a machine at \S+ reports that it cannot join: its clock and the server's are more than five minutes apart`},
		{name: "newer-agent", make: fresh, binary: c.Server.OtherRelease(t, 1), agent: `this kubelith has Kubernetes v1\.\d+\.\S+, but the server has v1\.\d+\.\S+: upgrade the server first`, unnamed: true,
			server: `a machine at \S+ reports that it cannot join: its Kubernetes is newer than the server's`},
	}
}

// clockAhead returns a URL at which the server's clock is ahead. Linux has no namespace for the time of day, and a
// static program cannot get another one. Agents compare their clock with the server's Date header, which this sets.
func clockAhead(t *testing.T, c *harness.Cluster, by time.Duration) string {
	t.Helper()
	target, err := url.Parse(c.Server.URL())
	if err != nil {
		t.Fatal(err)
	}
	between := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
		ModifyResponse: func(r *http.Response) error {
			r.Header.Set("Date", time.Now().Add(by).UTC().Format(http.TimeFormat))
			return nil
		},
	})
	between.Listener.Close()
	if between.Listener, err = net.Listen("tcp", c.Server.HostIP+":0"); err != nil { // on the bridge, which all nodes reach
		t.Fatal(err)
	}
	between.StartTLS()
	t.Cleanup(between.Close)
	return between.URL
}

// refusedMachines are joins where only the machine is at fault: the server never learns of them.
func refusedMachines(c *harness.Cluster) []refusal {
	fresh := func(t *testing.T) string { return c.Server.Token(t, "--once") }
	return []refusal{
		{name: "kubelet-directory-in-use", make: fresh, agent: `directory /var/lib/kubelet is in use by another server`, spoil: func(t *testing.T, a *harness.Server) {
			dir := a.Path("/var/lib/kubelet")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			f, err := os.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
			if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "payload-cannot-be-unpacked", make: fresh, agent: `payload: .*/var/lib/kubelith/data`, spoil: func(t *testing.T, a *harness.Server) {
			if err := os.MkdirAll(a.Path(harness.DataDir), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(a.Path(harness.DataDir+"/data"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "port-in-use", make: fresh, agent: `10250`, spoil: func(t *testing.T, a *harness.Server) {
			l, err := a.Listen(":10250")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
		}},
	}
}

// unheard: the server was asked for no certificate with the token, which is as good as new.
func unheard(t *testing.T, c *harness.Cluster, id string) {
	t.Helper()
	client := c.Server.Client(t)
	requests, err := client.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, csr := range requests.Items {
		if csr.Spec.Username == "system:bootstrap:"+id {
			t.Errorf("a certificate was asked for with the token %s: %s", id, csr.Name)
		}
	}
	secret, err := client.CoreV1().Secrets(metav1.NamespaceSystem).Get(t.Context(), "bootstrap-token-"+id, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if machine, spent := secret.Annotations["kubelith.io/used"]; spent {
		t.Errorf("the token %s is spent, by %s", id, machine)
	}
}
