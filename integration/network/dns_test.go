package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

func TestDNSOfServices(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	zone := ns + ".svc.cluster.local"
	client := s.Run(t, sleeper(ns, "client"))
	svc := service(t, s, ns, "web", nil)
	service(t, s, ns, "elsewhere", func(svc *corev1.Service) {
		*svc = corev1.Service{ObjectMeta: svc.ObjectMeta, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "web." + zone}}
	})
	lookup(t, s, client, "A", "web", svc.Spec.ClusterIP)
	lookup(t, s, client, "A", "web."+zone+".", svc.Spec.ClusterIP)
	lookup(t, s, client, "A", "kubernetes.default", "10.43.0.1")
	lookup(t, s, client, "SRV", "_http._tcp.web."+zone+".", "web."+zone+".:80")
	lookup(t, s, client, "PTR", svc.Spec.ClusterIP, "web."+zone+".")
	lookup(t, s, client, "CNAME", "elsewhere."+zone+".", "web."+zone+".")
	lookup(t, s, client, "A", "elsewhere", svc.Spec.ClusterIP)

	if _, errOut, err := s.TryPodExec(t, client, "main", "/bin/probe", "lookup", "A", "nobody."+zone+"."); err == nil || !strings.Contains(errOut, "no such host") {
		t.Errorf("a name that does not exist: %v %s", err, errOut)
	}
	s.Kubectl(t, "-n", ns, "delete", "service", "web")
	harness.Eventually(t, 20*time.Second, "the name of the deleted Service to go", func() error {
		m, err := harness.QueryDNS(s.DialContext, "udp", clusterDNS+":53", "web."+zone+".", dns.TypeA)
		if err != nil {
			return err
		}
		if m.Rcode != dns.RcodeNameError {
			return fmt.Errorf("the answer is %s", m)
		}
		return nil
	})
}

func TestDNSOfStatefulSet(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	zone := ns + ".svc.cluster.local"
	client := s.Create(t, sleeper(ns, "client"))
	service(t, s, ns, "db", func(svc *corev1.Service) { svc.Spec.ClusterIP = corev1.ClusterIPNone })
	two := int32(2)
	template := web(ns, "db")
	template.Spec.RestartPolicy = corev1.RestartPolicyAlways
	_, err := s.Client(t).AppsV1().StatefulSets(ns).Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			ServiceName: "db", Replicas: &two, PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector: &metav1.LabelSelector{MatchLabels: template.Labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: template.Labels}, Spec: template.Spec},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var ips []string
	for _, name := range []string{"db-0", "db-1"} {
		pod := s.WaitRunning(t, harness.Pod(ns, name))
		ips = append(ips, pod.Status.PodIP)
	}
	client = s.WaitRunning(t, client)
	lookup(t, s, client, "A", "db-0.db", ips[0])
	lookup(t, s, client, "A", "db-1.db."+zone+".", ips[1])
	both := slices.Sorted(slices.Values(ips))
	lookup(t, s, client, "A", "db", both...)
	lookup(t, s, client, "SRV", "_http._tcp.db."+zone+".", "db-0.db."+zone+".:8080", "db-1.db."+zone+".:8080")
	lookup(t, s, client, "PTR", ips[1], "db-1.db."+zone+".")
	if a := mustAsk(t, s, client, "http://db-1.db:8080/"); a.Hostname != "db-1" {
		t.Errorf("db-1.db is %s", a.Hostname)
	}
}

// TestDNSFromNode: processes of the host reach cluster DNS at its Service, over UDP and TCP.
func TestDNSFromNode(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	for _, network := range []string{"udp", "tcp"} {
		harness.Eventually(t, 10*time.Second, "DNS over "+network, func() error {
			m, err := harness.QueryDNS(s.DialContext, network, clusterDNS+":53", "kubernetes.default.svc.cluster.local.", dns.TypeA)
			if err != nil {
				return err
			}
			if len(m.Answer) != 1 || m.Answer[0].(*dns.A).A.String() != "10.43.0.1" {
				return fmt.Errorf("the answer is %s", m)
			}
			return nil
		})
	}
}

// TestDNSForwarding: other names go to the resolver in the host's resolv.conf, which is the test.
func TestDNSForwarding(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	conn, err := net.ListenPacket("udp", s.HostIP+":53")
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	upstream := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(r)
		switch q := r.Question[0]; {
		case strings.HasSuffix(q.Name, "cluster.local."):
			t.Errorf("a name of the cluster was forwarded: %s", q.Name)
			m.Rcode = dns.RcodeServerFailure
		case q.Name == "outside.example." && q.Qtype == dns.TypeA:
			asked.Add(1)
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.ParseIP("192.0.2.77")}}
		default:
			m.Rcode = dns.RcodeNameError
		}
		w.WriteMsg(m)
	})}
	go upstream.ActivateAndServe()
	defer upstream.Shutdown()

	ns := s.Namespace(t)
	client := s.Run(t, sleeper(ns, "client"))
	lookup(t, s, client, "A", "outside.example.", "192.0.2.77")
	if asked.Load() == 0 {
		t.Error("the upstream resolver was not asked")
	}
	before := asked.Load()
	lookup(t, s, client, "A", "outside.example.", "192.0.2.77")
	if after := asked.Load(); after != before {
		t.Errorf("an answer with a TTL of 60 s was asked for again")
	}
}

// TestDNSRefusesForeigners: the node is no open resolver for the network that it is in.
func TestDNSRefusesForeigners(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	port := s.NodeIP + ":10053"
	for _, network := range []string{"udp", "tcp"} {
		for _, name := range []string{"kubernetes.default.svc.cluster.local.", "outside.example."} {
			m, err := harness.QueryDNS((&net.Dialer{}).DialContext, network, port, name, dns.TypeA)
			if err != nil {
				t.Fatalf("%s over %s: %v", name, network, err)
			}
			if m.Rcode != dns.RcodeRefused || len(m.Answer) > 0 {
				t.Errorf("%s over %s from outside: %s", name, network, m)
			}
		}
	}
	// The node may be Ready a moment before DNS knows the Service.
	harness.Eventually(t, 10*time.Second, "an answer to the node itself, at the same port", func() error {
		m, err := harness.QueryDNS(func(ctx context.Context, network, address string) (net.Conn, error) {
			return s.DialContext(ctx, network, address)
		}, "udp", port, "kubernetes.default.svc.cluster.local.", dns.TypeA)
		if err == nil && len(m.Answer) != 1 {
			err = errors.New(m.String())
		}
		return err
	})
}
