package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/integration/harness"
)

// backends runs web pods a, b ... that all carry the label app=web.
func backends(t *testing.T, s *harness.Server, ns string, n int) []*corev1.Pod {
	t.Helper()
	var pods []*corev1.Pod
	for i := range n {
		p := web(ns, string(rune('a'+i)))
		p.Labels = map[string]string{"app": "web"}
		pods = append(pods, p)
	}
	return runAll(t, s, pods...)
}

// spread counts who answers n requests.
func spread(t *testing.T, n int, request func() (answer, error)) map[string]int {
	t.Helper()
	seen := map[string]int{}
	for range n {
		a, err := request()
		if err != nil {
			t.Fatal(err)
		}
		seen[a.Hostname]++
	}
	return seen
}

func TestClusterIP(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	client := s.Create(t, sleeper(ns, "client"))
	backends(t, s, ns, 2)
	client = s.WaitRunning(t, client)
	svc := service(t, s, ns, "web", nil)
	url := "http://" + svc.Spec.ClusterIP + "/"

	if a := mustAsk(t, s, client, url); a.From() != client.Status.PodIP {
		t.Errorf("the server saw %s, the client pod is %s", a.Remote, client.Status.PodIP)
	}
	mustAsk(t, s, client, "http://web."+ns+"/")
	// The first rules may have one of them.
	harness.Eventually(t, 15*time.Second, "both pods to answer the node", func() error {
		seen := spread(t, 30, func() (answer, error) { return harness.Ask(s.HTTPClient(harness.Patience(3*time.Second)), url) })
		if len(seen) != 2 {
			return fmt.Errorf("30 requests were answered by %v", seen)
		}
		return nil
	})

	s.Kubectl(t, "-n", ns, "delete", "pod", "a", "b", "--now")
	harness.Eventually(t, 20*time.Second, "a Service without endpoints to refuse", func() error {
		if _, err := harness.Ask(s.HTTPClient(3*time.Second), url); !errors.Is(err, syscall.ECONNREFUSED) {
			return fmt.Errorf("got %v, not a refusal", err)
		}
		return nil
	})
}

func TestClusterIPOverUDP(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	runAll(t, s, harness.Pod(ns, "echo", "/bin/probe", "echo"))
	svc := service(t, s, ns, "echo", func(svc *corev1.Service) {
		svc.Spec.Ports = []corev1.ServicePort{{Name: "udp", Protocol: corev1.ProtocolUDP, Port: 7, TargetPort: intstr.FromInt(9000)}}
	})
	harness.Eventually(t, 15*time.Second, "an echo", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		conn, err := s.DialContext(ctx, "udp", svc.Spec.ClusterIP+":7")
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(2 * time.Second))
		fmt.Fprint(conn, "hello")
		buf := make([]byte, 1000)
		n, err := conn.Read(buf)
		if err == nil && !(strings.HasPrefix(string(buf[:n]), "echo ") && strings.HasSuffix(string(buf[:n]), ": hello")) {
			err = fmt.Errorf("the answer is %q", buf[:n])
		}
		return err
	})
}

func TestSessionAffinity(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	backends(t, s, ns, 3)
	svc := service(t, s, ns, "web", func(svc *corev1.Service) { svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP })
	url := "http://" + svc.Spec.ClusterIP + "/"
	request := func() (answer, error) { return harness.Ask(s.HTTPClient(harness.Patience(3*time.Second)), url) }
	harness.Eventually(t, 15*time.Second, "the Service", func() error { _, err := request(); return err })
	if seen := spread(t, 20, request); len(seen) != 1 {
		t.Errorf("20 requests of one client were answered by %v", seen)
	}
	s.Kubectl(t, "-n", ns, "patch", "service", "web", "-p", `{"spec":{"sessionAffinity":"None"}}`)
	harness.Eventually(t, 15*time.Second, "requests to be spread again", func() error {
		if seen := spread(t, 20, request); len(seen) < 2 {
			return fmt.Errorf("20 requests were answered by %v", seen)
		}
		return nil
	})
}

func TestNodePort(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pods := backends(t, s, ns, 1)
	svc := service(t, s, ns, "web", func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeNodePort })
	url := fmt.Sprintf("http://%s:%d/", s.NodeIP, svc.Spec.Ports[0].NodePort)
	a := mustAskOutside(t, url)
	if a.Hostname != "a" {
		t.Errorf("answered by %q", a.Hostname)
	}
	// Policy Cluster: the answer must come back through this node, so the source is hidden.
	if a.From() == s.HostIP {
		t.Errorf("the pod saw the outside address %s", a.Remote)
	}
	if _, err := harness.Ask(outside(), "http://"+pods[0].Status.PodIP+":8080/"); err == nil {
		t.Errorf("the outside has a route to pods: then the test above shows nothing")
	}
	if a, err := harness.Ask(s.HTTPClient(harness.Patience(3*time.Second)), url); err != nil || a.Hostname != "a" {
		t.Errorf("from the node itself: %v, %v", a, err)
	}
}

func TestExternalTrafficPolicyLocal(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	backends(t, s, ns, 1)
	svc := service(t, s, ns, "web", func(svc *corev1.Service) {
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	})
	if a := mustAskOutside(t, fmt.Sprintf("http://%s:%d/", s.NodeIP, svc.Spec.Ports[0].NodePort)); a.From() != s.HostIP {
		t.Errorf("the pod saw %s, the client is %s", a.Remote, s.HostIP)
	}
	health := fmt.Sprintf("http://%s:%d/healthz", s.NodeIP, svc.Spec.HealthCheckNodePort)
	expect := func(status, endpoints int) {
		t.Helper()
		harness.Eventually(t, 20*time.Second, fmt.Sprintf("status %d of the health check port", status), func() error {
			resp, err := outside().Get(health)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != status || !strings.Contains(strings.ReplaceAll(string(body), " ", ""), fmt.Sprintf(`"localEndpoints":%d`, endpoints)) {
				return fmt.Errorf("%s %s", resp.Status, body)
			}
			return nil
		})
	}
	expect(http.StatusOK, 1)
	s.Kubectl(t, "-n", ns, "delete", "pod", "a", "--now")
	expect(http.StatusServiceUnavailable, 0)
	if err := s.Client(t).CoreV1().Services(ns).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 20*time.Second, "the health check port to close", func() error {
		resp, err := outside().Get(health)
		if err == nil {
			resp.Body.Close()
			return errors.New("it answers")
		}
		return nil
	})
}

// TestHairpin: a pod reaches itself through its own Service.
func TestHairpin(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := backends(t, s, ns, 1)[0]
	svc := service(t, s, ns, "web", nil)
	if a := mustAsk(t, s, pod, "http://"+svc.Spec.ClusterIP+"/"); a.Hostname != pod.Name {
		t.Errorf("answered by %q", a.Hostname)
	}
}

// TestFlushedRuleset: an administrator restarts the host's own firewall, whose file begins with `flush ruleset`, and
// turns forwarding off. Services, ports of the host and pods' way out are back soon.
func TestFlushedRuleset(t *testing.T) { // not parallel: others would miss their rules
	s := cluster.Get(t)
	ns := s.Namespace(t)
	client := s.Create(t, sleeper(ns, "client"))
	backends(t, s, ns, 1)
	client = s.WaitRunning(t, client)
	url := "http://" + service(t, s, ns, "web", nil).Spec.ClusterIP + "/"
	mustAsk(t, s, client, url)
	open := web(ns, "open")
	open.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080, HostPort: 18080}}
	s.WaitRunning(t, s.Create(t, open))
	port := fmt.Sprintf("http://%s:18080/", s.NodeIP)
	mustAskOutside(t, port)

	s.Exec(t, "nft", "flush", "ruleset")
	harness.Eventually(t, 20*time.Second, "the Service to answer again", func() error {
		_, err := ask(t, s, client, url)
		return err
	})
	harness.Eventually(t, 20*time.Second, "the pod to answer at its port of the host", func() error {
		_, err := harness.Ask(outside(), port)
		return err
	})
	harness.Eventually(t, 20*time.Second, "masquerading to be back", func() error {
		if tables := s.Exec(t, "nft", "list", "tables"); !strings.Contains(tables, "table inet "+names.NFTable) {
			return fmt.Errorf("the tables are %q", tables)
		}
		return nil
	})
	s.Exec(t, "sysctl", "-w", "net.ipv4.ip_forward=0")
	harness.Eventually(t, 90*time.Second, "forwarding to be on again", func() error {
		if value := strings.TrimSpace(s.Exec(t, "cat", "/proc/sys/net/ipv4/ip_forward")); value != "1" {
			return fmt.Errorf("ip_forward is %s", value)
		}
		return nil
	})
}
