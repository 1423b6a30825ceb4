package network

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
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

// answering serves the address for the name over UDP, until the test ends.
func answering(t *testing.T, at, name, address string) {
	t.Helper()
	conn, err := net.ListenPacket("udp", at)
	if err != nil {
		t.Fatal(err)
	}
	upstream := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(r)
		if q := r.Question[0]; q.Name == name && q.Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.ParseIP(address)}}
		} else {
			m.Rcode = dns.RcodeNameError
		}
		w.WriteMsg(m)
	})}
	go upstream.ActivateAndServe()
	t.Cleanup(func() { upstream.Shutdown() })
}

// TestDNSFollowsResolvers: another resolver of the host is asked without a restart, and pods that see the host's get
// it.
func TestDNSFollowsResolvers(t *testing.T) { // not parallel: the others use the resolver of before
	s := cluster.Get(t)
	ns, file := s.Namespace(t), s.Path("/etc/resolv.conf")
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	restore := func() {
		if err := os.WriteFile(file, before, 0o644); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(restore)
	answering(t, s.HostIP+":53", "late.example.", "192.0.2.79")
	if err := os.WriteFile(file, []byte("nameserver 192.0.2.53\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	log := func(text string) {
		t.Helper()
		harness.Eventually(t, 20*time.Second, text, func() error {
			if !strings.Contains(s.Logs(), text) {
				return errors.New("the log does not have it")
			}
			return nil
		})
	}
	log("the host's resolvers changed from [" + s.HostIP + "] to [192.0.2.53]")
	pod := sleeper(ns, "with-the-hosts")
	pod.Spec.DNSPolicy = corev1.DNSDefault
	s.Run(t, pod)
	if conf := s.Kubectl(t, "-n", ns, "exec", pod.Name, "--", "cat", "/etc/resolv.conf"); !strings.Contains(conf, "nameserver 192.0.2.53") {
		t.Errorf("a pod with dnsPolicy Default has %s", conf)
	}
	restore()
	log("the host's resolvers changed from [192.0.2.53] to [" + s.HostIP + "]")
	lookup(t, s, s.Run(t, sleeper(ns, "client")), "A", "late.example.", "192.0.2.79")
}

// TestDNSCustom: the ConfigMap coredns-custom adds names and resolvers while DNS runs, and a wrong one takes nothing
// away.
func TestDNSCustom(t *testing.T) { // not parallel: DNS forgets its cache when it is replaced
	s := cluster.Get(t)
	ns := s.Namespace(t)
	answering(t, s.HostIP+":5353", "a.stub.example.", "192.0.2.81")
	client := s.Run(t, sleeper(ns, "client"))
	configMaps := s.Client(t).CoreV1().ConfigMaps(metav1.NamespaceSystem)
	custom := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "coredns-custom"}, Data: map[string]string{
		"added.override": "hosts {\n  192.0.2.80 added.example\n  fallthrough\n}",
		"stub.server":    "stub.example:53 {\n  errors\n  forward . " + s.HostIP + ":5353\n}",
	}}
	if _, err := configMaps.Create(t.Context(), custom, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = configMaps.Delete(context.Background(), custom.Name, metav1.DeleteOptions{}) })
	served := func() {
		t.Helper()
		lookup(t, s, client, "A", "added.example.", "192.0.2.80")
		lookup(t, s, client, "A", "a.stub.example.", "192.0.2.81")
		lookup(t, s, client, "A", "kubernetes.default.svc.cluster.local.", "10.43.0.1")
	}
	served()
	for _, wrong := range []struct{ text, why string }{
		{"hosts {", "missing } at the end"}, // it cannot be read
		{"nosuchplugin 1", "nosuchplugin"},  // CoreDNS does not know it
		{"forward", "plugin/forward"},       // CoreDNS cannot set it up
	} {
		custom.Data["added.override"] = wrong.text
		if _, err := configMaps.Update(t.Context(), custom, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, 20*time.Second, "an Event about "+wrong.text, func() error {
			events, err := s.Client(t).CoreV1().Events(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=CustomRefused"})
			if err == nil && !slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return strings.Contains(e.Message, wrong.why) }) {
				err = fmt.Errorf("there are %d", len(events.Items))
			}
			return err
		})
		served()
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
	for _, name := range []string{"kubernetes.default.svc.cluster.local.", "outside.example."} {
		var m *dns.Msg
		harness.Eventually(t, 20*time.Second, "an answer about "+name, func() (err error) {
			m, err = harness.QueryDNS((&net.Dialer{}).DialContext, "udp", port, name, dns.TypeA)
			return err
		})
		if m.Rcode != dns.RcodeRefused || len(m.Answer) > 0 {
			t.Errorf("%s from outside: %s", name, m)
		}
	}
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(t.Context(), "tcp", port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second)) // CoreDNS itself would wait longer for a query
	if n, err := conn.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a TCP connection from outside stays open: %d bytes, %v", n, err)
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

// echo is a program that sends UDP packets back to where they came from.
const echo = `my $s = IO::Socket::INET->new(Proto => "udp", LocalAddr => $ARGV[0]) or die "listen: $@\n"; print "listens\n"; while ($s->recv(my $m, 512)) { $s->send($m) }`

// TestDNSPortIsForRoot: while the server is stopped, a user of the host can listen at the port of DNS, and no pod hears
// from them.
func TestDNSPortIsForRoot(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{})
	pod := s.Run(t, sleeper(s.Namespace(t), "client"))
	pid := s.ContainerPID(t, pod, "main")
	// The pod may run before the node sends its queries to DNS.
	harness.Eventually(t, 20*time.Second, "an answer to the pod", func() error {
		_, err := harness.QueryDNS(func(ctx context.Context, network, address string) (net.Conn, error) {
			return harness.DialFrom(ctx, pid, network, address)
		}, "udp", "10.43.0.10:53", "kubernetes.default.svc.cluster.local.", dns.TypeA)
		return err
	})
	s.Stop(t)
	ask := func(user ...string) error {
		t.Helper()
		cmd := s.Command("setpriv", slices.Concat(user, []string{"perl", "-MIO::Socket::INET", "-e", "$| = 1; " + echo, s.NodeIP + ":10053"})...)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() { cmd.Process.Kill(); cmd.Wait() }()
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "listens\n" {
			t.Fatalf("the program says %q, %v", line, err)
		}
		conn, err := harness.DialFrom(t.Context(), pid, "udp", "10.43.0.10:53")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
		if _, err := conn.Write([]byte("query")); err != nil {
			t.Fatal(err)
		}
		_, err = conn.Read(make([]byte, 16))
		return err
	}
	if err := ask("--nnp"); err != nil {
		t.Errorf("root does not answer: %v", err)
	}
	if err := ask("--reuid=65534", "--regid=65534", "--clear-groups"); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("another user answers, or: %v", err)
	}
	s.Launch(t)
	s.WaitReady(t)
}
