package approver

import (
	"crypto/ecdsa"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"kubelith.io/kubelith/base/names"
)

// neverRemoved is a cluster from which no node was removed.
type neverRemoved struct{}

func (neverRemoved) Refuses(string, time.Time) bool { return false }
func (neverRemoved) OlderThan(time.Time) []string   { return nil }

// removedAt is one from which a node was removed.
type removedAt map[string]time.Time

func (r removedAt) Refuses(node string, issued time.Time) bool { return issued.Before(r[node]) }

func (r removedAt) OlderThan(limit time.Time) []string {
	var names []string
	for node, at := range r {
		if at.Before(limit) {
			names = append(names, "kubelith-removed-"+node)
		}
	}
	return names
}

// renewing is the request of a node whose certificate is about to expire.
func renewing(t *testing.T, node string, key *ecdsa.PrivateKey) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	r := joining(t, "csr", node, key)
	r.Spec.Username, r.Spec.Groups = "system:node:"+node, []string{"system:nodes", "system:authenticated"}
	return r
}

// TestRenewal: one rule for the next certificate of a node in each line. The machine of the node a is the digit a.
func TestRenewal(t *testing.T) {
	key := newKey(t)
	machine := func(digit string) string { return strings.Repeat(digit, 64) }
	of := func(digit string) *corev1.Node {
		n := node("a")
		n.Labels = map[string]string{names.MachineLabel: machine(digit)[:63]}
		return n
	}
	none := func(*certificatesv1.CertificateSigningRequest) {}
	const otherMachine = "NotANode: label kubelith.io/machine of node a does not identify the machine that joined under this name"
	for name, tc := range map[string]struct {
		objects []runtime.Object
		removed removedAt
		change  func(*certificatesv1.CertificateSigningRequest)
		want    string
		owner   string // who has the name afterwards
	}{
		"a node":                                {[]runtime.Object{of("a"), reservation("a", machine("a"), made)}, nil, none, "approved", machine("a")},
		"deleted":                               {[]runtime.Object{reservation("a", machine("a"), made)}, nil, none, "NotANode: node a does not exist: its machine must join again with a token", machine("a")},
		"of another machine":                    {[]runtime.Object{of("b"), reservation("a", machine("a"), made)}, nil, none, otherMachine, machine("a")},
		"without a label":                       {[]runtime.Object{node("a"), reservation("a", machine("a"), made)}, nil, none, otherMachine, machine("a")},
		"of no machine":                         {[]runtime.Object{node("a")}, nil, none, otherMachine, ""},
		"reserved for no machine":               {[]runtime.Object{of("a"), reservation("a", "", made)}, nil, none, otherMachine, ""},
		"deleted and registered again":          {[]runtime.Object{of("a")}, nil, none, "approved", machine("a")[:63]},
		"deleted, registered again, reserved":   {[]runtime.Object{of("a"), reservation("a", machine("a")[:63], made)}, nil, none, "approved", machine("a")[:63]},
		"removed after its request":             {[]runtime.Object{of("a"), reservation("a", machine("a"), made)}, removedAt{"a": made.Add(time.Second)}, none, "NotANode: the node a was removed: join again with a token", machine("a")},
		"removed and joined before its request": {[]runtime.Object{of("a"), reservation("a", machine("a"), made)}, removedAt{"a": made.Add(-time.Minute)}, none, "approved", machine("a")},
		"another was removed":                   {[]runtime.Object{of("a"), reservation("a", machine("a"), made)}, removedAt{"b": made.Add(time.Hour)}, none, "approved", machine("a")},
		"for another node": {[]runtime.Object{of("a"), reservation("a", machine("a"), made)}, nil, func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Username = "system:node:b"
		}, "NotItself: system:node:b may request a certificate for itself only, not for system:node:a", machine("a")},
		"not in the group": {[]runtime.Object{of("a"), reservation("a", machine("a"), made)}, nil, func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Groups = []string{"system:authenticated"}
		}, "NotItself: ", machine("a")},
		"to serve": {[]runtime.Object{of("a"), reservation("a", machine("a"), made)}, nil, func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Usages = append(r.Spec.Usages, "server auth")
		}, "InvalidRequest: ", machine("a")},
		"masters": {[]runtime.Object{of("a"), reservation("a", machine("a"), made)}, nil, func(r *certificatesv1.CertificateSigningRequest) {
			s := subject("a")
			s.Organization = append(s.Organization, "system:masters")
			r.Spec.Request = request(t, key, x509.CertificateRequest{Subject: s})
		}, "InvalidRequest: ", machine("a")},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, tc.objects...)
			c.removed = tc.removed
			r := renewing(t, "a", key)
			tc.change(r)
			got, err := c.ask(t, r)
			if err != nil || !strings.HasPrefix(got, tc.want) {
				t.Errorf("%q, %v, want %q", got, err, tc.want)
			}
			if owner := c.reservedFor(t, "a"); owner != tc.owner {
				t.Errorf("the name is reserved for %q, want %q", owner, tc.owner)
			}
			if len(c.spent) > 0 {
				t.Errorf("a token was spent: %v", c.spent)
			}
		})
	}
}

// A machine that joins under the name of a node which was removed just now waits until certificates are valid again.
func TestJoinAfterRemoval(t *testing.T) {
	c := newCluster(t)
	c.now = func() time.Time { return made }
	c.removed = removedAt{"a": made.Add(time.Second)}
	r := joining(t, "csr", "a", newKey(t))
	if got, err := c.ask(t, r); err == nil || got != "" || c.reservedFor(t, "a") != "" {
		t.Errorf("at once: %q, %v", got, err)
	}
	c.now = func() time.Time { return made.Add(time.Second) }
	if got, err := c.ask(t, r); err != nil || got != "approved" {
		t.Errorf("later: %q, %v", got, err)
	}
}

// The record of a removal goes when no certificate of before can be valid.
func TestForgetRemoved(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for name, tc := range map[string]struct {
		life, age time.Duration
		want      int
	}{
		"young":                  {90 * 24 * time.Hour, year, 1},
		"old":                    {90 * 24 * time.Hour, year + 2*time.Hour, 0},
		"long-lived, young":      {3 * year, 2 * year, 1},
		"long-lived, of old age": {3 * year, 3*year + 2*time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.opts.CertificateLife, c.removed = tc.life, removedAt{"a": made.Add(-tc.age)}
			secrets := c.client.CoreV1().Secrets("kube-system")
			if _, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "kubelith-removed-a"}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			c.now = func() time.Time { return made }
			c.deleteOldRecords(t.Context())
			left, err := secrets.List(t.Context(), metav1.ListOptions{})
			if err != nil || len(left.Items) != tc.want {
				t.Errorf("%d records, %v, want %d", len(left.Items), err, tc.want)
			}
		})
	}
}
