// Package runtimes tests pods whose containers a runtime of the host starts: crun, on a server whose default it is.
// youki is in no Debian and is not tested.
package runtimes

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/runtime/payload"
)

var cluster = harness.NewShared(harness.Options{Args: []string{"--default-runtime=crun"}, Prepare: forCrun})

func TestMain(m *testing.M) { harness.Main(m, cluster) }

// forCrun makes a host with cgroups of v1 and v2 one of v1, in the sandbox: crun supports no other.
func forCrun(s *harness.Server) error {
	const unified = "/sys/fs/cgroup/unified"
	if _, err := os.Stat(unified + "/cgroup.controllers"); err != nil {
		return nil
	}
	return s.Command("umount", unified).Run()
}

func get(t *testing.T) *harness.Server {
	harness.RequireProgram(t, "crun")
	return cluster.Get(t)
}

// container is one with what it has on the host.
type container struct {
	id    string
	pid   int
	start uint64
	group string
}

func containerOf(t *testing.T, s *harness.Server, pod *corev1.Pod) container {
	t.Helper()
	_, id, _ := strings.Cut(harness.Status(pod, "main").ContainerID, "://")
	pid := s.ContainerPID(t, pod, "main")
	return container{id, pid, harness.StartTime(t, pid), harness.CgroupDir(t, pid, "memory")}
}

// runtimeOf returns who started a container: the runtime that has its state.
func runtimeOf(s *harness.Server, c container) string {
	var of []string
	for name, file := range map[string]string{"runc": "state.json", "crun": "status"} {
		if _, err := os.Stat(s.Path(harness.RunDir + "/containerd/" + name + "/k8s.io/" + c.id + "/" + file)); err == nil {
			of = append(of, name)
		}
	}
	return strings.Join(of, " ")
}

// gone waits until nothing is left of containers.
func gone(t *testing.T, s *harness.Server, all ...container) {
	t.Helper()
	harness.Eventually(t, harness.PodTimeout, "nothing to be left of the containers", func() error {
		for _, c := range all {
			if harness.Alive(c.pid) {
				return fmt.Errorf("process %d is alive", c.pid)
			}
			if _, err := os.Stat(c.group); err == nil {
				return fmt.Errorf("the cgroup %s is there", c.group)
			}
			if of := runtimeOf(s, c); of != "" {
				return fmt.Errorf("%s has the state of %s", of, c.id)
			}
		}
		return nil
	})
}

// pod is one that is started again when it ends. An empty class is none.
func pod(ns, name, class string) *corev1.Pod {
	p := harness.Pod(ns, name, harness.Shell("echo from "+name+"; exec /bin/probe sleep")...)
	p.Spec.RestartPolicy = corev1.RestartPolicyAlways
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
	if class != "" {
		p.Spec.RuntimeClassName = &class
	}
	return p
}

// TestRuntimes: the runtime that a pod's class names starts its containers, and the default one those of other pods.
// Everything that a user does with a container works, and a server that is killed finds them again.
func TestRuntimes(t *testing.T) {
	s := get(t)
	ns := s.Namespace(t)
	pods, containers := map[string]*corev1.Pod{}, map[string]container{}
	for name, class := range map[string]string{"default": "", "named": "crun", "other": "runc"} {
		pods[name] = s.Run(t, pod(ns, name, class))
		containers[name] = containerOf(t, s, pods[name])
	}
	works := func() {
		t.Helper()
		for name, p := range pods {
			want := "crun"
			if name == "other" {
				want = "runc"
			}
			c := containers[name]
			if of := runtimeOf(s, c); of != want {
				t.Errorf("pod %s: started by %q, want %s", name, of, want)
			}
			if !harness.Alive(c.pid) || harness.StartTime(t, c.pid) != c.start {
				t.Errorf("pod %s: process %d has ended", name, c.pid)
			}
			if got := s.PodExec(t, p, "main", harness.Shell("cat /proc/sys/kernel/hostname")...); got != name+"\n" {
				t.Errorf("pod %s: exec prints %q", name, got)
			}
			harness.Eventually(t, 30*time.Second, "the log of pod "+name, func() error {
				if got := s.PodLogs(t, p, "main"); !strings.HasPrefix(got, "from "+name+"\n") {
					return fmt.Errorf("it is %q", got)
				}
				return nil
			})
			for field, want := range map[string]string{"Seccomp": "2", "CapEff": harness.ProcStatus(t, containers["other"].pid, "CapEff")} {
				if got := harness.ProcStatus(t, c.pid, field); got != want {
					t.Errorf("pod %s: %s = %s, want %s", name, field, got, want)
				}
			}
			if limit := harness.CgroupNumber(t, c.pid, "memory", "memory.limit_in_bytes", "memory.max"); limit != 64<<20 {
				t.Errorf("pod %s: limit of memory %d", name, limit)
			}
		}
	}
	works()
	if list := s.Exec(t, "crun", "--root", harness.RunDir+"/containerd/crun/k8s.io", "list", "-q"); !strings.Contains(list, containers["named"].id) || strings.Contains(list, containers["other"].id) {
		t.Errorf("crun lists %q", list)
	}
	measured(t, s, ns, pods)

	s.Kill9(t)
	s.Launch(t)
	harness.Eventually(t, harness.PodTimeout, "the kubelet to answer again", func() error {
		_, _, err := s.TryPodExec(t, pods["named"], "main", "/bin/true")
		return err
	})
	works()

	s.Kubectl(t, "delete", "pods", "-n", ns, "--all", harness.Timeout(time.Minute))
	gone(t, s, containers["default"], containers["named"], containers["other"])
}

// measured waits until the kubelet reports what each pod's container uses.
func measured(t *testing.T, s *harness.Server, ns string, pods map[string]*corev1.Pod) {
	t.Helper()
	harness.Eventually(t, harness.PodTimeout, "the use of the containers", func() error {
		var summary struct {
			Pods []struct {
				PodRef     struct{ Name, Namespace string }
				Containers []struct {
					Memory struct{ WorkingSetBytes int64 }
				}
			}
		}
		if err := json.Unmarshal([]byte(s.Kubectl(t, "get", "--raw", "/api/v1/nodes/"+s.Node(t).Name+"/proxy/stats/summary")), &summary); err != nil {
			return err
		}
		used := map[string]bool{}
		for _, p := range summary.Pods {
			used[p.PodRef.Name] = p.PodRef.Namespace == ns && len(p.Containers) == 1 && p.Containers[0].Memory.WorkingSetBytes > 0
		}
		for name := range pods {
			if !used[name] {
				return fmt.Errorf("nothing of pod %s", name)
			}
		}
		return nil
	})
}

// TestCompiledFilters: our runc does not compile the seccomp filters that most containers have: that of pods which ask
// for nothing, and of those that drop all capabilities. One of other system calls it compiles.
func TestCompiledFilters(t *testing.T) {
	t.Parallel()
	s := get(t)
	ns := s.Namespace(t)
	for name, tc := range map[string]struct {
		capabilities corev1.Capabilities
		compiled     bool
	}{
		"default":    {corev1.Capabilities{}, true},
		"restricted": {corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}, true},
		"admin":      {corev1.Capabilities{Add: []corev1.Capability{"SYS_ADMIN"}}, false},
	} {
		p := pod(ns, name, "runc")
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Capabilities: &tc.capabilities}
		c := containerOf(t, s, s.Run(t, p))
		// A further process of the container gets its filter as the first did.
		out := s.TryExec(t, payload.Dir(harness.DataDir)+"/current/bin/"+payload.Runc, "--debug", "--root", harness.RunDir+"/containerd/runc/k8s.io", "exec", c.id, "/bin/true")
		if out.Code != 0 || !strings.Contains(out.Stderr, "level=debug") {
			t.Fatalf("%s: exit code %d\n%s", name, out.Code, out.Stderr)
		}
		if strings.Contains(out.Stderr, "seccomp: program was compiled when runc was built") != tc.compiled {
			t.Errorf("%s: the filter has been compiled before: want %t\n%s", name, tc.compiled, out.Stderr)
		}
		if got := harness.ProcStatus(t, c.pid, "Seccomp"); got != "2" {
			t.Errorf("%s: Seccomp = %s", name, got)
		}
	}
}

// TestEnds: how a container ends is reported as with runc.
func TestEnds(t *testing.T) {
	t.Parallel()
	s := get(t)
	ns := s.Namespace(t)
	for name, tc := range map[string]struct {
		command []string
		code    int32
		reason  string
	}{
		"done":   {harness.Shell("exit 0"), 0, "Completed"},
		"failed": {harness.Shell("exit 3"), 3, "Error"},
		"big":    {[]string{"/bin/probe", "eat", "200"}, 137, "OOMKilled"},
		"nosuch": {[]string{"/nosuch"}, 128, "StartError"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := pod(ns, name, "crun")
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.Spec.Containers[0].Command = tc.command
			p = s.RunToEnd(t, p)
			if end := harness.Status(p, "main").State.Terminated; end.Reason != tc.reason || end.ExitCode != tc.code {
				t.Errorf("it ended with %s, %d: %s, want %s, %d", end.Reason, end.ExitCode, end.Message, tc.reason, tc.code)
			}
		})
	}
}

// TestKeeperKilled: nothing is left of a container of crun whose keeper is killed, and its pod is started again.
func TestKeeperKilled(t *testing.T) {
	t.Parallel()
	s := get(t)
	ns := s.Namespace(t)
	p := s.Run(t, pod(ns, "a", "crun"))
	before := containerOf(t, s, p)
	keeper, err := strconv.Atoi(harness.ProcStatus(t, before.pid, "PPid"))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(keeper, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	gone(t, s, before)
	p = s.WaitPod(t, p, "to run again", func(p *corev1.Pod) error {
		if status := harness.Status(p, "main"); status == nil || status.RestartCount == 0 {
			return fmt.Errorf("container: %+v", status)
		}
		return harness.PodReady(p)
	})
	if of := runtimeOf(s, containerOf(t, s, p)); of != "crun" {
		t.Errorf("started again by %q", of)
	}
}

// TestNodeWithoutRuntime: a pod waits for a node that has its runtime.
func TestNodeWithoutRuntime(t *testing.T) {
	t.Parallel()
	s := get(t)
	if labels := s.Node(t).Labels; labels["kubelith.io/runtime-crun"] != "true" {
		t.Errorf("the node has the labels %v", labels)
	}
	if s.TryExec(t, "sh", "-c", "command -v youki").Code == 0 {
		t.Skip("this host has youki")
	}
	ns := s.Namespace(t)
	s.WaitPod(t, s.Create(t, pod(ns, "a", "youki")), "to be refused by the scheduler", func(p *corev1.Pod) error {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "affinity/selector") {
				return nil
			}
		}
		return fmt.Errorf("conditions %+v", p.Status.Conditions)
	})
}

// TestUninstalled: a node that has lost its crun reports it, and keeps its containers running.
func TestUninstalled(t *testing.T) {
	harness.RequireProgram(t, "crun")
	s := harness.Start(t, harness.Options{Prepare: forCrun})
	ns := s.Namespace(t)
	p := s.Run(t, pod(ns, "a", "crun"))
	before := containerOf(t, s, p)
	s.Stop(t)
	crun := strings.TrimSpace(s.Exec(t, "sh", "-c", "command -v crun"))
	s.Exec(t, "mount", "--bind", "/bin/false", crun) // in the sandbox
	s.Launch(t)
	s.WaitReady(t)
	harness.Eventually(t, harness.PodTimeout, "the label to be gone", func() error {
		if value, has := s.Node(t).Labels["kubelith.io/runtime-crun"]; has {
			return fmt.Errorf("it is %s", value)
		}
		return nil
	})
	if !harness.Alive(before.pid) {
		t.Error("the container has ended")
	}
	for _, args := range [][]string{{"check"}, {"check", "--default-runtime=crun"}} {
		r := s.RunBinary(t, args...)

		want := "ok       crun: not used: " + crun + " --version fails (exit status 1): install crun 1.8.1 or later"
		if len(args) > 1 {
			want = "failed   crun: is the default runtime, but " + crun + " --version fails (exit status 1): install crun 1.8.1 or later, or set --default-runtime runc"
		}
		if !strings.Contains(r.Stdout, want+"\n") {
			t.Errorf("%v does not print %q", args, want)
		}
	}
	s.Exec(t, "umount", crun)
	if err := s.Client(t).CoreV1().Pods(ns).Delete(t.Context(), p.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	gone(t, s, before)
}

// TestAgent: in a cluster whose agent alone has crun, its pods run there, and the agent's default is its own.
func TestAgent(t *testing.T) {
	harness.RequireProgram(t, "crun")
	c := harness.StartCluster(t, harness.ClusterOptions{
		Agents: 1,
		Server: harness.Options{Prepare: func(s *harness.Server) error {
			return s.Command("sh", "-c", "mount --bind /bin/false $(command -v crun)").Run() // in the sandbox
		}},
		Agent: harness.Options{Args: []string{"--default-runtime=crun"}, Prepare: forCrun},
	})
	ns := c.Namespace(t)
	for name, tc := range map[string]struct {
		class string
		node  *harness.Server // nil: the scheduler's choice
		want  string
	}{
		"crun":      {"crun", nil, "crun"},
		"of-agent":  {"", c.Agents[0], "crun"},
		"of-server": {"", c.Server, "runc"},
	} {
		p := pod(ns, name, tc.class)
		if tc.node != nil {
			p.Spec.NodeName = tc.node.NodeName()
		}
		p = c.Server.Run(t, p)
		node := c.NodeOf(t, p)
		if of := runtimeOf(node, containerOf(t, node, p)); of != tc.want {
			t.Errorf("pod %s on node %s was started by %q, want %s", name, p.Spec.NodeName, of, tc.want)
		}
	}
	if _, has := c.Server.Node(t).Labels["kubelith.io/runtime-crun"]; has {
		t.Error("the server's node has the label of crun")
	}
}
