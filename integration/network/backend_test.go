package network

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/integration/harness"
)

// hasDevices compares the interfaces that lead to other nodes with those wanted.
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
			s.Stop(t)
			write(t, s, "/etc/kubelith/config.yaml", "apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\nnetwork: "+c.network+"\n")
			s.Launch(t)
			s.WaitReady(t)
		}
		harness.Eventually(t, 15*time.Second, "the devices of "+c.network, func() error { return hasDevices(t, s, c.devices...) })
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
