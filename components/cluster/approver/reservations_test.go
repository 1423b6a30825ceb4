package approver

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"kubelith.io/kubelith/base/names"
)

func reservation(name, machine string, created time.Time) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kubelith-node." + name, CreationTimestamp: metav1.NewTime(created), Labels: map[string]string{"kubelith.io/reservation": "node"}},
		Data:       map[string]string{"machine": machine},
	}
}

func TestFreeGone(t *testing.T) {
	for name, tc := range map[string]struct {
		objects []runtime.Object
		want    string
	}{
		"deleted":          {[]runtime.Object{reservation("a", "m", made.Add(-time.Second))}, ""},
		"same second":      {[]runtime.Object{reservation("a", "m", made)}, ""},
		"registered again": {[]runtime.Object{reservation("a", "m", made), node("a")}, "m"},
		"the next machine": {[]runtime.Object{reservation("a", "n", made.Add(time.Second))}, "n"},
		"never reserved":   {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, append(tc.objects, reservation("b", "m", made))...)
			if !c.recordDeleted(cache.DeletedFinalStateUnknown{Obj: node("a")}) || c.recordDeleted("x") {
				t.Error("a deleted Node is not noticed, or something else is")
			}
			c.freeGone(t.Context())
			if got := c.reservedFor(t, "a"); got != tc.want {
				t.Errorf("reserved for %q, want %q", got, tc.want)
			}
			if c.reservedFor(t, "b") == "" {
				t.Error("another name was freed")
			}
			if len(c.gone) != 0 {
				t.Errorf("still noted: %v", c.gone)
			}
		})
	}
}

// A machine that registered its Node again and then joined again has its name reserved after the Node was created. The
// Node's label identifies the owner of the reservation.
func TestFreeGoneByLabel(t *testing.T) {
	hash := func(digit string) string { return strings.Repeat(digit, 64) }
	for machine, want := range map[string]string{hash("a"): "", hash("b"): hash("b")} {
		c := newCluster(t, reservation("a", machine, made.Add(time.Second)))
		gone := node("a")
		gone.Labels = map[string]string{names.MachineLabel: hash("a")[:63]}
		c.recordDeleted(gone)
		c.freeGone(t.Context())
		if got := c.reservedFor(t, "a"); got != want {
			t.Errorf("reserved for %q after the Node of a was deleted: %q, want %q", machine, got, want)
		}
	}
}

func TestFreeGoneAgain(t *testing.T) {
	c := newCluster(t, reservation("a", "m", made))
	fail := true
	c.client.PrependReactor("delete", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return fail, nil, errors.New("no quorum")
	})
	c.recordDeleted(node("a"))
	c.freeGone(t.Context())
	if c.reservedFor(t, "a") == "" {
		t.Fatal("it did not fail")
	}
	fail = false
	c.freeGone(t.Context())
	if c.reservedFor(t, "a") != "" {
		t.Error("not tried again")
	}
}

func TestFreeAbandoned(t *testing.T) {
	denied := joining(t, "denied", "denied", newKey(t))
	denied.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue}}
	c := newCluster(t, node("there"), joining(t, "again", "again", newKey(t)), denied,
		reservation("there", "m", made), reservation("away", "m", made), reservation("again", "m", made), reservation("denied", "m", made),
		reservation("new", "m", made.Add(time.Minute)), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kubelith-node.other", CreationTimestamp: metav1.NewTime(made)}})
	c.now = func() time.Time { return made.Add(time.Hour) }
	c.freeAbandoned(t.Context())
	for name, kept := range map[string]bool{"there": true, "away": false, "again": true, "denied": false, "new": true} {
		if got := c.reservedFor(t, name) != ""; got != kept {
			t.Errorf("%s: reserved %v, want %v", name, got, kept)
		}
	}
	if _, err := c.client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "kubelith-node.other", metav1.GetOptions{}); err != nil {
		t.Errorf("what is no reservation: %v", err)
	}
}

func TestRemoveDenied(t *testing.T) {
	with := func(r *certificatesv1.CertificateSigningRequest, name string, kind certificatesv1.RequestConditionType, since time.Time) *certificatesv1.CertificateSigningRequest {
		r.Name = name
		r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: kind, Status: corev1.ConditionTrue, LastUpdateTime: metav1.NewTime(since)}}
		return r
	}
	key := newKey(t)
	foreign := with(joining(t, "", "a", key), "of-a-person", certificatesv1.CertificateDenied, made)
	foreign.Spec.Username = "alice"
	c := newCluster(t,
		with(joining(t, "", "a", key), "denied", certificatesv1.CertificateDenied, made),
		with(joining(t, "", "a", key), "just-denied", certificatesv1.CertificateDenied, made.Add(time.Second)),
		with(joining(t, "", "a", key), "approved", certificatesv1.CertificateApproved, made),
		with(serving(t, "a", []string{"a"}), "serving", certificatesv1.CertificateDenied, made), foreign)
	c.now = func() time.Time { return made.Add(time.Minute) }
	c.removeDenied(t.Context())
	for name, kept := range map[string]bool{"denied": false, "just-denied": true, "approved": true, "serving": true, "of-a-person": true} {
		_, err := c.client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
		if (err == nil) != kept || err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v, want kept %v", name, err, kept)
		}
	}
}

// A token reserves no more names than machines may be joining with it: neither other tokens nor machines that have
// joined are affected.
func TestPendingIsBounded(t *testing.T) {
	var objects []runtime.Object
	for i := range maxPending {
		r := reservation(fmt.Sprint("pending-", i), strings.Repeat("f", 64), made)
		r.Data["token"] = "abc123"
		objects = append(objects, r)
	}
	key := newKey(t)
	const want = "TooManyPending: 100 machines have joined with token abc123 and not registered a node yet: delete the token"
	c := newCluster(t, objects...)
	if got, err := c.ask(t, joining(t, "one-more", "a", key)); err != nil || !strings.HasPrefix(got, want) || c.reservedFor(t, "a") != "" || len(c.spent) > 0 {
		t.Errorf("one more: %q, %v, reserved for %q", got, err, c.reservedFor(t, "a"))
	}
	other := joining(t, "other-token", "b", key)
	other.Spec.Username = "system:bootstrap:zzz999"
	if got, err := c.ask(t, other); err != nil || got != "approved" {
		t.Errorf("with another token: %q, %v", got, err)
	}
	r, err := c.client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "kubelith-node.b", metav1.GetOptions{})
	if err != nil || r.Data["token"] != "zzz999" {
		t.Errorf("the reservation: %v, %v", r, err)
	}
	// One of them has come.
	c = newCluster(t, append(objects, node("pending-7"))...)
	if got, err := c.ask(t, joining(t, "one-more", "a", key)); err != nil || got != "approved" {
		t.Errorf("when one has come: %q, %v", got, err)
	}
}
