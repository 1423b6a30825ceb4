package pods

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubelith.io/kubelith/integration/harness"
)

// TestHeartbeatOfTheFuture: a node whose clock was an hour ahead, and was set, goes on to renew its Lease, as the
// controller for the lives of nodes sees it.
func TestHeartbeatOfTheFuture(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	leases := s.Client(t).CoordinationV1().Leases(corev1.NamespaceNodeLease)
	var name string
	harness.Eventually(t, time.Minute, "the Lease of the node", func() error {
		list, err := leases.List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			return fmt.Errorf("%d Leases (%v)", len(list.Items), err)
		}
		name = list.Items[0].Name
		return nil
	})
	ahead := metav1.NewMicroTime(time.Now().Add(time.Hour).Truncate(time.Microsecond))
	patch := fmt.Sprintf(`{"spec": {"renewTime": %q}}`, ahead.UTC().Format(metav1.RFC3339Micro))
	patched, err := leases.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	renewals, before := 0, patched
	harness.Eventually(t, time.Minute, "the kubelet to renew its Lease twice", func() error {
		now, err := leases.Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if now.ResourceVersion != before.ResourceVersion {
			if !before.Spec.RenewTime.Before(now.Spec.RenewTime) {
				return harness.Permanent(fmt.Errorf("renewed at %v, before that at %v", now.Spec.RenewTime, before.Spec.RenewTime))
			}
			renewals, before = renewals+1, now
		}
		if renewals < 2 {
			return fmt.Errorf("%d renewals", renewals)
		}
		return nil
	})
}
