package process

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// TestDisable switches off components in several ways: what is on works, and what is off never ran.
func TestDisable(t *testing.T) {
	t.Parallel()
	for _, disabled := range [][]string{
		{"controller-manager", "network", "proxy"},
		{"scheduler", "dns", "manifests"},
		{"controller-manager", "scheduler", "kubelet", "containerd", "proxy", "dns"},
	} {
		t.Run(strings.Join(disabled, ","), func(t *testing.T) {
			t.Parallel()
			s := harness.Start(t, harness.Options{Disable: disabled, Args: []string{"--log-level=debug"}, NoWait: true, NoTestImage: true})
			off := map[string]bool{}
			for _, c := range disabled {
				off[c] = true
			}
			off["images"], off["network"] = off["containerd"], off["network"] || off["containerd"]
			off["cni"] = off["network"]
			harness.Eventually(t, 60*time.Second, "the API", func() error {
				if err := alive(s); err != nil {
					return err
				}
				if res := s.TryKubectl(t, "get", "namespace", "default"); res.Code != 0 {
					return fmt.Errorf("%s", res.Stderr)
				}
				return nil
			})
			work(t, s)
			signs := signsOfWork(t, s)
			for component, sign := range signs {
				if !off[component] {
					harness.Eventually(t, 60*time.Second, "a sign of "+component, sign)
				}
			}
			for component, sign := range signs {
				if off[component] && sign() == nil {
					t.Errorf("%s works", component)
				}
			}
			harness.Eventually(t, 60*time.Second, "all components, also those without a sign", func() error {
				return harness.AllUp(s.Kubectl(t, "get", "--raw", "/metrics"))
			})
			s.Stop(t)
			for _, c := range []string{"etcd", "apiserver", "controller-manager", "scheduler", "containerd", "images", "cni", "network", "kubelet", "proxy", "dns", "manifests", "servicelb", "metrics-server"} {
				if ran := strings.Contains(s.Logs(), "component="+c+" stopped"); ran == off[c] {
					t.Errorf("%s ran: %t", c, ran)
				}
			}
		})
	}
}

// work gives the controllers and the scheduler something to do. The pod needs no controller to be admitted.
func work(t *testing.T, s *harness.Server) {
	t.Helper()
	s.Kubectl(t, "create", "serviceaccount", "worker")
	s.Deploy(t, harness.Pod("default", "app", "/bin/probe", "sleep"), 1)
	pod := harness.Pod("default", "waits", "/bin/probe")
	pod.Spec.ServiceAccountName = "worker"
	pod.Spec.NodeSelector = map[string]string{"nowhere": "true"}
	s.Create(t, pod)
}

// signsOfWork are, by component, what is nil when it works.
func signsOfWork(t *testing.T, s *harness.Server) map[string]func() error {
	says := func(args ...string) func() error {
		return func() error {
			if res := s.TryKubectl(t, args...); res.Stdout == "" {
				return fmt.Errorf("kubectl %s prints nothing %s", strings.Join(args, " "), res.Stderr)
			}
			return nil
		}
	}
	listens := func(port string) func() error {
		return func() error {
			conn, err := s.DialContext(t.Context(), "tcp", "127.0.0.1:"+port)
			if err == nil {
				conn.Close()
			}
			return err
		}
	}
	return map[string]func() error{
		"controller-manager": says("get", "replicasets", "-o=name"),
		"scheduler":          says("get", "pod", "waits", "-o=jsonpath={.status.conditions[?(@.type==\"PodScheduled\")].reason}"),
		"kubelet":            says("get", "nodes", "-o=name"),
		"proxy":              listens("10256"),
		"dns":                listens("10053"),
		"manifests":          says("get", "configmaps", "-n=kube-system", "-l=applyset.kubernetes.io/id", "-o=name"),
		"containerd": func() error {
			if res := s.TryExec(t, s.BinaryPath(), "ctr", "version"); res.Code != 0 {
				return fmt.Errorf("%s", res.Stderr)
			}
			return nil
		},
		"cni": func() error {
			found, err := filepath.Glob(s.Path(harness.RunDir + "/cni/net.d/*.conflist"))
			if err == nil && len(found) == 0 {
				err = errors.New("no CNI configuration")
			}
			return err
		},
	}
}
