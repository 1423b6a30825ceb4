package kubelith

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/ptr"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/host/upgrade"
)

// claimRenewal is the time between two renewals of the claim.
const claimRenewal = 10 * time.Second

// claim is the right to upgrade the cluster: two commands could restart two servers at once. On one machine a lock
// decides, and among machines a Lease. A command that was interrupted leaves its Lease, since the node that it was
// upgrading goes on: its own machine takes it over.
type claim struct {
	leases coordinationclient.LeaseInterface
	holder string        // this server
	valid  time.Duration // after the last renewal; the API of this server is away for a while when it is upgraded itself
	lease  *coordinationv1.Lease
}

// claim returns a context that ends when another command has taken the claim away, and what gives the claim back; it is
// kept when ctx has ended.
func (r *rollout) claim(ctx context.Context) (held context.Context, release func(), err error) {
	unlock, err := upgrade.HoldCluster(r.o.DataDir)
	if err != nil {
		return nil, nil, err
	}
	c := &claim{leases: r.client.CoordinationV1().Leases(metav1.NamespaceSystem), holder: r.self, valid: 2*r.o.Within + transferTime}
	if err := c.take(ctx); err != nil {
		unlock()
		return nil, nil, err
	}
	held, end := context.WithCancelCause(ctx)
	var renewing sync.WaitGroup
	renewing.Go(func() { c.keep(held, end) })
	return held, func() {
		end(nil)
		renewing.Wait()
		if ctx.Err() == nil {
			c.giveBack()
		}
		unlock()
	}, nil
}

// take takes the claim, unless another server holds it.
func (c *claim) take(ctx context.Context) error {
	lease, err := c.read(ctx)
	if err == nil && c.isOthers(lease) && time.Now().After(expiry(lease)) { // by the clocks of two machines: is it renewed?
		before := lease.Spec.RenewTime
		if !reconcile.Sleep(ctx, 2*claimRenewal) {
			return ctx.Err()
		}
		if lease, err = c.read(ctx); err == nil && lease.Spec.RenewTime.Equal(before) {
			lease.Spec.HolderIdentity = nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	now := metav1.NowMicro()
	spec := coordinationv1.LeaseSpec{
		HolderIdentity: &c.holder, LeaseDurationSeconds: ptr.To(int32(c.valid / time.Second)), AcquireTime: &now, RenewTime: &now,
	}
	if apierrors.IsNotFound(err) {
		c.lease, err = c.leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: names.UpgradeLease}, Spec: spec}, metav1.CreateOptions{})
		return c.beaten(err)
	}
	if err != nil {
		return err
	}
	if c.isOthers(lease) {
		return fmt.Errorf("another upgrade of the cluster is under way, on %s: wait for it to end; "+
			"if it was interrupted, run it again there, or delete its Lease first: kubelith kubectl delete lease -n %s %s",
			*lease.Spec.HolderIdentity, metav1.NamespaceSystem, names.UpgradeLease)
	}
	lease.Spec = spec
	c.lease, err = c.leases.Update(ctx, lease, metav1.UpdateOptions{}) // fails when another has done so since
	return c.beaten(err)
}

func (c *claim) read(ctx context.Context) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return c.leases.Get(ctx, names.UpgradeLease, metav1.GetOptions{})
}

// isOthers reports whether another server holds the Lease.
func (c *claim) isOthers(l *coordinationv1.Lease) bool {
	holder := ptr.Deref(l.Spec.HolderIdentity, "")
	return holder != "" && holder != c.holder
}

// isOurs reports whether it is still the Lease that take has taken.
func (c *claim) isOurs(l *coordinationv1.Lease) bool {
	return l.UID == c.lease.UID && ptr.Deref(l.Spec.HolderIdentity, "") == c.holder
}

// beaten returns err, in words for the user when another server took the claim at the same time.
func (c *claim) beaten(err error) error {
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
		return errors.New("another upgrade of the cluster began at the same time: wait for it to end")
	}
	return err
}

// expiry is when a claim that is not renewed is over.
func expiry(l *coordinationv1.Lease) time.Time {
	if l.Spec.RenewTime == nil {
		return time.Time{}
	}
	return l.Spec.RenewTime.Add(time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, 0)) * time.Second)
}

// keep renews the claim until ctx ends. It calls end when the claim is another's.
func (c *claim) keep(ctx context.Context, end func(error)) {
	for {
		if !reconcile.Sleep(ctx, claimRenewal) {
			return
		}
		if err := c.renew(ctx); err != nil {
			end(err)
		}
	}
}

// renew returns an error when the claim is lost. That the API does not answer is none: servers restart.
func (c *claim) renew(ctx context.Context) error {
	lease, err := c.read(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("the Lease %s/%s was deleted", metav1.NamespaceSystem, names.UpgradeLease)
	case err != nil:
		return nil
	case !c.isOurs(lease):
		return fmt.Errorf("another upgrade of the cluster has begun, on %s", ptr.Deref(lease.Spec.HolderIdentity, ""))
	}
	lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, _ = c.leases.Update(ctx, lease, metav1.UpdateOptions{}) // else the next time
	return nil
}

// giveBack lets the next command begin at once, on whichever server.
func (c *claim) giveBack() {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	lease, err := c.read(ctx)
	if err != nil || !c.isOurs(lease) {
		return
	}
	_ = c.leases.Delete(ctx, lease.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion}})
}
