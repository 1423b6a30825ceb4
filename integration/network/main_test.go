// Package network tests what pods, Services and DNS look like on the wire: which address answers, which address
// the other side sees, and what is refused. Requests come from pods, from the node, and from outside (the
// test process, at the other end of the node's veth pair).
package network

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"kubelith.io/kubelith/integration/harness"
)

var cluster = harness.NewShared(harness.Options{})

func TestMain(m *testing.M) { harness.Main(m, cluster) }

// clusterDNS is the address of cluster DNS with the default service CIDR.
const clusterDNS = "10.43.0.10"

// web is a pod that serves HTTP on port 8080 and is Ready when it answers.
func web(ns, name string) *corev1.Pod {
	pod := harness.Pod(ns, name, "/bin/probe", "serve")
	pod.Spec.Containers[0].ReadinessProbe = ready(8080)
	return pod
}

func ready(port int) *corev1.Probe {
	return &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 30, ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt(port)},
	}}
}

// runAll creates pods and waits for all of them.
func runAll(t *testing.T, s *harness.Server, pods ...*corev1.Pod) []*corev1.Pod {
	t.Helper()
	for i := range pods {
		pods[i] = s.Create(t, pods[i])
	}
	for i := range pods {
		pods[i] = s.WaitRunning(t, pods[i])
	}
	return pods
}

// sleeper is a pod from which requests are sent.
func sleeper(ns, name string) *corev1.Pod { return harness.Pod(ns, name, "/bin/probe", "sleep") }

// service creates a Service of port 80 for the web pods with the label app=NAME.
func service(t *testing.T, s *harness.Server, ns, app string, change func(*corev1.Service)) *corev1.Service {
	t.Helper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": app},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt(8080)}},
		},
	}
	if change != nil {
		change(svc)
	}
	svc, err := s.Client(t).CoreV1().Services(ns).Create(t.Context(), svc, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return svc
}

// answer is what `probe serve` reports about a request.
type answer = harness.Answer

// ask sends one request from inside a pod.
func ask(t *testing.T, s *harness.Server, pod *corev1.Pod, url string) (answer, error) {
	t.Helper()
	out, errOut, err := s.TryPodExec(t, pod, "main", "/bin/probe", "dial", harness.Timeout(3*time.Second), url)
	if err != nil {
		return answer{}, fmt.Errorf("%s from pod %s: %w: %s%s", url, pod.Name, err, out, errOut)
	}
	_, body, _ := strings.Cut(out, "\n")
	var a answer
	return a, json.Unmarshal([]byte(body), &a)
}

// mustAsk is ask for a request that must succeed, after a moment for the rules to be there.
func mustAsk(t *testing.T, s *harness.Server, pod *corev1.Pod, url string) (a answer) {
	t.Helper()
	harness.Eventually(t, 15*time.Second, url, func() (err error) {
		a, err = ask(t, s, pod, url)
		return err
	})
	return a
}

// outside returns a client in the host's network, outside of the node.
func outside() *http.Client {
	return &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
}

// mustAskOutside repeats a request from outside until it succeeds.
func mustAskOutside(t *testing.T, url string) (a answer) {
	t.Helper()
	harness.Eventually(t, 15*time.Second, url+" from outside", func() (err error) {
		a, err = harness.Ask(outside(), url)
		return err
	})
	return a
}

// lookup asks DNS from inside a pod, through its resolv.conf, until the answer is the one wanted.
func lookup(t *testing.T, s *harness.Server, pod *corev1.Pod, kind, name string, want ...string) {
	t.Helper()
	harness.Eventually(t, 15*time.Second, kind+" "+name, func() error {
		out, errOut, err := s.TryPodExec(t, pod, "main", "/bin/probe", "lookup", kind, name)
		if err != nil {
			return fmt.Errorf("%w: %s", err, errOut)
		}
		if got := strings.Join(strings.Fields(out), " "); got != strings.Join(want, " ") {
			return fmt.Errorf("the answer is %q, not %q", got, want)
		}
		return nil
	})
}

// node is the only Node.
func node(t *testing.T, s *harness.Server) *corev1.Node {
	t.Helper()
	nodes, err := s.Client(t).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 {
		t.Fatalf("%d nodes, %v", len(nodes.Items), err)
	}
	return &nodes.Items[0]
}

// write creates a file in the sandbox.
func write(t *testing.T, s *harness.Server, path, content string) {
	t.Helper()
	dir := path[:strings.LastIndex(path, "/")]
	if err := os.MkdirAll(s.Path(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Path(path), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
