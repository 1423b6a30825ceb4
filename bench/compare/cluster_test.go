package compare

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"kubelith.io/kubelith/bench/results"
	"kubelith.io/kubelith/integration/harness"
)

// cluster is one of the things compared, in its own sandbox.
type cluster struct {
	*harness.Server // the sandbox only: its Launch would switch on checks that cost time
	name            string
	logs            string
	kubeconfig      string // of an administrator, as seen from here
	launch          func() []*process
	processes       []*process
}

// newCluster prepares everything that is not measured. Nothing runs yet.
func newCluster(t *testing.T, set settings, name string) *cluster {
	t.Helper()
	c := &cluster{
		Server: harness.New(t, harness.Options{NoTestImage: true}),
		name:   name,
		logs:   t.TempDir(),
	}
	if name == results.Kubelith {
		c.kubeconfig = c.Path(harness.AdminKubeconfig)
		c.launch = func() []*process {
			return []*process{c.run("kubelith", nil, nil, set.kubelith, "server", "--kubelet-arg=cgroup-root="+c.CgroupRoot(),
				"--cluster-cidr="+set.clusterCIDR, "--disable="+set.disable)}
		}
	} else {
		p := newPeers(t, set, c)
		c.kubeconfig, c.launch = p.adminKubeconfig, p.launch
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.dump(t)
		}
		for _, p := range c.processes {
			p.end(unix.SIGKILL, 10*time.Second)
		}
	})
	unix.Sync() // what was prepared is not written during the measurement
	time.Sleep(2 * time.Second)
	return c
}

// start starts all processes, at the beginning of a second, and returns the moment before. So each heartbeat of this
// second is one of them.
func (c *cluster) start() time.Time {
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
	began := time.Now()
	c.processes = c.launch()
	return began
}

// stop ends all processes in an orderly way, the last started first.
func (c *cluster) stop(t *testing.T) {
	t.Helper()
	for i := len(c.processes) - 1; i >= 0; i-- {
		if !c.processes[i].end(unix.SIGTERM, 40*time.Second) {
			t.Errorf("%s has not ended within 40 s of SIGTERM", c.processes[i].name)
		}
	}
	c.processes = nil
}

// config is the administrator's access, as soon as it exists. The client has no rate limit and never waits because a
// starting server asks it to.
func (c *cluster) config(t *testing.T) *rest.Config {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		content, err := os.ReadFile(c.kubeconfig)
		if err != nil || len(content) == 0 {
			continue
		}
		cfg, err := clientcmd.RESTConfigFromKubeConfig(content)
		if err != nil {
			continue
		}
		cfg.Host = c.URL()
		cfg.QPS = -1
		cfg.ContentType = "application/vnd.kubernetes.protobuf"
		cfg.Wrap(impatient)
		return cfg
	}
	t.Fatalf("%s: no kubeconfig within a minute", c.name)
	return nil
}

func (c *cluster) dump(t *testing.T) {
	files, _ := filepath.Glob(filepath.Join(c.logs, "*.log"))
	for _, f := range files {
		content, _ := os.ReadFile(f)
		lines := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
		t.Logf("last lines of %s:\n%s", filepath.Base(f), strings.Join(lines[max(0, len(lines)-30):], "\n"))
		if dir := os.Getenv("BENCH_LOGS"); dir != "" {
			os.WriteFile(filepath.Join(dir, c.name+"-"+filepath.Base(f)), content, 0o644)
		}
	}
	for _, p := range c.processes {
		t.Logf("%s: pid %d, started again %d times", p.name, p.pid(), p.restarts())
	}
}

// run starts a program in the sandbox, once after has returned (nil: at once), and again whenever it ends.
func (c *cluster) run(name string, env []string, after func(stop <-chan struct{}), program string, args ...string) *process {
	p := &process{name: name, stopping: make(chan struct{}), ended: make(chan struct{})}
	log, err := os.OpenFile(filepath.Join(c.logs, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		panic(fmt.Sprintf("log of %s: %v", name, err)) // a full or vanished temporary directory
	}
	go func() {
		defer log.Close()
		if after != nil {
			after(p.stopping)
		}
		p.supervise(func() (*os.Process, func()) {
			cmd := c.Command(program, args...)
			cmd.Env = append(os.Environ(), env...)
			cmd.Stdout, cmd.Stderr = log, log
			cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
			if err := cmd.Start(); err != nil {
				fmt.Fprintf(log, "start %s: %v\n", program, err)
				return nil, nil
			}
			return cmd.Process, func() { cmd.Wait() }
		})
	}()
	return p
}
