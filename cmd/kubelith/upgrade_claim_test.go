package kubelith

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/host/upgrade"
)

// TestClaim: one command upgrades the cluster at a time. Its own server takes the claim over after a crash, another one
// when it has not been renewed for as long as it says.
func TestClaim(t *testing.T) {
	const valid = 10 * time.Minute
	for _, c := range []struct {
		what, holder string // of the Lease that is there; no holder: none
		age          time.Duration
		renewed      bool // while the command looks
		want         string
	}{
		{"the first", "", 0, false, ""},
		{"of another server", "b", valid - time.Minute, false, "another upgrade of the cluster is under way, on b"},
		{"of another server, not renewed", "b", valid + time.Minute, false, ""},
		{"of another server, whose clock is behind", "b", valid + time.Minute, true, "another upgrade of the cluster is under way, on b"},
		{"of this server, interrupted", "a", 0, false, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			cs := fake.NewClientset()
			if c.holder != "" {
				cs = fake.NewClientset(leaseOf(c.holder, time.Now().Add(-c.age), valid))
			}
			if c.renewed {
				time.AfterFunc(claimRenewal, func() {
					if _, err := cs.CoordinationV1().Leases(metav1.NamespaceSystem).Update(t.Context(), leaseOf(c.holder, time.Now().Add(-c.age), valid), metav1.UpdateOptions{}); err != nil {
						t.Error(err)
					}
				})
			}
			leases := cs.CoordinationV1().Leases(metav1.NamespaceSystem)
			claimed := &claim{leases: leases, holder: "a", valid: valid}
			err := claimed.take(t.Context())
			if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("%s: %v, want %q", c.what, err, c.want)
			}
			l, err := leases.Get(t.Context(), names.UpgradeLease, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if want := map[bool]string{true: "a", false: "b"}[c.want == ""]; *l.Spec.HolderIdentity != want {
				t.Errorf("%s: %s holds it, want %s", c.what, *l.Spec.HolderIdentity, want)
			}
			if c.want != "" {
				return
			}
			if claimed.giveBack(); !gone(t, cs) {
				t.Errorf("%s: it is not given back", c.what)
			}
		})
	}
}

// TestClaimBeaten: of two commands that begin at the same time, one is refused.
func TestClaimBeaten(t *testing.T) {
	resource := coordinationv1.Resource("leases")
	for verb, fails := range map[string]error{
		"create": apierrors.NewAlreadyExists(resource, names.UpgradeLease),
		"update": apierrors.NewConflict(resource, names.UpgradeLease, errors.New("changed")),
	} {
		cs := fake.NewClientset()
		if verb == "update" {
			cs = fake.NewClientset(leaseOf("a", time.Now(), time.Minute))
		}
		cs.PrependReactor(verb, "leases", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, fails })
		claimed := &claim{leases: cs.CoordinationV1().Leases(metav1.NamespaceSystem), holder: "a", valid: time.Minute}
		if err := claimed.take(t.Context()); err == nil || !strings.Contains(err.Error(), "began at the same time") {
			t.Errorf("%s: %v", verb, err)
		}
	}
}

// TestClaimHeld: a claim is renewed while the command runs, and the command ends when it is another's.
func TestClaimHeld(t *testing.T) {
	for _, c := range []struct {
		what, want string
		lose       func(*testing.T, *fake.Clientset)
	}{
		{"it is another's", "another upgrade of the cluster has begun, on b", func(t *testing.T, cs *fake.Clientset) {
			if _, err := cs.CoordinationV1().Leases(metav1.NamespaceSystem).Update(t.Context(), leaseOf("b", time.Now(), time.Minute), metav1.UpdateOptions{}); err != nil {
				t.Error(err)
			}
		}},
		{"it is deleted", "the Lease kube-system/kubelith-upgrade was deleted", func(t *testing.T, cs *fake.Clientset) {
			if err := cs.CoordinationV1().Leases(metav1.NamespaceSystem).Delete(t.Context(), names.UpgradeLease, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			cs := fake.NewClientset()
			r := &rollout{o: upgrade.Options{Within: time.Minute, DataDir: t.TempDir()}, self: "a", client: cs}
			held, release, err := r.claim(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := (&rollout{o: r.o, self: "a", client: cs}).claim(t.Context()); err == nil || !strings.Contains(err.Error(), "another upgrade is under way") {
				t.Errorf("another command on the same machine: %v", err)
			}
			began := time.Now()
			time.Sleep(time.Hour + claimRenewal/2)
			l, err := cs.CoordinationV1().Leases(metav1.NamespaceSystem).Get(t.Context(), names.UpgradeLease, metav1.GetOptions{})
			if err != nil || held.Err() != nil || l.Spec.RenewTime.Sub(began) < time.Hour-2*claimRenewal {
				t.Fatalf("after an hour: renewed at %v, %v, %v", l.Spec.RenewTime, err, held.Err())
			}
			c.lose(t, cs)
			time.Sleep(2 * claimRenewal)
			if cause := context.Cause(held); cause == nil || cause.Error() != c.want {
				t.Errorf("%s: the command ended with %v, want %q", c.what, cause, c.want)
			}
			if release(); c.what == "it is another's" && gone(t, cs) {
				t.Error("another's claim was given back")
			}
		})
	}
}

func leaseOf(holder string, renewed time.Time, valid time.Duration) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: names.UpgradeLease},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, RenewTime: ptr.To(metav1.NewMicroTime(renewed)), LeaseDurationSeconds: ptr.To(int32(valid / time.Second)),
		},
	}
}

func gone(t *testing.T, cs *fake.Clientset) bool {
	t.Helper()
	_, err := cs.CoordinationV1().Leases(metav1.NamespaceSystem).Get(t.Context(), names.UpgradeLease, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}
