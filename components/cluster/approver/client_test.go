package approver

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	capihelper "k8s.io/kubernetes/pkg/apis/certificates"
)

func TestClient(t *testing.T) {
	key := newKey(t)
	pemOf := func(template x509.CertificateRequest) []byte { return request(t, key, template) }
	none := func(*certificatesv1.CertificateSigningRequest) {}
	for name, tc := range map[string]struct {
		node   string
		change func(*certificatesv1.CertificateSigningRequest)
		want   string
	}{
		"a new name": {"a", none, "approved"},
		"key encipherment": {"a", func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Usages = append(r.Spec.Usages, "key encipherment")
		}, "approved"},
		"a server's name": {"server-1", none, "NameTaken: the name server-1 belongs to another machine: choose another --node-name, or run kubectl delete node server-1 first"},
		"a node's name":   {"old", none, "NameTaken: the name old belongs to another machine: choose another --node-name, or run kubectl delete node old first"},
		"no name":         {"", none, `InvalidName: "" cannot be a node's name`},
		"not a name":      {"A_b", none, `InvalidName: "A_b" cannot be a node's name: choose another --node-name`},
		"a long name":     {strings.Repeat("a", 64), none, "InvalidName: "},
		"a path":          {"../a", none, "InvalidName: "},
		"its own address": {"a", func(r *certificatesv1.CertificateSigningRequest) {
			r.Annotations = map[string]string{"kubelith.io/node-ip": "192.0.2.12,2001:db8::12"}
		}, "approved"},
		"another node's address": {"a", func(r *certificatesv1.CertificateSigningRequest) {
			r.Annotations = map[string]string{"kubelith.io/node-ip": "192.0.2.12,2001:0db8::11"}
		}, "AddressTaken: address 2001:db8::11 already belongs to node old: set this machine's own with --node-ip, or run kubelith node remove old if that machine is gone"},
		"no address": {"a", func(r *certificatesv1.CertificateSigningRequest) {
			r.Annotations = map[string]string{"kubelith.io/node-ip": "old,,x"}
		}, "approved"},
		"another subject": {"a", func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Request = pemOf(x509.CertificateRequest{Subject: pkix.Name{Organization: []string{"system:nodes"}, CommonName: "a"}})
		}, "InvalidRequest: subject common name does not begin with system:node:"},
		"masters": {"a", func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Request = pemOf(x509.CertificateRequest{Subject: pkix.Name{Organization: []string{"system:masters"}, CommonName: "system:node:a"}})
		}, "InvalidRequest: subject organization is not system:nodes"},
		"masters as well": {"a", func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Request = pemOf(x509.CertificateRequest{Subject: pkix.Name{Organization: []string{"system:nodes", "system:masters"}, CommonName: "system:node:a"}})
		}, "InvalidRequest: "},
		"a DNS name": {"a", func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Request = pemOf(x509.CertificateRequest{Subject: subject("a"), DNSNames: []string{"a"}})
		}, "InvalidRequest: DNS subjectAltNames are not allowed"},
		"an address": {"a", func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Request = pemOf(x509.CertificateRequest{Subject: subject("a"), IPAddresses: []net.IP{{192, 0, 2, 9}}})
		}, "InvalidRequest: IP subjectAltNames are not allowed"},
		"to serve": {"a", func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Usages = append(r.Spec.Usages, "server auth")
		}, "InvalidRequest: usages did not match"},
		"to sign":       {"a", func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Usages = append(r.Spec.Usages, "cert sign") }, "InvalidRequest: usages did not match"},
		"not a request": {"a", func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Request = []byte("x") }, "InvalidRequest: "},
		"a token of others": {"a", func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Groups = []string{"system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token"}
		}, ""},
		"a person": {"a", func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Username = "alice" }, ""},
		"of another signer": {"a", func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.SignerName = "kubernetes.io/kube-apiserver-client"
		}, ""},
		"to serve with": {"a", func(r *certificatesv1.CertificateSigningRequest) { r.Spec.SignerName = "kubernetes.io/kubelet-serving" }, ""},
		"decided by a person": {"a", func(r *certificatesv1.CertificateSigningRequest) {
			r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Reason: "NotToday", Message: "."}}
		}, "NotToday: ."},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, node("old", "192.0.2.11", "2001:db8::11"))
			r := joining(t, "csr", tc.node, key)
			tc.change(r)
			got, err := c.ask(t, r)
			if err != nil || !strings.HasPrefix(got, tc.want) || (got == "") != (tc.want == "") {
				t.Fatalf("%q, %v, want %q", got, err, tc.want)
			}
			reserved := c.reservedFor(t, tc.node)
			if (got == "approved") != (reserved != "") || (got == "approved") != (len(c.spent) == 1) {
				t.Errorf("reserved for %q, spent %v", reserved, c.spent)
			}
			if got == "approved" && c.spent[0] != "abc123 "+reserved {
				t.Errorf("spent %v by %s", c.spent, reserved)
			}
			if tc.want == "" || name == "decided by a person" {
				return
			}
			// One log line names the requester and the result.
			lines := c.log.AllEntries()
			level := logrus.WarnLevel
			if got == "approved" {
				level = logrus.InfoLevel
			}
			if len(lines) != 1 || lines[0].Level != level || lines[0].Data["user"] != "system:bootstrap:abc123" ||
				got != "approved" && !strings.Contains(lines[0].Message, strings.SplitN(got, ": ", 2)[1]) {
				t.Errorf("logged %v", lines)
			}
		})
	}
}

func TestNameOfOneMachine(t *testing.T) {
	c := newCluster(t)
	first, second := newKey(t), newKey(t)
	for i, step := range []struct {
		key  *ecdsa.PrivateKey
		want string
	}{{first, "approved"}, {second, "NameTaken: "}, {first, "approved"}, {second, "NameTaken: "}} {
		got, err := c.ask(t, joining(t, fmt.Sprint("csr-", i), "a", step.key))
		if err != nil || !strings.HasPrefix(got, step.want) {
			t.Errorf("request %d: %q, %v, want %q", i, got, err, step.want)
		}
	}
	// As a node that is there, too.
	if _, err := c.client.CoreV1().Nodes().Create(t.Context(), node("a"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, err := c.ask(t, joining(t, "again", "a", first)); err != nil || got != "approved" {
		t.Errorf("the machine joins again: %q, %v", got, err)
	}
	if got, err := c.ask(t, joining(t, "other", "a", second)); err != nil || !strings.HasPrefix(got, "NameTaken: ") {
		t.Errorf("another machine: %q, %v", got, err)
	}
}

// A machine whose Node was deleted registers it again with the certificate that it has. It is known by the Node then,
// and no other machine is.
func TestNameOfNodeRegisteredAgain(t *testing.T) {
	first, second := newKey(t), newKey(t)
	r := joining(t, "first", "a", first)
	parsed, err := capihelper.ParseCSR(r.Spec.Request)
	if err != nil {
		t.Fatal(err)
	}
	again := node("a")
	again.Labels = map[string]string{"kubelith.io/machine": keyHash(parsed)[:63]}
	unlabelled := node("b")
	unlabelled.Labels = map[string]string{"kubelith.io/machine": ""}
	c := newCluster(t, again, unlabelled)
	if got, err := c.ask(t, joining(t, "second", "a", second)); err != nil || !strings.HasPrefix(got, "NameTaken: ") || c.reservedFor(t, "a") != "" {
		t.Errorf("another machine: %q, %v; reserved for %q", got, err, c.reservedFor(t, "a"))
	}
	if got, err := c.ask(t, r); err != nil || got != "approved" || c.reservedFor(t, "a") != keyHash(parsed) {
		t.Errorf("the machine: %q, %v; reserved for %q", got, err, c.reservedFor(t, "a"))
	}
	if got, err := c.ask(t, joining(t, "b", "b", first)); err != nil || !strings.HasPrefix(got, "NameTaken: ") {
		t.Errorf("a Node of no machine: %q, %v", got, err)
	}
}

func TestNameAtOnce(t *testing.T) {
	c := newCluster(t)
	c.opts.Spend = func(context.Context, string, string) (string, error) { return "", nil }
	const machines = 20
	got := make(chan string, machines)
	for i := range machines {
		r := joining(t, fmt.Sprint("csr-", i), "a", newKey(t))
		go func() {
			for {
				answer, err := c.ask(t, r)
				if err == nil {
					got <- answer
					return
				}
			}
		}()
	}
	approved := 0
	for range machines {
		if answer := <-got; answer == "approved" {
			approved++
		} else if !strings.HasPrefix(answer, "NameTaken: ") {
			t.Error(answer)
		}
	}
	if approved != 1 {
		t.Errorf("%d machines got the name", approved)
	}
}

func TestTokenRefused(t *testing.T) {
	for name, spend := range map[string]func(context.Context, string, string) (string, error){
		"refused": func(context.Context, string, string) (string, error) { return "the token is used", nil },
		"failed":  func(context.Context, string, string) (string, error) { return "", errors.New("conflict") },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			key := newKey(t)
			if _, err := c.ask(t, joining(t, "first", "b", key)); err != nil {
				t.Fatal(err)
			}
			had := c.reservedFor(t, "b")
			c.opts.Spend = spend
			for _, node := range []string{"a", "b"} {
				got, err := c.ask(t, joining(t, "csr-"+node, node, key))
				if name == "refused" && (err != nil || got != "TokenRefused: the token is used") || name == "failed" && err == nil {
					t.Errorf("%s: %q, %v", node, got, err)
				}
			}
			if c.reservedFor(t, "a") != "" || c.reservedFor(t, "b") != had || had == "" {
				t.Errorf("a is reserved for %q, b for %q, want no machine and %q", c.reservedFor(t, "a"), c.reservedFor(t, "b"), had)
			}
		})
	}
}
