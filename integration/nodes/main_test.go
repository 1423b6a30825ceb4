// Package nodes tests what needs several nodes: joining, traffic between pods of different nodes, streams to other
// nodes, and what happens when a node, the server or the wire between them fails. All nodes are sandboxes on one bridge
// of this host.
//
// KUBELITH_SERVER_AWAY (a duration, default 20s) is how long the server is away in TestThreeNodes/server-away.
package nodes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"kubelith.io/kubelith/integration/harness"
)

func TestMain(m *testing.M) {
	harness.Parallel(3) // each has several nodes
	harness.Main(m)
}

// together runs parts of a test that has nodes of its own.
func together(t *testing.T, parts ...harness.Part) {
	t.Helper()
	harness.Together(t, 3, parts...)
}

// raw asks the API for a path, as kubectl get --raw does.
func raw(t *testing.T, c *harness.Cluster, path string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	body, err := c.Server.Client(t).Discovery().RESTClient().Get().RequestURI(path).DoRaw(ctx)
	return string(body), err
}

// clusterDNS is the address of cluster DNS with the default service CIDR.
const clusterDNS = "10.43.0.10"

// on lets a pod run on one node only.
func on(node *harness.Server, pod *corev1.Pod) *corev1.Pod {
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node.NodeName()}
	return pod
}

// web is a pod that answers HTTP on port 8080 and, from a second container, echoes on port 9000. It is Ready when it
// answers.
func web(ns, name, app string) *corev1.Pod {
	pod := harness.Pod(ns, name, "/bin/probe", "serve")
	pod.Labels = map[string]string{"app": app}
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 30, ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt(8080)},
	}}
	pod.Spec.Containers = append(pod.Spec.Containers, harness.Container("echo", "/bin/probe", "echo"))
	return pod
}

// everywhere runs one web pod on each node, in the order of c.Nodes.
func everywhere(t *testing.T, c *harness.Cluster, ns, app string) []*corev1.Pod {
	t.Helper()
	var pods []*corev1.Pod
	for _, n := range c.Nodes() {
		pods = append(pods, c.Server.Create(t, on(n, web(ns, app+"-"+n.NodeName(), app))))
	}
	for i := range pods {
		pods[i] = c.Server.WaitRunning(t, pods[i])
	}
	return pods
}

// service creates a Service for the web pods with the label app=APP: HTTP on port 80, echo on port 9000.
func service(t *testing.T, c *harness.Cluster, ns, app string, change func(*corev1.Service)) *corev1.Service {
	t.Helper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": app},
			Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, TargetPort: intstr.FromInt(8080)},
				{Name: "echo", Port: 9000, TargetPort: intstr.FromInt(9000)},
			},
		},
	}
	if change != nil {
		change(svc)
	}
	svc, err := c.Server.Client(t).CoreV1().Services(ns).Create(t.Context(), svc, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return svc
}

// dialer opens connections from somewhere; addresses are literal.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// within dials from inside a pod. It needs no API, so that it also works while the server is away.
func within(t *testing.T, c *harness.Cluster, pod *corev1.Pod) dialer {
	t.Helper()
	pid := c.ContainerPID(t, pod, pod.Spec.Containers[0].Name)
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return harness.DialFrom(ctx, pid, network, address)
	}
}

// outside dials from the host's network, outside of the nodes.
func outside(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

// answer is what `probe serve` reports about a request.
type answer = harness.Answer

// ask sends one HTTP request on its own connection to host:port.
func (dial dialer) ask(ip string, port int) (a answer, err error) {
	client := http.Client{Timeout: harness.Patience(3 * time.Second), Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	return harness.Ask(&client, "http://"+net.JoinHostPort(ip, fmt.Sprint(port))+"/")
}

// mustAsk is ask for a request that must succeed, after a moment for rules and routes to be there.
func (dial dialer) mustAsk(t *testing.T, what, ip string, port int) (a answer) {
	t.Helper()
	harness.Eventually(t, 30*time.Second, what, func() (err error) {
		a, err = dial.ask(ip, port)
		return err
	})
	return a
}

// mustReachAll asks until every one of the pods has answered.
func (dial dialer) mustReachAll(t *testing.T, what, ip string, port int, pods []*corev1.Pod) {
	t.Helper()
	left := map[string]bool{}
	for _, p := range pods {
		left[p.Name] = true
	}
	harness.Eventually(t, 30*time.Second, what, func() error {
		a, err := dial.ask(ip, port)
		if err != nil {
			return err
		}
		if delete(left, a.Hostname); len(left) > 0 {
			return fmt.Errorf("no answer yet from %v", left)
		}
		return nil
	})
}

// lookup asks cluster DNS for the addresses of a name.
func (dial dialer) lookup(network, name string, kind uint16) ([]string, error) {
	m, err := harness.QueryDNS(dial, network, clusterDNS+":53", name, kind)
	if err != nil {
		return nil, err
	}
	var ips []string
	for _, rr := range m.Answer {
		switch rr := rr.(type) {
		case *dns.A:
			ips = append(ips, rr.A.String())
		case *dns.AAAA:
			ips = append(ips, rr.AAAA.String())
		}
	}
	if len(ips) == 0 {
		return nil, fmt.Errorf("the answer is %s", dns.RcodeToString[m.Rcode])
	}
	slices.Sort(ips)
	return ips, nil
}

func (dial dialer) mustLookup(t *testing.T, network, name string, want ...string) {
	t.Helper()
	slices.Sort(want)
	harness.Eventually(t, 30*time.Second, name+" over "+network, func() error {
		got, err := dial.lookup(network, name, dns.TypeA)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("the answer is %v, not %v", got, want)
		}
		return err
	})
}

// zone is where the Services of a namespace have their names.
func zone(ns string) string { return ns + ".svc.cluster.local." }

// startTimes identifies the processes of a pod's containers.
func startTimes(t *testing.T, c *harness.Cluster, pod *corev1.Pod) map[string]uint64 {
	t.Helper()
	times := map[string]uint64{}
	for _, container := range pod.Spec.Containers {
		pid := c.ContainerPID(t, pod, container.Name)
		times[fmt.Sprintf("%s pid %d", container.Name, pid)] = harness.StartTime(t, pid)
	}
	return times
}

// renewed waits until a node has renewed its lease after a moment, which only a kubelet with a connection can.
func renewed(t *testing.T, node *harness.Server, after time.Time) {
	t.Helper()
	harness.Eventually(t, 90*time.Second, "a heartbeat of "+node.NodeName(), func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		lease, err := node.Client(t).CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, node.NodeName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		if lease.Spec.RenewTime == nil || !lease.Spec.RenewTime.After(after) {
			return errors.New("there is none yet")
		}
		return nil
	})
}
