package policy

import (
	"net/netip"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubelith.io/kubelith/components/worker/policy/kernel"
	"kubelith.io/kubelith/components/worker/policy/rules"
)

func TestDropLine(t *testing.T) {
	web, db, outside := netip.MustParseAddr("10.42.0.5"), netip.MustParseAddr("10.42.0.6"), netip.MustParseAddr("192.0.2.1")
	c := rules.NewCompiler()
	c.SetNamespace("default", nil)
	c.SetPolicy(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db"}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, PolicyTypes: []networkingv1.PolicyType{"Ingress", "Egress"},
	}})
	for name, ip := range map[string]netip.Addr{"web": web, "db": db} {
		c.SetPod(&rules.Pod{Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{"app": name}, IPs: []netip.Addr{ip}})
		c.AddLocal(types.UID(name), []netip.Addr{ip})
	}
	c.All()
	ingress, egress := "", ""
	for _, class := range c.Classes() {
		if class.Direction == rules.Ingress {
			ingress = class.Name
		} else {
			egress = class.Name
		}
	}
	const (
		tcp  = 6
		icmp = 1
	)
	for want, drop := range map[string]kernel.Drop{
		"dropped default/web (10.42.0.5) to default/db (10.42.0.6) TCP port 8080: ingress, no rule of NetworkPolicy default/db matches": {
			Class: ingress, From: web, To: db, Protocol: tcp, FromPort: 40000, ToPort: 8080},
		"dropped default/web (10.42.0.5) to default/db (10.42.0.6) TCP port 8080, a reply: ingress, no rule of NetworkPolicy default/db matches": {
			Class: ingress, Reply: true, From: db, To: web, Protocol: tcp, FromPort: 8080, ToPort: 40000},
		"dropped default/db (10.42.0.6) to 192.0.2.1 IP protocol 1: egress, no rule of NetworkPolicy default/db matches": {
			Class: egress, From: db, To: outside, Protocol: icmp},
		"dropped default/web (10.42.0.5) to 192.0.2.1 TCP port 1: the network policies of the pod are not known yet": {
			Class: rules.Closed, From: web, To: outside, Protocol: tcp, ToPort: 1},
		"dropped default/web (10.42.0.5) to 192.0.2.1 TCP port 2: egress, a policy that has changed since": {
			Class: "egress-99", From: web, To: outside, Protocol: tcp, ToPort: 2},
	} {
		if got := dropLine(c, drop); got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
	}
	if got, want := dropLine(nil, kernel.Drop{Class: ingress, From: web, To: db, Protocol: tcp}), "dropped 10.42.0.5 to 10.42.0.6 TCP port 0: the network policies of the pod are not known yet"; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
