package nodes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/integration/harness"
)

// testDrain: drain moves pods away and keeps those of DaemonSets; nothing new comes until uncordon.
func testDrain(t *testing.T, c *harness.Cluster) {
	ns := c.Namespace(t)
	away := c.Agents[0]
	daemonSet(t, c, ns, "daemon")
	deployment(t, c, ns, "app", 3)
	c.Server.Kubectl(t, "drain", away.NodeName(), "--ignore-daemonsets", "--delete-emptydir-data", "--force", harness.Timeout(90*time.Second))
	readyPods(t, c, ns, "app", 3, away)
	if n := len(podsOf(t, c, ns, "daemon")); n != len(c.Nodes()) {
		t.Errorf("%d pods of the DaemonSet are left", n)
	}
	waiting := c.Server.Create(t, on(away, web(ns, "waiting", "waiting")))
	c.Server.WaitPod(t, waiting, "to be refused by the scheduler", func(p *corev1.Pod) error {
		for _, cond := range p.Status.Conditions {
			if cond.Type == corev1.PodScheduled && cond.Status == corev1.ConditionFalse {
				return nil
			}
		}
		return errors.New("the scheduler has not reported that")
	})
	c.Server.Kubectl(t, "uncordon", away.NodeName())
	c.Server.WaitRunning(t, waiting)
}

// testPartition: two nodes lose each other; both stay members, and what leads over the third goes on. It heals by
// itself.
func testPartition(t *testing.T, c *harness.Cluster) {
	ns := c.Namespace(t)
	pods := everywhere(t, c, ns, "web")
	server, a, b := pods[0], pods[1], pods[2]
	within(t, c, a).mustAsk(t, "before the partition", b.Status.PodIP, 8080)
	heal := harness.Partition(t, c.Agents[0], c.Agents[1])
	within(t, c, a).unreachable(t, "b from a", b.Status.PodIP, 8080)
	within(t, c, b).unreachable(t, "a from b", a.Status.PodIP, 8080)
	began := time.Now()
	for _, p := range []*corev1.Pod{a, b} {
		within(t, c, p).mustAsk(t, p.Name+" to the server's pod", server.Status.PodIP, 8080)
		within(t, c, server).mustAsk(t, "the server's pod to "+p.Name, p.Status.PodIP, 8080)
		if out := c.Server.PodExec(t, p, "main", harness.Shell("echo here")...); out != "here\n" {
			t.Errorf("exec in %s: %q", p.Name, out)
		}
	}
	for _, n := range c.Agents {
		renewed(t, n, began)
		n.WaitReady(t)
	}
	heal()
	within(t, c, a).mustAsk(t, "a to b after the partition", b.Status.PodIP, 8080)
	within(t, c, b).mustAsk(t, "b to a after the partition", a.Status.PodIP, 8080)
}

// awayFor is how long the server is away.
func awayFor(t *testing.T) time.Duration {
	text := os.Getenv("KUBELITH_SERVER_AWAY")
	if text == "" {
		return 20 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("KUBELITH_SERVER_AWAY: %v", err)
	}
	return d
}

// testServerAway: while the server is away, pods, Services and DNS of the agents go on, and an agent that is started
// again, without a token, keeps its pods. When the server is back, the agents are as well.
func testServerAway(t *testing.T, c *harness.Cluster) {
	ns := c.Namespace(t)
	pods := everywhere(t, c, ns, "web")
	svc := service(t, c, ns, "web", nil)
	stays, restarted := pods[1], pods[2]
	dial := within(t, c, stays)
	dial.mustReachAll(t, "the Service before", svc.Spec.ClusterIP, 80, pods)
	dial.mustLookup(t, "udp", svc.Name+"."+zone(ns), svc.Spec.ClusterIP)
	before := startTimes(t, c, restarted)

	c.Server.Kill9(t)
	end := time.Now().Add(awayFor(t))
	failures := watch(map[string]func() error{
		"a pod of another node": func() error { _, err := dial.ask(restarted.Status.PodIP, 8080); return err },
		"a Service":             func() error { _, err := dial.ask(svc.Spec.ClusterIP, 80); return err },
		"a Service of its name": func() error { _, err := dial.lookup("udp", svc.Name+"."+zone(ns), dns.TypeA); return err },
	})
	agent := c.NodeOf(t, restarted)
	agent.Stop(t)
	agent.Agent.Token = "" // it has its certificate
	agent.Launch(t)
	harness.Eventually(t, 60*time.Second, "the kubelet of the agent to be healthy without the server", func() error {
		select {
		case <-agent.Exited():
			return harness.Permanent(errors.New("the agent ended"))
		default:
		}
		_, err := agent.HTTPGet("http://127.0.0.1:10248/healthz")
		return err
	})
	if after := startTimes(t, c, restarted); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the containers of the agent were started again: %v, before %v", after, before)
	}
	time.Sleep(time.Until(end)) // that long, whatever happens

	for what, err := range failures() {
		t.Errorf("while the server was away, %s: %v", what, err)
	}
	back := time.Now()
	c.Server.Launch(t)
	c.Server.WaitReady(t)
	for _, a := range c.Agents {
		renewed(t, a, back)
		a.WaitReady(t)
		c.Server.Run(t, on(a, web(ns, "new-"+a.NodeName(), "new")))
	}
	now := c.Server.WaitRunning(t, restarted)
	for _, s := range now.Status.ContainerStatuses {
		if s.RestartCount != 0 {
			t.Errorf("container %s was restarted %d times", s.Name, s.RestartCount)
		}
	}
	if after := startTimes(t, c, now); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the containers of the agent are others: %v, before %v", after, before)
	}
}

// watch repeats checks until the returned function is called, which returns the first failure of each.
func watch(checks map[string]func() error) func() map[string]error {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var mu sync.Mutex
	failed := map[string]error{}
	for what, check := range checks {
		wg.Go(func() {
			for n := 1; ctx.Err() == nil; n++ {
				if err := check(); err != nil {
					mu.Lock()
					failed[what] = fmt.Errorf("try %d, %s: %w", n, time.Now().Format(time.TimeOnly), err)
					mu.Unlock()
					return
				}
				select {
				case <-ctx.Done():
				case <-time.After(100 * time.Millisecond):
				}
			}
		})
	}
	return func() map[string]error {
		cancel()
		wg.Wait()
		return failed
	}
}

// testNodeStops: a node that ends is NotReady, its pods come back elsewhere and Services no longer route to it. When
// the node is back, it removes what it has lost and takes new pods.
func testNodeStops(t *testing.T, c *harness.Cluster) {
	ns := c.Namespace(t)
	deployment(t, c, ns, "app", 3)
	svc := service(t, c, ns, "app", nil)
	client := c.Server.Run(t, on(c.Server, web(ns, "client", "client")))
	var lost *harness.Server
	var old *corev1.Pod
	for _, p := range podsOf(t, c, ns, "app") {
		if n := c.NodeOf(t, p); n != c.Server {
			lost, old = n, p
		}
	}
	if lost == nil {
		t.Fatal("no pod of the Deployment is on an agent")
	}
	pid := c.ContainerPID(t, old, "main")
	lost.Kill9(t)
	lost.Isolate(t)
	lost.WaitNotReady(t, 90*time.Second)
	moved := readyPods(t, c, ns, "app", 3, lost)
	dial := within(t, c, client)
	dial.mustReachAll(t, "the Service", svc.Spec.ClusterIP, 80, moved)
	for range 30 {
		if _, err := dial.ask(svc.Spec.ClusterIP, 80); err != nil {
			t.Errorf("the Service still leads to the lost node: %v", err)
			break
		}
	}
	if !harness.Alive(pid) {
		t.Error("the container on the lost node has ended by itself: then the test below shows nothing")
	}
	lost.Rejoin(t)
	lost.Launch(t)
	lost.WaitReady(t)
	gone(t, c, old)
	harness.Eventually(t, 30*time.Second, "the old container to end", func() error {
		if harness.Alive(pid) {
			return fmt.Errorf("process %d lives", pid)
		}
		return nil
	})
	back := c.Server.Run(t, on(lost, web(ns, "back", "back")))
	dial.mustAsk(t, "a new pod on the node that is back", back.Status.PodIP, 8080)
	for _, p := range moved {
		if got := within(t, c, back).mustAsk(t, "from there", p.Status.PodIP, 8080); !strings.HasPrefix(got.Hostname, "app-") {
			t.Errorf("answered by %s", got.Hostname)
		}
	}
}
