package api

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

func TestQuota(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	s.Kubectl(t, "-n", ns, "create", "quota", "q", "--hard=pods=2,requests.cpu=100m")
	client := s.Client(t).CoreV1()
	harness.Eventually(t, 20*time.Second, "the quota to be counted", func() error {
		q, err := client.ResourceQuotas(ns).Get(t.Context(), "q", metav1.GetOptions{})
		if err == nil && len(q.Status.Used) != 2 {
			err = fmt.Errorf("used: %v", q.Status.Used)
		}
		return err
	})
	pod := func(name, cpu string, dryRun ...string) error {
		p := sleeper(ns, name)
		if cpu != "" {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: quantity(cpu)}
		}
		_, err := client.Pods(ns).Create(t.Context(), p, metav1.CreateOptions{DryRun: dryRun})
		return err
	}
	harness.Eventually(t, 10*time.Second, "admission to know the quota", func() error { // by its own watch
		if err := pod("probe", "", metav1.DryRunAll); !apierrors.IsForbidden(err) {
			return fmt.Errorf("a pod without a request: %v", err)
		}
		return nil
	})
	forbidden := func(what string, err error, want string) {
		t.Helper()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	forbidden("no request", pod("none", ""), "must specify requests.cpu")
	if err := pod("a", "60m"); err != nil {
		t.Fatal(err)
	}
	forbidden("too much CPU", pod("b", "60m"), "exceeded quota: q, requested: requests.cpu=60m, used: requests.cpu=60m, limited: requests.cpu=100m")
	if err := pod("c", "10m"); err != nil {
		t.Fatal(err)
	}
	forbidden("too many pods", pod("d", "10m"), "pods=1")
	s.Kubectl(t, "-n", ns, "delete", "pod", "a", "--now")
	harness.Eventually(t, 30*time.Second, "what was freed to be given again", func() error { return pod("e", "60m") })
}

func TestLimitRange(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	apply(t, s, ns, `apiVersion: v1
kind: LimitRange
metadata: {name: l}
spec: {limits: [{type: Container, default: {memory: 64Mi}, defaultRequest: {memory: 32Mi, cpu: 10m}, max: {memory: 128Mi}}]}
`)
	client := s.Client(t).CoreV1().Pods(ns)
	harness.Eventually(t, 10*time.Second, "the limit range to be known", func() error {
		p := sleeper(ns, "probe")
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: quantity("256Mi")}
		_, err := client.Create(t.Context(), p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "maximum memory usage per Container is 128Mi") {
			return fmt.Errorf("more than the maximum: %w", err)
		}
		return nil
	})
	pod := s.Run(t, sleeper(ns, "a"))
	r := pod.Spec.Containers[0].Resources
	if r.Limits.Memory().String() != "64Mi" || r.Requests.Memory().String() != "32Mi" || r.Requests.Cpu().String() != "10m" {
		t.Errorf("resources: %+v", r)
	}
	// The default is a limit of the kernel.
	if got := harness.CgroupNumber(t, s.ContainerPID(t, pod, "main"), "memory", "memory.limit_in_bytes", "memory.max"); got != 64<<20 {
		t.Errorf("the cgroup allows %d bytes", got)
	}
}

// TestUpstreamArguments: what was given with --apiserver-arg is in effect.
func TestUpstreamArguments(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	metrics := s.Kubectl(t, "get", "--raw=/metrics")
	if !strings.Contains(metrics, `kubernetes_feature_enabled{name="APIServerWebhookAuthenticationToken",stage="ALPHA"} 1`) {
		t.Errorf("the metrics do not say that the feature gate is on, only %q", regexp.MustCompile(`(?m)^kubernetes_feature_enabled.*WebhookAuth.*$`).FindAllString(metrics, -1))
	}
	if pods := s.Kubectl(t, "get", "nodes", "-o", "jsonpath={.items[0].status.capacity.pods}"); pods != "77" {
		t.Errorf("the node takes %s pods", pods)
	}
	ns := s.Namespace(t)
	s.Run(t, sleeper(ns, "a"))
	harness.Eventually(t, 20*time.Second, "the lease of an Event", func() error {
		events, err := etcd(t, s).Get(t.Context(), "/registry/events/"+ns+"/", withPrefix()...)
		if err != nil {
			return err
		}
		if len(events.Kvs) == 0 {
			return fmt.Errorf("no Event yet")
		}
		ttl, err := etcd(t, s).TimeToLive(t.Context(), leaseOf(events.Kvs[0]))
		if err == nil && (ttl.GrantedTTL < 20*60 || ttl.GrantedTTL > 23*60) {
			err = harness.Permanent(fmt.Errorf("Events live %d s, wanted 20 min", ttl.GrantedTTL))
		}
		return err
	})
}

// TestMutationDetector: the suite runs with the detector of changes to shared cache objects switched on.
func TestMutationDetector(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	environ := readEnviron(t, s.PID())
	if !strings.Contains(environ, "\x00"+harness.DetectMutations+"\x00") {
		t.Errorf("the server's environment has no %s", harness.DetectMutations)
	}
	if !strings.Contains(s.Logs(), "Mutation detector is enabled") {
		t.Error("the server's log does not say that the mutation detector is on")
	}
}
