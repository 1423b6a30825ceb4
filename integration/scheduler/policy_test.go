package scheduler

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

const (
	policyFile = "/etc/kubelith/policy.json"
	configFile = "/etc/kubelith/scheduler.yaml"
	// packs is a policy as it was written then: full nodes first, only those with a disk, and whatever the pod selects.
	packs = `{
  "kind": "Policy",
  "apiVersion": "v1",
  "predicates": [
    {"name": "PodFitsResources"},
    {"name": "OnlyWithDisk", "argument": {"labelsPresence": {"labels": ["disk"], "presence": true}}}
  ],
  "priorities": [
    {"name": "MostRequestedPriority", "weight": 1}
  ]
}
`
	// zones keeps the pods of a Service in one zone.
	zones = `
apiVersion: v1
kind: Policy
predicates:
- name: PodFitsResources
- name: OneZone
  argument:
    serviceAffinity:
      labels: [zone]
priorities:
- name: LeastRequestedPriority
  weight: 1
`
)

// settings are a server's, with these arguments of the scheduler.
func settings(args ...string) string {
	return "apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\nschedulerArgs: [" + strings.Join(args, ", ") + "]\n"
}

// options are a server that schedules, for nodes without machines.
func options(args ...string) harness.Options {
	return harness.Options{
		NoWait: true, NoTestImage: true, ConfigYAML: settings(args...),
		Disable: []string{"containerd", "dns", "kubelet", "local-storage", "metrics-server", "network", "proxy", "servicelb"},
		Args:    []string{"--controller-manager-arg=controllers=*,-node-lifecycle-controller,-pod-garbage-collector-controller"},
		Prepare: func(s *harness.Server) error { return put(s, policyFile, packs) },
	}
}

// put writes a file as the server sees it.
func put(s *harness.Server, name, text string) error {
	file := s.Path(name)
	return errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644))
}

// nodes creates three: by default pods go to the emptiest one, which is the one without a disk.
func nodes(t *testing.T, s *harness.Server) {
	t.Helper()
	for name, labels := range map[string]map[string]string{
		"full": {"disk": "ssd", "zone": "a"}, "empty": {"disk": "ssd", "zone": "b"}, "large": {"zone": "b"},
	} {
		cpu := "4"
		if name == "large" {
			cpu = "40"
		}
		list := corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("100")}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Status: corev1.NodeStatus{Capacity: list, Allocatable: list}}
		if _, err := s.Client(t).CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

func pod(ns, name, app string) *corev1.Pod {
	p := harness.Pod(ns, name, "sleep", "1000")
	p.Labels = map[string]string{"app": app}
	p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} // new nodes have a taint
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")}
	return p
}

// on creates a pod that already has a node.
func on(t *testing.T, s *harness.Server, node string, p *corev1.Pod) {
	t.Helper()
	p.Spec.NodeName = node
	s.Create(t, p)
}

// bound waits until a pod has a node, and returns it.
func bound(t *testing.T, s *harness.Server, p *corev1.Pod) string {
	t.Helper()
	return s.WaitPod(t, p, "a node", func(p *corev1.Pod) error {
		if p.Spec.NodeName == "" {
			return fmt.Errorf("it has none: %v", p.Status.Conditions)
		}
		return nil
	}).Spec.NodeName
}

// TestPolicyFile: a policy decides where a pod goes, and what scheduler-policy prints decides the same.
func TestPolicyFile(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, options("policy-config-file="+policyFile))
	s.WaitAPI(t)
	nodes(t, s)
	ns := s.Namespace(t)
	on(t, s, "full", pod(ns, "old", "a"))
	selective := pod(ns, "selective", "a")
	selective.Spec.NodeSelector = map[string]string{"nowhere": "true"} // no predicate of the policy checks it
	for _, p := range []*corev1.Pod{pod(ns, "packed", "a"), selective} {
		if node := bound(t, s, s.Create(t, p)); node != "full" {
			t.Errorf("with the policy, %s is on %s", p.Name, node)
		}
	}
	if log := s.Logs(); strings.Count(log, "the scheduler follows a policy") != 1 || !strings.Contains(log, "kubelith scheduler-policy "+policyFile) {
		t.Error("the log does not warn once of the policy, with the command that converts it")
	}

	printed := s.RunBinary(t, "scheduler-policy", policyFile)
	if printed.Code != 0 || put(s, configFile, printed.Stdout) != nil {
		t.Fatalf("scheduler-policy: %d, %s", printed.Code, printed.Stderr)
	}
	restart(t, s, "config="+configFile)
	if node := bound(t, s, s.Create(t, pod(ns, "packed-too", "a"))); node != "full" {
		t.Errorf("with the configuration that scheduler-policy printed, a pod is on %s", node)
	}

	restart(t, s)
	if node := bound(t, s, s.Create(t, pod(ns, "spread", "a"))); node != "large" {
		t.Errorf("without a policy, a pod is on %s, so this test has shown nothing", node)
	}
}

// restart restarts the server with other arguments of the scheduler.
func restart(t *testing.T, s *harness.Server, args ...string) {
	t.Helper()
	s.Stop(t)
	if err := put(s, "/etc/kubelith/config.yaml", settings(args...)); err != nil {
		t.Fatal(err)
	}
	s.Launch(t)
	s.WaitAPI(t)
}

// TestPolicyConfigMap: the scheduler waits for the ConfigMap of its policy, logs its errors, and follows it.
func TestPolicyConfigMap(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, options("policy-configmap=scheduler-policy"))
	s.WaitAPI(t)
	nodes(t, s)
	ns := s.Namespace(t)
	said := func(what string) {
		t.Helper()
		harness.Eventually(t, 30*time.Second, "log: "+what, func() error {
			if !strings.Contains(s.Logs(), what) {
				return errors.New("not logged")
			}
			return nil
		})
	}
	said("ConfigMap kube-system/scheduler-policy: it does not exist")
	maps := s.Client(t).CoreV1().ConfigMaps("kube-system")
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "scheduler-policy"}, Data: map[string]string{"policy.cfg": zones + "wieght: 1\n"}}
	if _, err := maps.Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	said(`policy.cfg: line 13: policy has no field "wieght"`)
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "a"}, Ports: []corev1.ServicePort{{Port: 80}}}}
	if _, err := s.Client(t).CoreV1().Services(ns).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	m.Data["policy.cfg"] = zones
	if _, err := maps.Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	said("the scheduler follows a policy")

	on(t, s, "full", pod(ns, "first", "a"))
	if node := bound(t, s, s.Create(t, pod(ns, "second", "a"))); node != "full" {
		t.Errorf("the second pod of the Service is on %s, in the other zone", node)
	}
	if node := bound(t, s, s.Create(t, pod(ns, "other", "b"))); node != "large" {
		t.Errorf("a pod without a Service is on %s", node)
	}
	for name, want := range map[string]string{"scheduler-policy": "yes", "other": "no"} {
		got := s.TryKubectl(t, "auth", "can-i", "get", "configmaps/"+name, "-n", "kube-system", "--as=system:kube-scheduler").Stdout
		if strings.TrimSpace(got) != want {
			t.Errorf("may the scheduler read the ConfigMap %s? %q, want %s", name, got, want)
		}
	}
}

// TestBadPolicy: a start is refused in one line.
func TestBadPolicy(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{NoTestImage: true})
	for text, want := range map[string]string{
		strings.Replace(packs, `"weight"`, `"wieght"`, 1):                   `line 9: priorities[0] has no field "wieght": did you mean "weight"?`,
		strings.Replace(packs, "PodFitsResources", "PodFitsResource", 1):    `line 5: predicate "PodFitsResource": Kubernetes 1.22 had no such name: did you mean "PodFitsResources"?`,
		strings.Replace(packs, "PodFitsResources", "CheckNodeCondition", 1): `line 5: predicate "CheckNodeCondition": Kubernetes has no counterpart`,
		strings.TrimSuffix(packs, "}\n"):                                    "line 11: unexpected end of JSON input",
	} {
		if err := put(s, policyFile, text); err != nil {
			t.Fatal(err)
		}
		res := s.RunBinary(t, "server", "--scheduler-arg=policy-config-file="+policyFile)
		if line := "kubelith: --scheduler-arg policy-config-file=" + policyFile + ": " + want; res.Code == 0 || !strings.HasPrefix(res.Stderr, line) || strings.Count(res.Stderr, "\n") != 1 {
			t.Errorf("exit code %d, %q, want %s", res.Code, res.Stderr, line)
		}
	}
}
