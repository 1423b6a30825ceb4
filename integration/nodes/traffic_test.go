package nodes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/integration/harness"
)

// trafficPart is a part of testTraffic. Its pods, one on each node, have the label app=web.
type trafficPart struct {
	name string
	run  func(t *testing.T, c *harness.Cluster, ns string, pods []*corev1.Pod)
}

// testTraffic lets pods of three nodes reach each other in every way that there is, with one of the backends. What does
// not depend on the backend is tested with one of them: more, with the parts that take long first.
func testTraffic(backend string, more ...trafficPart) func(*testing.T, *harness.Cluster) {
	return func(t *testing.T, c *harness.Cluster) {
		for _, n := range c.Nodes() {
			harness.Eventually(t, 30*time.Second, "the routes of "+n.NodeName(), func() error { return routesAre(t, c, n, backend) })
		}
		noPods(t, c) // those of another backend have another MTU, and the bridge of a node has the least of its pods
		ns := c.Namespace(t)
		pods := everywhere(t, c, ns, "web")
		// What counts packets runs before the others.
		t.Run("path", func(t *testing.T) { testPath(t, c, backend, pods) })
		t.Run("dns", func(t *testing.T) { testDNS(t, c, ns, pods) })
		t.Run("mtu", func(t *testing.T) { testMTU(t, c, backend, pods) })
		var parts []harness.Part
		for _, p := range slices.Concat(more, []trafficPart{
			{"pod-ip", testPodIPs}, {"cluster-ip", testClusterIP}, {"node-port", testNodePort}, {"load-balancer", testLoadBalancer},
			{"connections", testConnections},
		}) {
			parts = append(parts, harness.Part{Name: p.name, Run: func(t *testing.T) { p.run(t, c, ns, pods) }})
		}
		together(t, parts...)
	}
}

// meters is an nftables table that counts packets which leave a node: DNS queries and tunnelled ones.
const meters = `add table inet klt_meters
add counter inet klt_meters dns
add counter inet klt_meters vxlan
add chain inet klt_meters leave { type filter hook postrouting priority 300; }
add rule inet klt_meters leave oifname != { "lo", "cni0" } meta l4proto { tcp, udp } th dport { 53, 10053 } counter name dns
add rule inet klt_meters leave udp dport 8472 counter name vxlan`

// meter counts on all nodes until the test ends, and returns the sum of a counter.
func meter(t *testing.T, c *harness.Cluster) func(counter string) int {
	t.Helper()
	for _, n := range c.Nodes() {
		n.Exec(t, "nft", meters)
		t.Cleanup(func() { n.TryExec(t, "nft", "delete", "table", "inet", "klt_meters") })
	}
	packets := regexp.MustCompile(`packets (\d+) `)
	return func(counter string) (sum int) {
		t.Helper()
		for _, n := range c.Nodes() {
			out := n.Exec(t, "nft", "list", "counter", "inet", "klt_meters", counter)
			m := packets.FindStringSubmatch(out)
			if m == nil {
				t.Fatalf("nft list counter: %s", out)
			}
			count, err := strconv.Atoi(m[1])
			if err != nil {
				t.Fatal(err)
			}
			sum += count
		}
		return sum
	}
}

// testPath: with vxlan every packet between pods of two nodes is seen on the vxlan device, with host-gw there is none
// and nothing is tunnelled.
func testPath(t *testing.T, c *harness.Cluster, backend string, pods []*corev1.Pod) {
	const requests = 50
	read := meter(t, c)
	a, b := pods[1], pods[2]
	counters := func() [2]int64 {
		return [2]int64{
			c.NodeOf(t, a).LinkCounter(t, "flannel.1", "tx_packets"), c.NodeOf(t, b).LinkCounter(t, "flannel.1", "rx_packets"),
		}
	}
	dial := within(t, c, a)
	dial.mustAsk(t, "the other node's pod", b.Status.PodIP, 8080)
	before, tunnelled := counters(), read("vxlan")
	for range requests {
		if _, err := dial.ask(b.Status.PodIP, 8080); err != nil {
			t.Fatal(err)
		}
	}
	after, tunnelledAfter := counters(), read("vxlan")
	if backend == "host-gw" {
		if before != [2]int64{-1, -1} || after != before || tunnelledAfter > 0 {
			t.Errorf("flannel.1 counts %v and %v, %d packets were tunnelled", before, after, tunnelledAfter)
		}
		return
	}
	// A request on its own connection is at least SYN, ACK, GET and FIN.
	for i, what := range []string{"sent by " + a.Name, "received by " + b.Name} {
		if n := after[i] - before[i]; n < 4*requests {
			t.Errorf("%d requests are %d packets %s on flannel.1", requests, n, what)
		}
	}
	if n := tunnelledAfter - tunnelled; n < 8*requests {
		t.Errorf("%d requests and their answers are %d tunnelled packets", requests, n)
	}
}

// testDNS: each node answers for names of the cluster itself. Only other names make packets that leave the node.
func testDNS(t *testing.T, c *harness.Cluster, ns string, pods []*corev1.Pod) {
	headless := service(t, c, ns, "dns", func(svc *corev1.Service) {
		svc.Spec.ClusterIP, svc.Spec.Selector = corev1.ClusterIPNone, map[string]string{"app": "web"}
	})
	var ips []string
	for _, p := range pods {
		ips = append(ips, p.Status.PodIP)
	}
	for _, p := range pods { // they may learn of the Service a moment later
		within(t, c, p).mustLookup(t, "udp", headless.Name+"."+zone(ns), ips...)
	}
	read := meter(t, c)
	for _, p := range pods {
		dial := within(t, c, p)
		for _, network := range []string{"udp", "tcp"} {
			for i := range 20 {
				dial.mustLookup(t, network, headless.Name+"."+zone(ns), ips...)
				dial.mustLookup(t, network, "kubernetes.default.svc.cluster.local.", "10.43.0.1")
				if _, err := dial.lookup(network, fmt.Sprintf("nobody-%d.%s", i, zone(ns)), dns.TypeA); err == nil || !strings.Contains(err.Error(), "NXDOMAIN") {
					t.Fatalf("a name that does not exist: %v", err)
				}
			}
		}
	}
	if n := read("dns"); n != 0 {
		t.Errorf("%d DNS packets left a node", n)
	}
	for _, p := range pods {
		before := read("dns")
		within(t, c, p).lookup("udp", "outside.example.", dns.TypeA) // no server answers: only the packet counts
		if read("dns") == before {
			t.Errorf("the query of %s for another name was not seen to leave its node: then the test above shows nothing", p.Name)
		}
	}
}

// testMTU: a datagram as large as the pods' MTU crosses from each node to each other without being fragmented anywhere.
func testMTU(t *testing.T, c *harness.Cluster, backend string, pods []*corev1.Pod) {
	want := map[string]string{"vxlan": "1450\n", "host-gw": "1500\n"}[backend]
	before := fragments(t, c)
	for _, a := range pods {
		for _, b := range pods {
			if a == b {
				continue
			}
			if got := c.Server.PodExec(t, a, "main", "/bin/probe", "mtu", net.JoinHostPort(b.Status.PodIP, "9000")); got != want {
				t.Errorf("the MTU of %s is %q, not %q", a.Name, got, want)
			}
		}
	}
	if n := fragments(t, c) - before; n != 0 {
		t.Errorf("the nodes made %d fragments", n)
	}
}

// fragments is how many IPv4 fragments the nodes have made. Pods count for themselves.
func fragments(t *testing.T, c *harness.Cluster) (sum int) {
	t.Helper()
	for _, n := range c.Nodes() {
		out := n.Exec(t, "nstat", "-asz", "IpFragCreates")
		at := strings.Index(out, "IpFragCreates")
		if at < 0 {
			t.Fatalf("nstat: %s", out)
		}
		count, err := strconv.Atoi(strings.Fields(out[at:])[1])
		if err != nil {
			t.Fatalf("nstat: %v", err)
		}
		sum += count
	}
	return sum
}

// testPodIPs: every pod reaches every other one, which sees the pod's own address.
func testPodIPs(t *testing.T, c *harness.Cluster, ns string, pods []*corev1.Pod) {
	for _, a := range pods {
		for _, b := range pods {
			got := within(t, c, a).mustAsk(t, a.Name+" to "+b.Name, b.Status.PodIP, 8080)
			if got.Hostname != b.Name || got.From() != a.Status.PodIP {
				t.Errorf("%s to %s: %s answered and saw %s, the client is %s", a.Name, b.Name, got.Hostname, got.Remote, a.Status.PodIP)
			}
		}
		for _, n := range c.Nodes() { // the kubelet's own probes go this way only on its node
			if got := dialer(n.DialContext).mustAsk(t, n.NodeName()+" to "+a.Name, a.Status.PodIP, 8080); got.Hostname != a.Name {
				t.Errorf("%s to %s: answered by %s", n.NodeName(), a.Name, got.Hostname)
			}
		}
	}
}

// testClusterIP: a Service is spread over the pods of all nodes, from pods and nodes alike, by address and by name.
func testClusterIP(t *testing.T, c *harness.Cluster, ns string, pods []*corev1.Pod) {
	svc := service(t, c, ns, "cluster-ip", func(svc *corev1.Service) { svc.Spec.Selector = map[string]string{"app": "web"} })
	for _, p := range pods {
		dial := within(t, c, p)
		dial.mustLookup(t, "udp", svc.Name+"."+zone(ns), svc.Spec.ClusterIP)
		dial.mustReachAll(t, "the Service from "+p.Name, svc.Spec.ClusterIP, 80, pods)
	}
	for _, n := range c.Nodes() {
		dialer(n.DialContext).mustReachAll(t, "the Service from "+n.NodeName(), svc.Spec.ClusterIP, 80, pods)
	}
	out := c.Server.PodExec(t, pods[1], "main", "/bin/probe", "dial", "http://cluster-ip."+ns+"/hostname")
	if !strings.Contains(out, "web-") {
		t.Errorf("by name: %q", out)
	}
}

// testNodePort: the port is open on every node and routes to the pods of all, or with policy Local to the node's own,
// which sees the client.
func testNodePort(t *testing.T, c *harness.Cluster, ns string, pods []*corev1.Pod) {
	port := func(name string, policy corev1.ServiceExternalTrafficPolicy) int {
		svc := service(t, c, ns, name, func(svc *corev1.Service) {
			svc.Spec.Type, svc.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, policy
			svc.Spec.Selector = map[string]string{"app": "web"}
		})
		return int(svc.Spec.Ports[0].NodePort)
	}
	everyone, own := port("node-port", corev1.ServiceExternalTrafficPolicyCluster), port("node-port-local", corev1.ServiceExternalTrafficPolicyLocal)
	for i, n := range c.Nodes() {
		dialer(outside).mustReachAll(t, "the port of "+n.NodeName(), n.NodeIP, everyone, pods)
		within(t, c, pods[(i+1)%len(pods)]).mustReachAll(t, "the port of "+n.NodeName()+" from a pod of another node", n.NodeIP, everyone, pods)
		harness.Eventually(t, 30*time.Second, "the port of "+n.NodeName()+" with policy Local", func() error {
			got, err := dialer(outside).ask(n.NodeIP, own)
			if err == nil && (got.Hostname != pods[i].Name || got.From() != n.HostIP) {
				err = fmt.Errorf("%s answered and saw %s, the client is %s", got.Hostname, got.Remote, n.HostIP)
			}
			return err
		})
	}
}

// testConnections holds 1,000 connections to a Service at once; every one carries data, and all nodes take part.
func testConnections(t *testing.T, c *harness.Cluster, ns string, pods []*corev1.Pod) {
	svc := service(t, c, ns, "connections", func(svc *corev1.Service) { svc.Spec.Selector = map[string]string{"app": "web"} })
	client := within(t, c, pods[2])
	client.mustReachAll(t, "the Service", svc.Spec.ClusterIP, 80, pods) // all its ports are in the rules then
	out := c.Server.PodExec(t, pods[2], "main", "/bin/probe", "many", "--count=1000", net.JoinHostPort(svc.Spec.ClusterIP, "9000"))
	answered, sum := map[string]int{}, 0
	for line := range strings.Lines(out) {
		name, count, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.Atoi(count)
		if err != nil {
			t.Fatalf("probe many: %s", out)
		}
		answered[name] = n
		sum += n
	}
	if sum != 1000 || len(answered) != len(pods) {
		t.Errorf("of 1000 connections these were answered: %v", answered)
	}
}

// testDaemonSet: one pod on each node, the server included.
func testDaemonSet(t *testing.T, c *harness.Cluster, ns string, _ []*corev1.Pod) {
	daemonSet(t, c, ns, "daemon")
	on := map[string]int{}
	for _, p := range podsOf(t, c, ns, "daemon") {
		on[p.Spec.NodeName]++
	}
	for _, n := range c.Nodes() {
		if on[n.NodeName()] != 1 {
			t.Errorf("the pods are on %v", on)
		}
	}
}

// unreachable waits until a pod cannot be reached: the request gets no answer, not even a refusal.
func (dial dialer) unreachable(t *testing.T, what, ip string, port int) {
	t.Helper()
	harness.Eventually(t, 20*time.Second, what+" to be cut off", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		conn, err := dial(ctx, "tcp", net.JoinHostPort(ip, fmt.Sprint(port)))
		if err == nil {
			conn.Close()
			return errors.New("it can be reached")
		}
		return nil
	})
}
