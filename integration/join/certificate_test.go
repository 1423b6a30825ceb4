package join

import (
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

const nameTaken = "the name %[1]s belongs to another machine: choose another --node-name, or run kubectl delete node %[1]s first"

// TestJoin: a machine gets the certificate of the node that it asks to be, which is that node's and no more, renews it
// by itself, and is the same machine when it joins again.
func TestJoin(t *testing.T) {
	t.Parallel()
	s := server(t)
	m := newMachine(t, s, create(t, s))
	data, err := m.join(t, "join-a")
	if err != nil {
		t.Fatal(err)
	}
	cert := certificate(t, data)
	if life := cert.NotAfter.Sub(cert.NotBefore); cert.Subject.CommonName != "system:node:join-a" || !slices.Equal(cert.Subject.Organization, []string{"system:nodes"}) ||
		cert.IsCA || !slices.Equal(cert.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) || life < 89*24*time.Hour || life > 91*24*time.Hour {
		t.Errorf("%s, %v, valid for %s", cert.Subject, cert.ExtKeyUsage, life)
	}
	node := m.node(t, "join-a", "192.0.2.51")
	if _, err := node.CoreV1().Nodes().Get(t.Context(), "join-a", metav1.GetOptions{}); err != nil {
		t.Errorf("its own node: %v", err)
	}
	if _, err := node.DiscoveryV1().EndpointSlices("").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("what its proxy reads: %v", err)
	}
	for what, err := range map[string]error{
		"reads Secrets":        second(node.CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{})),
		"changes another node": node.CoreV1().Nodes().Delete(t.Context(), "other", metav1.DeleteOptions{}),
		"approves a request": second(node.CertificatesV1().CertificateSigningRequests().UpdateApproval(t.Context(), "x",
			&certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.UpdateOptions{})),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("the node %s: %v", what, err)
		}
	}

	// A node renews what it has, with a new key, and for itself only.
	key := newKey(t)
	renewed, err := ask(t, node, clientSign, key, x509.CertificateRequest{Subject: subject("join-a")}, certificatesv1.UsageClientAuth)
	if err != nil {
		t.Fatalf("renewal: %v", err)
	}
	if _, err := m.with(t, renewed, key).CoreV1().Nodes().Get(t.Context(), "join-a", metav1.GetOptions{}); err != nil {
		t.Errorf("with the renewed certificate: %v", err)
	}
	if _, err := ask(t, node, clientSign, key, x509.CertificateRequest{Subject: subject("join-b")}, certificatesv1.UsageClientAuth); err == nil || !strings.Contains(err.Error(), "can only create a node CSR with CN=system:node:join-a") {
		t.Errorf("the certificate of another node: %v", err)
	}
	// Its certificates are gone, its key and a token are left.
	if _, err := m.join(t, "join-a"); err != nil {
		t.Errorf("joining again: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

// TestNameTaken: no other machine gets the name of one, before its Node exists, while it does and when it has
// certificates no more; and nothing remains of its try. When the Node is deleted another machine may have the name.
func TestNameTaken(t *testing.T) {
	t.Parallel()
	s := server(t)
	tk := create(t, s)
	first, other := newMachine(t, s, tk), newMachine(t, s, tk)
	if _, err := first.join(t, "taken"); err != nil {
		t.Fatal(err)
	}
	_, err := other.join(t, "taken")
	refusedWith(t, s, err, "NameTaken", fmt.Sprintf(nameTaken, "taken"))
	node := first.node(t, "taken")
	_, err = other.join(t, "taken")
	refusedWith(t, s, err, "NameTaken", fmt.Sprintf(nameTaken, "taken"))
	if err := s.Client(t).CoreV1().ConfigMaps("kube-system").Delete(t.Context(), "kubelith-node.taken", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = other.join(t, "taken")
	refusedWith(t, s, err, "NameTaken", fmt.Sprintf(nameTaken, "taken"))
	if _, err := other.join(t, "not-taken"); err != nil {
		t.Errorf("another name: %v", err)
	}
	if _, err := node.CoreV1().Nodes().Get(t.Context(), "taken", metav1.GetOptions{}); err != nil {
		t.Errorf("the first machine suffers: %v", err)
	}

	free := newMachine(t, s, tk)
	free.node(t, "freed")
	deleteNode(t, s, "freed")
	harness.Eventually(t, 20*time.Second, "the name to be free", func() error {
		if reserved(t, s, "freed") {
			return fmt.Errorf("it is reserved")
		}
		return nil
	})
	if _, err := other.join(t, "freed"); err != nil {
		t.Errorf("a name that is free again: %v", err)
	}

	harness.Eventually(t, 2*time.Minute, "the denied requests to go", func() error {
		all, err := s.Client(t).CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{FieldSelector: "spec.signerName=" + clientSign})
		if err != nil {
			return err
		}
		for _, r := range all.Items {
			for _, c := range r.Status.Conditions {
				if c.Type == certificatesv1.CertificateDenied && r.Spec.Username == "system:bootstrap:"+tk.id {
					return fmt.Errorf("%s is there: %s", r.Name, c.Message)
				}
			}
		}
		return nil
	})
}

// TestBadNames: no machine gets a server's name or one that is not valid for a node, and neither is reserved.
func TestBadNames(t *testing.T) {
	t.Parallel()
	s := server(t)
	m := newMachine(t, s, create(t, s))
	hostname := strings.ToLower(strings.TrimSpace(s.Exec(t, "uname", "-n")))
	_, err := m.join(t, hostname)
	refusedWith(t, s, err, "NameTaken", fmt.Sprintf(nameTaken, hostname))
	_, err = m.join(t, "Not_A_Name")
	refusedWith(t, s, err, "InvalidName", `"Not_A_Name" cannot be a node's name: choose another --node-name, `)
	if reserved(t, s, hostname) {
		t.Error("the server's name is reserved")
	}
	// Certificates of an administrator, and of a node that serves: upstream signs neither, and no one approves them.
	for _, tc := range []struct {
		template x509.CertificateRequest
		usage    certificatesv1.KeyUsage
	}{
		{x509.CertificateRequest{Subject: subject("x"), DNSNames: []string{"kubernetes"}}, certificatesv1.UsageClientAuth},
		{x509.CertificateRequest{Subject: subject("x")}, certificatesv1.UsageServerAuth},
	} {
		_, err := ask(t, m.client(t), clientSign, m.key, tc.template, tc.usage)
		if err == nil || !strings.Contains(err.Error(), "denied, reason: InvalidRequest") {
			t.Errorf("%+v: %v", tc, err)
		}
	}
	if reserved(t, s, "x") {
		t.Error("a name is reserved for a request that is wrong")
	}
}

// TestOnce: a second machine cannot use a token for one, even at the same time or while the first gets its certificate.
func TestOnce(t *testing.T) {
	t.Parallel()
	s := server(t)
	tk := create(t, s, "--once")
	machines := []*machine{newMachine(t, s, tk), newMachine(t, s, tk), newMachine(t, s, tk)}
	type result struct {
		m    *machine
		name string
		err  error
	}
	results := make(chan result, len(machines))
	for i, m := range machines {
		go func() {
			name := fmt.Sprint("once-", i)
			_, err := m.join(t, name)
			results <- result{m, name, err}
		}()
	}
	var joined []result
	for range machines {
		r := <-results
		if r.err == nil {
			joined = append(joined, r)
			continue
		}
		refusedWith(t, s, r.err, "TokenRefused", "token "+tk.id+" is valid for one machine only and another one has used it: create another with kubelith token create")
		if reserved(t, s, r.name) {
			t.Errorf("the name %s stays reserved", r.name)
		}
	}
	if len(joined) != 1 {
		t.Fatalf("%d machines joined", len(joined))
	}
	if _, err := joined[0].m.join(t, joined[0].name); err != nil {
		t.Errorf("the machine that it was for: %v", err)
	}
	if line := lineOf(s.Exec(t, s.BinaryPath(), "token", "list"), tk.id); !strings.Contains(line, "one, used") {
		t.Errorf("listed as %q", line)
	}
}

// TestDeletedWhileJoining: the API server remembers a token for some seconds after it was deleted; it opens nothing.
func TestDeletedWhileJoining(t *testing.T) {
	t.Parallel()
	s := server(t)
	tk := create(t, s)
	m := newMachine(t, s, tk)
	if _, err := m.client(t).Discovery().ServerVersion(); err != nil {
		t.Fatal(err)
	}
	s.Exec(t, s.BinaryPath(), "token", "delete", tk.id)
	_, err := m.join(t, "too-late")
	if err == nil || !apierrors.IsUnauthorized(err) && !strings.Contains(err.Error(), "reason: TokenRefused, message: token "+tk.id+" was deleted") {
		t.Errorf("with a deleted token: %v", err)
	}
	if reserved(t, s, "too-late") {
		t.Error("the name stays reserved")
	}
}

// TestServing: the kubelet of a node gets a certificate for its own names and addresses, and for none of another
// machine, even when its Node claims them.
func TestServing(t *testing.T) {
	t.Parallel()
	s := server(t)
	tk := create(t, s)
	m := newMachine(t, s, tk)
	newMachine(t, s, tk).node(t, "serve-b", "192.0.2.62")
	node := m.node(t, "serve-a", "192.0.2.61", s.NodeIP, "10.43.0.1", "10.42.7.7", "127.0.0.1", "192.0.2.62", "kubernetes", "hook.default.svc")
	serve := func(dns []string, ips ...string) ([]byte, error) {
		template := x509.CertificateRequest{Subject: subject("serve-a"), DNSNames: dns}
		for _, ip := range ips {
			template.IPAddresses = append(template.IPAddresses, net.ParseIP(ip))
		}
		return ask(t, node, serveSign, newKey(t), template, certificatesv1.UsageServerAuth)
	}
	data, err := serve([]string{"serve-a"}, "192.0.2.61")
	if err != nil {
		t.Fatal(err)
	}
	trust, err := os.ReadFile(s.Path(harness.DataDir + "/server/tls/kubelet-trust.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trust)
	for _, name := range []string{"192.0.2.61", "serve-a"} { // as the API server checks it before it asks for logs
		if _, err := certificate(t, data).Verify(x509.VerifyOptions{Roots: roots, DNSName: name, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	var wg sync.WaitGroup // together: some wait a while for the Node to become right
	for _, tc := range []struct {
		dns, ip, why string
	}{
		{"serve-a", s.NodeIP, s.NodeIP + " is an address of the API server"},
		{"serve-a", "10.43.0.1", "10.43.0.1 is in 10.43.0.0/16, the network of pods or Services"},
		{"serve-a", "10.42.7.7", "10.42.7.7 is in 10.42.0.0/16, the network of pods or Services"},
		{"serve-a", "127.0.0.1", "127.0.0.1 is not an address at which other machines can reach a node"},
		{"kubernetes", "192.0.2.61", "kubernetes is a name of the API server"},
		{"hook.default.svc", "192.0.2.61", "hook.default.svc is the name of a Service"},
		{"serve-a", "192.0.2.62", "192.0.2.62 is also an address or name of node serve-b: run kubectl delete node serve-b if that machine is gone"},
		{"serve-a", "192.0.2.99", "192.0.2.99 is not an address or name of the node serve-a, which has "},
	} {
		wg.Go(func() {
			_, err := serve([]string{tc.dns}, tc.ip)
			refusedWith(t, s, err, "NotItsOwn", tc.why)
		})
	}
	wg.Wait()
}
