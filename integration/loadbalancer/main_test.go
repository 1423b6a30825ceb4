// Package loadbalancer tests Services of type LoadBalancer on one node with real packets: from outside of the node (the
// test process, at the other end of its veth pair), from the node and from pods. Every test has its own ports, as a
// port belongs to one Service.
package loadbalancer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"kubelith.io/kubelith/integration/harness"
)

var cluster = harness.NewShared(harness.Options{IPv6: true, Args: []string{
	"--cluster-cidr=10.42.0.0/16,fd42::/56", "--service-cidr=10.43.0.0/16,fd43::/112",
}})

func TestMain(m *testing.M) { harness.Main(m, cluster) }

// patience is ample time for an address to be assigned and for rules to follow it.
const patience = 20 * time.Second

// web runs a pod NAME that serves HTTP, TCP echoes and UDP echoes.
func web(t *testing.T, s *harness.Server, ns, name string) *corev1.Pod {
	t.Helper()
	pod := harness.Pod(ns, name, "/bin/probe", "serve")
	pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 30, ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt(8080)},
	}}
	pod.Spec.Containers = append(pod.Spec.Containers, harness.Container("echo", "/bin/probe", "echo"))
	return s.Run(t, pod)
}

// balanced creates a Service NAME of type LoadBalancer that leads a port to the web pod of the label app.
func balanced(t *testing.T, s *harness.Server, ns, name, app string, port int32, changes ...func(*corev1.Service)) *corev1.Service {
	t.Helper()
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		Type:     corev1.ServiceTypeLoadBalancer,
		Selector: map[string]string{"app": app},
		Ports:    []corev1.ServicePort{{Name: "http", Port: port, TargetPort: intstr.FromInt(8080)}},
	}}
	for _, f := range changes {
		f(svc)
	}
	svc, err := s.Client(t).CoreV1().Services(ns).Create(t.Context(), svc, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return svc
}

// get reads a Service.
func get(t *testing.T, s *harness.Server, ns, name string) *corev1.Service {
	t.Helper()
	svc, err := s.Client(t).CoreV1().Services(ns).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return svc
}

// hasAddresses is nil when the Service has exactly these addresses.
func hasAddresses(t *testing.T, s *harness.Server, ns, name string, want ...string) error {
	t.Helper()
	var got []string
	for _, i := range get(t, s, ns, name).Status.LoadBalancer.Ingress {
		got = append(got, i.IP)
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("Service %s has the addresses %v, want %v", name, got, want)
	}
	return nil
}

// waitAddresses waits until the Service has exactly these addresses.
func waitAddresses(t *testing.T, s *harness.Server, ns, name string, want ...string) {
	t.Helper()
	harness.Eventually(t, patience, "addresses of "+name, func() error { return hasAddresses(t, s, ns, name, want...) })
}

// waitEvent waits for an Event about a Service whose message has the text, and returns all messages of that reason.
func waitEvent(t *testing.T, s *harness.Server, ns, name, reason, text string) {
	t.Helper()
	harness.Eventually(t, patience, "Event "+reason+" of "+name, func() error {
		messages := events(t, s, ns, name, reason)
		if !slices.ContainsFunc(messages, func(m string) bool { return strings.Contains(m, text) }) {
			return fmt.Errorf("the messages are %q, none has %q", messages, text)
		}
		return nil
	})
}

// events are the messages of the Events about a Service with a reason.
func events(t *testing.T, s *harness.Server, ns, name, reason string) (messages []string) {
	t.Helper()
	list, err := s.Client(t).CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list.Items {
		if e.InvolvedObject.Kind == "Service" && e.InvolvedObject.Name == name && e.Reason == reason {
			messages = append(messages, e.Message)
		}
	}
	return messages
}

// answer is what `probe serve` reports about a request.
type answer = harness.Answer

// outside returns a client in the host's network, outside of the node. Each request has its own connection.
func outside() *http.Client {
	return &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
}

func url(ip string, port int32) string {
	return "http://" + net.JoinHostPort(ip, fmt.Sprint(port)) + "/"
}

// mustAsk repeats a request until it succeeds.
func mustAsk(t *testing.T, client *http.Client, url string) (a answer) {
	t.Helper()
	harness.Eventually(t, patience, url, func() (err error) {
		a, err = harness.Ask(client, url)
		return err
	})
	return a
}

// refuses returns nil if no process listens: the node itself refuses the connection.
func refuses(url string) error {
	if _, err := harness.Ask(outside(), url); !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%s: %v, not a refusal", url, err)
	}
	return nil
}

// drops is nil when packets vanish.
func drops(url string) error {
	var timeout net.Error
	if _, err := harness.Ask(outside(), url); !errors.As(err, &timeout) || !timeout.Timeout() {
		return fmt.Errorf("%s: %v, not a timeout", url, err)
	}
	return nil
}

// echoes is nil when a UDP datagram comes back.
func echoes(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "udp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(2 * time.Second))
	fmt.Fprint(conn, "hello")
	buf := make([]byte, 1000)
	n, err := conn.Read(buf)
	if err == nil && !strings.HasSuffix(string(buf[:n]), ": hello") {
		err = fmt.Errorf("the answer is %q", buf[:n])
	}
	return err
}

// patch merges JSON into a Service.
func patch(t *testing.T, s *harness.Server, ns, name, json string) {
	t.Helper()
	s.Kubectl(t, "-n", ns, "patch", "service", name, "--type=merge", "-p", json)
}

// nodeIPs are the internal addresses of the only node, those of IPv4 first.
func nodeIPs(t *testing.T, s *harness.Server) (all []string) {
	t.Helper()
	nodes, err := s.Client(t).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 {
		t.Fatalf("%d nodes, %v", len(nodes.Items), err)
	}
	for _, a := range nodes.Items[0].Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			all = append(all, a.Address)
		}
	}
	return all
}
