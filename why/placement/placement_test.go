package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func node(name string, change func(*corev1.Node)) corev1.Node {
	capacity := corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("4Gi"), "pods": resource.MustParse("10")}
	n := corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name, "zone": "z-" + name}},
		Status:     corev1.NodeStatus{Capacity: capacity, Allocatable: capacity},
	}
	if change != nil {
		change(&n)
	}
	return n
}

func pod(name string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid", Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}},
	}
	if change != nil {
		change(p)
	}
	return p
}

func asks(cpu string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse(cpu)}
	}
}

func on(node string, p *corev1.Pod) corev1.Pod {
	p.Spec.NodeName = node
	return *p
}

func apart(p *corev1.Pod) {
	p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		TopologyKey: "kubernetes.io/hostname", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "x"}},
	}}}}
}

func TestVerdicts(t *testing.T) {
	ended := on("a", pod("ended", asks("1500m")))
	ended.Status.Phase = corev1.PodSucceeded
	port := func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
	}
	spread := func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}
	}
	tainted := node("a", func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "gpu", Value: "yes", Effect: corev1.TaintEffectNoSchedule}}
	})
	full := node("c", func(n *corev1.Node) { n.Spec.Unschedulable = true })
	for name, c := range map[string]struct {
		pod   *corev1.Pod
		nodes []corev1.Node
		pods  []corev1.Pod
		want  []string
	}{
		"fits":                 {pod("p", asks("1")), []corev1.Node{node("a", nil)}, []corev1.Pod{ended, on("gone", pod("lost", nil))}, []string{"a "}},
		"too large":            {pod("p", asks("3")), []corev1.Node{node("a", nil)}, nil, []string{"a NodeResourcesFit Insufficient cpu"}},
		"used by others":       {pod("p", asks("1")), []corev1.Node{node("a", nil), node("b", nil)}, []corev1.Pod{on("a", pod("o", asks("1500m")))}, []string{"a NodeResourcesFit Insufficient cpu", "b "}},
		"selector":             {pod("p", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }), []corev1.Node{node("a", nil)}, nil, []string{"a NodeAffinity node(s) didn't match Pod's node affinity/selector"}},
		"taint and cpu":        {pod("p", asks("3")), []corev1.Node{tainted, full}, nil, []string{"a TaintToleration node(s) had untolerated taint(s)", "a NodeResourcesFit Insufficient cpu", "c NodeUnschedulable node(s) were unschedulable", "c NodeResourcesFit Insufficient cpu"}},
		"port":                 {pod("p", port), []corev1.Node{node("a", nil)}, []corev1.Pod{on("a", pod("o", port))}, []string{"a NodePorts node(s) didn't have free ports for the requested pod ports"}},
		"apart in a namespace": {pod("p", apart), []corev1.Node{node("a", nil), node("b", nil)}, []corev1.Pod{on("a", pod("o", nil))}, []string{"a InterPodAffinity node(s) didn't match pod anti-affinity rules", "b "}},
		"spread":               {pod("p", spread), []corev1.Node{node("a", nil), node("b", nil)}, []corev1.Pod{on("a", pod("o", nil))}, []string{"a PodTopologySpread node(s) didn't match pod topology spread constraints", "b "}},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: map[string]string{"team": "x"}}})
			verdicts, err := Verdicts(t.Context(), client, c.pod, c.nodes, c.pods)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, v := range verdicts {
				got = append(got, strings.TrimSuffix(fmt.Sprintf("%s %s %s", v.Node, v.Plugin, strings.Join(v.Reasons, ", ")), " "))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
