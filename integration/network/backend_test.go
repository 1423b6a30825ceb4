package network

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/integration/harness"
)

// hasDevices compares the interfaces to other nodes with those wanted.
func hasDevices(t *testing.T, s *harness.Server, want ...string) error {
	t.Helper()
	var got []string
	for line := range strings.Lines(s.Exec(t, "ip", "-o", "link", "show", "type", "vxlan")) {
		got = append(got, strings.TrimSuffix(strings.Fields(line)[1], ":"))
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		return fmt.Errorf("the devices are %v, not %v", got, want)
	}
	return nil
}

// addNode adds a Node with nothing behind it, Ready until the controller notices that: a route to other nodes exists
// while there are some. The returned function removes it.
func addNode(t *testing.T, s *harness.Server) (remove func()) {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other", Labels: map[string]string{names.RoleLabel: names.RoleAgent}}}
	n.Spec.Unschedulable = true
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.99"}, {Type: corev1.NodeInternalIP, Address: "2001:db8::99"}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
	if _, err := s.Client(t).CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := s.Client(t).CoreV1().Nodes().Delete(t.Context(), n.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// waitDevices waits for exactly these.
func waitDevices(t *testing.T, s *harness.Server, want ...string) {
	t.Helper()
	harness.Eventually(t, 30*time.Second, "the devices", func() error { return hasDevices(t, s, want...) })
}

// mtu is that of a pod's interface, as the pod sees it.
func mtu(t *testing.T, s *harness.Server, pod *corev1.Pod) string {
	t.Helper()
	out, errOut, err := s.TryPodExec(t, pod, "main", "cat", "/sys/class/net/eth0/mtu")
	if err != nil {
		t.Fatalf("%v %s", err, errOut)
	}
	return strings.TrimSpace(out)
}

// TestChangeOfBackend: after a restart with another network nothing is left of the one before, pods go on, and new pods
// have the right MTU.
func TestChangeOfBackend(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{})
	ns := s.Namespace(t)
	first := s.Run(t, web(ns, "first"))
	if err := hasDevices(t, s); err != nil {
		t.Errorf("without another node: %v", err)
	}
	remove := addNode(t, s)
	for i, c := range []struct {
		network, mtu string
		devices      []string
	}{
		{"", "1450", []string{"flannel.1"}},
		{"host-gw", "1500", nil},
		{"vxlan", "1450", []string{"flannel.1"}},
		{"bridge", "1500", nil},
	} {
		if c.network != "" {
			remove()
			remove = addNode(t, s)
			s.Stop(t)
			write(t, s, "/etc/kubelith/config.yaml", "apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\nnetwork: "+c.network+"\n")
			s.Launch(t)
			s.WaitReady(t)
		}
		waitDevices(t, s, c.devices...)
		pod := s.Run(t, web(ns, fmt.Sprintf("new-%d", i)))
		if got := mtu(t, s, pod); got != c.mtu {
			t.Errorf("network %q: a pod's MTU is %s, want %s", c.network, got, c.mtu)
		}
		for _, p := range []*corev1.Pod{first, pod} {
			mustAskInNode(t, s, "http://"+p.Status.PodIP+":8080/")
			mustAsk(t, s, pod, "http://"+p.Status.PodIP+":8080/")
		}
	}
	if got := mtu(t, s, first); got != "1450" {
		t.Errorf("the MTU of a pod that runs became %s", got)
	}
}
