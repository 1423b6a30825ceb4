package kubelet

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/components/pki"
)

// A Node that was deleted comes back with all that it registered with at first: what our settings, the kubelet's file and
// its arguments say.
func TestInitialNode(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nregisterWithTaints: [{key: file, effect: NoExecute}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{NodeName: "one", Labels: []string{"rack=r1"}, Taints: []string{"ours=x:NoSchedule"}, PKI: &pki.Bundle{},
		RootDir: "/k", StaticPodDir: "/s", CgroupDriver: "cgroupfs", CRISocket: "/c.sock", Args: []string{"config=" + file, "provider-id=cloud://7"}})
	if err != nil {
		t.Fatal(err)
	}
	n := s.initialNode()
	want := []corev1.Taint{{Key: "file", Effect: corev1.TaintEffectNoExecute}, {Key: "ours", Value: "x", Effect: corev1.TaintEffectNoSchedule}}
	if !slices.Equal(n.Spec.Taints, want) || n.Spec.ProviderID != "cloud://7" || n.Labels["rack"] != "r1" || n.Labels[corev1.LabelHostname] != "one" {
		t.Errorf("%+v, labels %v", n.Spec, n.Labels)
	}
}
