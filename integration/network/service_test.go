package network

import (
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
