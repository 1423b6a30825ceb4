package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/integration/harness"
)

// dnsGap is how long pods may miss DNS over a start at most: DNS is back about when the node is Ready again, which took
// that long here.
func dnsGap(ready time.Duration) time.Duration { return max(4*time.Second, ready*3/2) }

// dnsAddress is that of the Service of cluster DNS.
const dnsAddress = "10.43.0.10"

// TestRestart stops a server with pods and starts it again. It is serial, and so runs before the parallel ones: the
// time without DNS is the server's own only while no other test starts clusters.
func TestRestart(t *testing.T) {
	s := harness.Start(t, harness.Options{Args: []string{"--log-level=debug"}})
	ns := s.Namespace(t)
	s.Deploy(t, harness.Pod(ns, "app", "/bin/probe", "sleep"), 2)
	pod := harness.Pod(ns, "alone", "/bin/probe", "sleep")
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	pod = s.Run(t, pod)
	harness.Eventually(t, harness.PodTimeout, "the Deployment", func() error { return rolledOut(s, t, ns, "app") })
	list, err := s.Client(t).CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	before := map[string]process{}
	for i := range list.Items {
		before[list.Items[i].Name] = processOf(t, s, &list.Items[i])
	}
	if len(before) != 3 {
		t.Fatalf("there are %d pods", len(before))
	}
	token := s.Kubectl(t, "-n", ns, "create", "token", "default")
	certificates := hashes(t, s)

	gap := watchDNS(s.ContainerPID(t, pod, "main"))
	stop := s.Stop(t)
	within(t, "stop", stop, 30*time.Second)
	for name, p := range before {
		p.same(t, "after the stop, "+name)
	}
	stopOrder(t, s.Logs())
	began := time.Now()
	s.Launch(t)
	s.WaitReady(t)
	ready := time.Since(began)
	t.Logf("warm start to Ready: %s", ready.Round(time.Millisecond))
	within(t, "longest time without an answer of DNS", gap(), min(stop, 5*time.Second)+dnsGap(ready))

	for name, p := range before {
		p.same(t, "after the restart, "+name)
	}
	harness.Eventually(t, 30*time.Second, "containerd and the API to agree", func() error { return agree(t.Context(), t, s) })
	for name, p := range before {
		now := s.WaitRunning(t, harness.Pod(ns, name))
		if st := harness.Status(now, "main"); st.RestartCount != 0 || s.ContainerPID(t, now, "main") != p.pid {
			t.Errorf("pod %s was not adopted: %d restarts", name, st.RestartCount)
		}
	}
	harness.Eventually(t, 15*time.Second, "exec in an adopted container", func() error {
		out, _, err := s.TryPodExec(t, pod, "main", "/bin/sh", "-c", "echo here")
		if err == nil && out != "here\n" {
			err = fmt.Errorf("the output is %q", out)
		}
		return err
	})
	for file, sum := range hashes(t, s) {
		if certificates[file] != sum {
			t.Errorf("%s was changed by a restart", file)
		}
	}
	review, err := withToken(t, s, token).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("a token from before the restart: %v", err)
	}
	if user := review.Status.UserInfo.Username; user != "system:serviceaccount:"+ns+":default" {
		t.Errorf("the token is that of %s", user)
	}

	gap = watchDNS(s.ContainerPID(t, pod, "main"))
	s.Kill9(t)
	began = time.Now()
	// The rules of kube-proxy outlive the process; the next one takes the table over, with what was left half done.
	rules := func() string { return s.Exec(t, "nft", "list", "table", "ip", "kube-proxy") }
	if !strings.Contains(rules(), dnsAddress) {
		t.Errorf("after kill -9 no rule is about %s:\n%s", dnsAddress, rules())
	}
	s.Exec(t, "nft", "add chain ip kube-proxy service-left-behind; add element ip kube-proxy service-ips { 10.43.99.99 . tcp . 99 : goto service-left-behind }")
	s.Launch(t)
	s.WaitReady(t)
	ready = time.Since(began)
	harness.Eventually(t, 30*time.Second, "only rules of Services that exist", func() error {
		if now := rules(); strings.Contains(now, "10.43.99.99") || !strings.Contains(now, dnsAddress) {
			return errors.New(now)
		}
		return nil
	})
	within(t, "longest time without an answer of DNS over kill -9", gap(), dnsGap(ready))

	// What the service does when the machine shuts down.
	app := processOf(t, s, pod)
	if res := s.RunBinary(t, "stop-pods"); res.Code == 0 {
		t.Error("stop-pods did not refuse to work under a server")
	}
	s.Stop(t)
	app.same(t, "after the last stop")
	s.Exec(t, s.BinaryPath(), "stop-pods")
	harness.Eventually(t, 10*time.Second, "all containers to be gone", func() error {
		if harness.Alive(app.pid) {
			return fmt.Errorf("process %d runs", app.pid)
		}
		return nil
	})
	if !exists(s, harness.DataDir+"/server/db") {
		t.Error("stop-pods has removed the cluster's data")
	}
}

// stopOrder reads in the log what stopped when.
func stopOrder(t *testing.T, log string) {
	t.Helper()
	at := map[string]int{}
	for i, m := range regexp.MustCompile(`(?m)^\S+ debug +component=(\S+) (stopping|stopped)\b`).FindAllStringSubmatch(log, -1) {
		at[m[1]+" "+m[2]] = i + 1
	}
	for _, c := range []string{"etcd", "apiserver", "controller-manager", "scheduler", "containerd", "images", "cni", "network", "kubelet", "proxy", "dns", "servicelb", "metrics-server"} {
		if at[c+" stopping"] == 0 || at[c+" stopped"] == 0 {
			t.Errorf("the log does not say that %s stopped", c)
		}
	}
	for _, pair := range [][2]string{
		{"apiserver", "etcd"}, {"controller-manager", "apiserver"}, {"scheduler", "apiserver"}, {"kubelet", "apiserver"},
		{"proxy", "apiserver"}, {"dns", "apiserver"}, {"kubelet", "containerd"},
	} {
		if first, then := at[pair[0]+" stopped"], at[pair[1]+" stopping"]; first > then {
			t.Errorf("%s began to stop before %s had stopped", pair[1], pair[0])
		}
	}
}

// hashes are the files with keys and certificates, and the kubeconfig.
func hashes(t *testing.T, s *harness.Server) map[string]string {
	t.Helper()
	files, err := filepath.Glob(s.Path(harness.DataDir + "/server/*/*"))
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, s.Path(harness.AdminKubeconfig))
	found := map[string]string{}
	for _, f := range files {
		if info, err := os.Stat(f); err != nil || info.IsDir() {
			continue
		}
		content, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		found[f] = string(content)
	}
	if len(found) < 10 {
		t.Fatalf("only %d files with keys and certificates", len(found))
	}
	return found
}

func withToken(t *testing.T, s *harness.Server, token string) kubernetes.Interface {
	t.Helper()
	cfg := rest.AnonymousClientConfig(s.RESTConfig(t))
	cfg.BearerToken = strings.TrimSpace(token)
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// watchDNS asks cluster DNS all the time, from inside the network namespace of a pod's process, until the returned
// function is called, which returns the longest time between two answers.
func watchDNS(pid int) func() time.Duration {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var longest time.Duration
	wg.Add(1)
	go func() {
		defer wg.Done()
		last := time.Now()
		for ctx.Err() == nil {
			if askDNS(ctx, pid, 500*time.Millisecond) == nil {
				longest, last = max(longest, time.Since(last)), time.Now()
			}
			time.Sleep(20 * time.Millisecond)
		}
		longest = max(longest, time.Since(last))
	}()
	return func() time.Duration {
		for end := time.Now().Add(15 * time.Second); askDNS(ctx, pid, time.Second) != nil && time.Now().Before(end); {
		}
		cancel()
		wg.Wait()
		return longest
	}
}

func askDNS(ctx context.Context, pid int, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := harness.DialFrom(ctx, pid, "udp", dnsAddress+":53")
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(timeout))
	c := &dns.Conn{Conn: conn}
	m := new(dns.Msg)
	m.SetQuestion("kubernetes.default.svc.cluster.local.", dns.TypeA)
	if err := c.WriteMsg(m); err != nil {
		return err
	}
	m, err = c.ReadMsg()
	if err == nil && len(m.Answer) != 1 {
		err = fmt.Errorf("the answer is %s", m)
	}
	return err
}

// TestStoppedWhileStarting: a server that is stopped at any moment of its start leaves the containers alone.
func TestStoppedWhileStarting(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{})
	ns := s.Namespace(t)
	before := map[string]process{}
	for i := range 5 {
		pod := harness.Pod(ns, fmt.Sprintf("old-%d", i), "/bin/probe", "sleep")
		before[pod.Name] = processOf(t, s, s.Run(t, pod))
	}
	s.Stop(t)
	began := time.Now()
	s.Launch(t)
	s.WaitReady(t)
	ready := time.Since(began)
	s.Stop(t)
	const stops = 8
	for i := range stops {
		s.Launch(t)
		time.Sleep(ready * time.Duration(i) / stops)
		if err := unix.Kill(s.PID(), unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		s.WaitExit(t, 30*time.Second)
		for name, p := range before {
			p.same(t, fmt.Sprintf("stopped after %d eighths of a start, %s", i, name))
		}
	}
	s.Launch(t)
	s.WaitReady(t)
	for name, p := range before {
		pod := s.WaitRunning(t, harness.Pod(ns, name))
		if processOf(t, s, pod) != p {
			t.Errorf("pod %s has been restarted", name)
		}
	}
}
