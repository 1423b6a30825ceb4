package policy

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/components/worker/policy/kernel"
	"kubelith.io/kubelith/components/worker/policy/rules"
)

// logDrops logs dropped packets until ctx ends.
func (r *run) logDrops(ctx context.Context) {
	// The kernel limits each class by itself.
	limit := rate.NewLimiter(rate.Limit(r.opts.LogDrops), r.opts.LogDrops)
	left := 0
	for ctx.Err() == nil {
		err := kernel.ReadDrops(ctx, func(d kernel.Drop) {
			if !limit.Allow() {
				left++
				return
			}
			if left > 0 {
				r.opts.Log.Infof("dropped %d more packets that are not logged", left)
				left = 0
			}
			r.mu.Lock()
			line := dropLine(r.compiler, d)
			r.mu.Unlock()
			r.opts.Log.Info(line)
		})
		if err != nil && r.loggedDrops.News("", err.Error()) {
			r.opts.Log.Warn(err)
		}
		reconcile.Sleep(ctx, retry)
	}
}

// dropLine describes a dropped packet: "dropped default/web (10.42.0.5) to default/db (10.42.0.6) TCP port 8080:
// ingress, no rule of NetworkPolicy default/db matches". The compiler may be nil.
func dropLine(c *rules.Compiler, d kernel.Drop) string {
	if d.Reply { // the connection's view is the policies'
		d.From, d.To, d.FromPort, d.ToPort = d.To, d.From, d.ToPort, d.FromPort
	}
	named := func(ip netip.Addr) string {
		if c != nil {
			if name, _ := c.Name(ip); name != "" {
				return fmt.Sprintf("%s (%s)", name, ip)
			}
		}
		return ip.String()
	}
	protocol := map[uint8]corev1.Protocol{
		unix.IPPROTO_TCP:  corev1.ProtocolTCP,
		unix.IPPROTO_UDP:  corev1.ProtocolUDP,
		unix.IPPROTO_SCTP: corev1.ProtocolSCTP,
	}[d.Protocol]
	what := fmt.Sprintf("%s port %d", protocol, d.ToPort)
	if protocol == "" {
		what = fmt.Sprintf("IP protocol %d", d.Protocol)
	}
	if d.Reply {
		what += ", a reply"
	}
	return fmt.Sprintf("dropped %s to %s %s: %s", named(d.From), named(d.To), what, reason(c, d, protocol))
}

// reason is the present result of Explain; the policies may have changed since the packet was dropped.
func reason(c *rules.Compiler, d kernel.Drop, protocol corev1.Protocol) string {
	if d.Class == rules.Closed || c == nil {
		return "the network policies of the pod are not known yet"
	}
	direction, subject, other := rules.Ingress, d.To, d.From
	if strings.HasPrefix(d.Class, rules.Egress.String()) {
		direction, subject, other = rules.Egress, d.From, d.To
	}
	if _, uid := c.Name(subject); uid != "" && protocol != "" {
		if why, err := c.Explain(uid, direction, other, protocol, d.ToPort); err == nil && why.Verdict == rules.Deny {
			return why.Because()
		}
	}
	for _, class := range c.Classes() {
		if class.Name == d.Class {
			return rules.Reason{Direction: direction, Policies: class.Policies}.Because()
		}
	}
	return direction.String() + ", a policy that has changed since"
}
