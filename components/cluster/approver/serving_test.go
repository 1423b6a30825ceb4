package approver

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/base/names"
)

func TestServing(t *testing.T) {
	of := func(dns string, ips ...string) func(t *testing.T) *certificatesv1.CertificateSigningRequest {
		return func(t *testing.T) *certificatesv1.CertificateSigningRequest {
			var names []string
			if dns != "" {
				names = strings.Split(dns, ",")
			}
			return serving(t, "a", names, ips...)
		}
	}
	changed := func(change func(*certificatesv1.CertificateSigningRequest)) func(t *testing.T) *certificatesv1.CertificateSigningRequest {
		return func(t *testing.T) *certificatesv1.CertificateSigningRequest {
			r := serving(t, "a", []string{"a"}, "192.0.2.11")
			change(r)
			return r
		}
	}
	with := func(template x509.CertificateRequest) func(t *testing.T) *certificatesv1.CertificateSigningRequest {
		return changed(func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Request = request(t, newKey(t), template) })
	}
	for name, tc := range map[string]struct {
		request func(*testing.T) *certificatesv1.CertificateSigningRequest
		want    string
		waits   bool // it might become right
	}{
		"name and address":       {of("a", "192.0.2.11"), "approved", false},
		"an address":             {of("", "192.0.2.11"), "approved", false},
		"both families":          {of("a", "192.0.2.11", "2001:db8::11"), "approved", false},
		"its host name":          {of("a.example", "192.0.2.11"), "approved", false},
		"upper case":             {of("A.Example"), "approved", false},
		"below a wildcard":       {of("shared.wild.example"), "NotItsOwn: shared.wild.example matches a name in the API server's certificate", false},
		"nothing":                {of(""), "InvalidRequest: DNS or IP subjectAltName is required", false},
		"not its address":        {of("a", "192.0.2.99"), "NotItsOwn: 192.0.2.99 is not an address or name of the node a, which has ", true},
		"one not its own":        {of("a", "192.0.2.11", "192.0.2.99"), "NotItsOwn: 192.0.2.99 is not", true},
		"not its name":           {of("c", "192.0.2.11"), "NotItsOwn: c is not an address or name of the node a", true},
		"another's address":      {of("a", "192.0.2.13"), "NotItsOwn: 192.0.2.13 is also an address or name of node b: run kubectl delete node b", true},
		"another's name":         {of("b", "192.0.2.11"), "NotItsOwn: b is also an address or name of node b", true},
		"the API's address":      {of("a", "192.0.2.1"), "NotItsOwn: 192.0.2.1 is an address of the API server", false},
		"the API's other one":    {of("a", "2001:db8::1"), "NotItsOwn: 2001:db8::1 is an address of the API server", false},
		"the API's name":         {of("api.example", "192.0.2.11"), "NotItsOwn: api.example is a name of the API server", false},
		"the API's, in capitals": {of("API.example", "192.0.2.11"), "NotItsOwn: api.example is a name of the API server", false},
		"kubernetes":             {of("kubernetes", "192.0.2.11"), "NotItsOwn: kubernetes is a name of the API server", false},
		"the server's name":      {of("server-1", "192.0.2.11"), "NotItsOwn: server-1 is a name of the API server", false},
		"a Service":              {of("hook.default.svc", "192.0.2.11"), "NotItsOwn: hook.default.svc is the name of a Service", false},
		"a Service in full":      {of("hook.default.svc.cluster.local", "192.0.2.11"), "NotItsOwn: hook.default.svc.cluster.local is the name of a Service", false},
		"localhost":              {of("localhost", "192.0.2.11"), "NotItsOwn: localhost is the name", false},
		"a wildcard":             {of("*.example", "192.0.2.11"), "NotItsOwn: *.example is not the name of one machine", false},
		"loopback":               {of("a", "127.0.0.1"), "NotItsOwn: 127.0.0.1 is not an address at which other machines can reach a node", false},
		"loopback too":           {of("a", "127.0.0.53"), "NotItsOwn: 127.0.0.53 is not an address at which", false},
		"link-local":             {of("a", "fe80::1"), "NotItsOwn: fe80::1 is not an address at which", false},
		"unspecified":            {of("a", "0.0.0.0"), "NotItsOwn: 0.0.0.0 is not an address at which", false},
		"a pod's address":        {of("a", "10.42.1.2"), "NotItsOwn: 10.42.1.2 is in 10.42.0.0/16", false},
		"a pod's, IPv6":          {of("a", "fd42::2"), "NotItsOwn: fd42::2 is in fd42::/56", false},
		"a Service's address":    {of("a", "10.43.0.9"), "NotItsOwn: 10.43.0.9 is in 10.43.0.0/16", false},
		"for another node":       {with(x509.CertificateRequest{Subject: subject("b"), IPAddresses: []net.IP{{192, 0, 2, 12}}}), "NotItself: system:node:a may request a certificate for itself only, not for system:node:b", false},
		"not in the group":       {changed(func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Groups = []string{"system:authenticated"} }), "NotItself: ", false},
		"a mail address":         {with(x509.CertificateRequest{Subject: subject("a"), DNSNames: []string{"a"}, EmailAddresses: []string{"a@example"}}), "InvalidRequest: Email", false},
		"a URI":                  {with(x509.CertificateRequest{Subject: subject("a"), DNSNames: []string{"a"}, URIs: []*url.URL{{Scheme: "spiffe", Host: "a"}}}), "InvalidRequest: URI", false},
		"another subject":        {with(x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:masters"}}, DNSNames: []string{"a"}}), "InvalidRequest: subject organization", false},
		"as a client": {changed(func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Usages = append(r.Spec.Usages, "client auth")
		}), "InvalidRequest: usages", false},
		"a person": {changed(func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Username = "alice" }), "", false},
		"a machine that joins": {changed(func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Username, r.Spec.Groups = "system:bootstrap:abc123", []string{group}
		}), "", false},
		"no node": {func(t *testing.T) *certificatesv1.CertificateSigningRequest {
			return serving(t, "new", []string{"new"}, "192.0.2.44")
		}, "NotItsOwn: node new does not exist", true},
		"a wildcard's node": {func(t *testing.T) *certificatesv1.CertificateSigningRequest {
			return serving(t, "n.wild.example", []string{"n.wild.example"}, "192.0.2.14")
		}, "approved", false},
	} {
		t.Run(name, func(t *testing.T) {
			// Nodes write their addresses themselves: a claims what is not its own.
			claims := []string{"192.0.2.11", "2001:db8::11", "a", "A.example", "192.0.2.13", "b", "192.0.2.1", "2001:db8::1", "api.example", "API.example", "kubernetes", "server-1",
				"hook.default.svc", "hook.default.svc.cluster.local", "localhost", "*.example", "127.0.0.1", "127.0.0.53", "fe80::1", "0.0.0.0",
				"10.42.1.2", "fd42::2", "10.43.0.9", "shared.wild.example"}
			c := newCluster(t, node("a", claims...), node("b", "192.0.2.12", "192.0.2.13", "b"), node("n.wild.example", "192.0.2.14", "n.wild.example"))
			r := tc.request(t)
			got, err := c.ask(t, r)
			if tc.waits {
				if err == nil || got != "" {
					t.Fatalf("at once: %q, %v, want it to wait", got, err)
				}
				c.now = func() time.Time { return made.Add(10 * time.Second) }
				got, err = c.ask(t, r)
			}
			if err != nil || !strings.HasPrefix(got, tc.want) || (got == "") != (tc.want == "") {
				t.Errorf("%q, %v, want %q", got, err, tc.want)
			}
		})
	}
}

func TestServingWaits(t *testing.T) {
	c := newCluster(t)
	c.now = func() time.Time { return made.Add(9 * time.Second) }
	r := serving(t, "a", []string{"a"}, "192.0.2.11")
	for _, n := range []*corev1.Node{nil, node("a", "a")} {
		if n != nil {
			if _, err := c.client.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := c.ask(t, r); err == nil || got != "" {
			t.Errorf("%q, %v", got, err)
		}
	}
	if _, err := c.client.CoreV1().Nodes().Update(t.Context(), node("a", "a", "192.0.2.11"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, err := c.ask(t, r); err != nil || got != "approved" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestServingOfOtherServers: no node gets a name of another server's API, which that has published. An agent's Node
// publishes nothing.
func TestServingOfOtherServers(t *testing.T) {
	publishing := func(name, role, api string, addresses ...string) *corev1.Node {
		n := node(name, addresses...)
		n.Labels = map[string]string{names.RoleLabel: role}
		n.Annotations = map[string]string{names.APINamesAnnotation: api}
		return n
	}
	c := newCluster(t, node("a", "a.two.example", "192.0.2.11", "192.0.2.8", "api.two.example", "free.example"),
		publishing("server-2", names.RoleServer, "192.0.2.8,API.two.example,*.wild.two.example", "192.0.2.7"),
		publishing("b", names.RoleAgent, "free.example", "192.0.2.9"))
	c.now = func() time.Time { return made.Add(time.Hour) }
	for name, want := range map[string]string{
		"192.0.2.8":          "NotItsOwn: 192.0.2.8 is an address of the API server",
		"api.two.example":    "NotItsOwn: api.two.example is a name of the API server",
		"x.wild.two.example": "NotItsOwn: x.wild.two.example matches a name",
		"a.two.example":      "approved",
		"free.example":       "approved",
	} {
		var request *certificatesv1.CertificateSigningRequest
		if net.ParseIP(name) != nil {
			request = serving(t, "a", nil, name)
		} else {
			request = serving(t, "a", []string{name})
		}
		if got, err := c.ask(t, request); err != nil || !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
}

func TestServingNeedsCertificate(t *testing.T) {
	c := newCluster(t, node("a", "192.0.2.11"))
	c.opts.ServerCert = filepath.Join(t.TempDir(), "missing")
	c.now = func() time.Time { return made.Add(time.Hour) }
	if got, err := c.ask(t, serving(t, "a", nil, "192.0.2.11")); err == nil || got != "" {
		t.Errorf("%q, %v", got, err)
	}
}
