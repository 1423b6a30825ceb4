package network

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/bench/results"
	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/runtime/images"
)

// idlePods is how many pods an agent has while it is idle, as in bench/compare.
const idlePods = 10

// TestAgent measures one new agent after the other.
func TestAgent(t *testing.T) {
	store, rounds := results.OpenRun(t, "bench-network")
	if store.Rounds("agent", results.Agent) >= rounds {
		t.Skip("done in an earlier run")
	}
	c := harness.StartCluster(t, harness.ClusterOptions{Server: harness.Options{NoTestImage: true}})
	token := c.Server.Token(t)
	time.Sleep(10 * time.Second) // what follows a start has ended
	for round := 1; round <= rounds; round++ {
		if store.Done("agent", round, results.Agent) {
			continue
		}
		t.Run(fmt.Sprint("round-", round), func(t *testing.T) {
			a := c.Prepare(t, harness.Options{NoTestImage: true}, harness.AgentOptions{Token: token})
			samples := agentRound(t, c, a)
			for _, s := range samples {
				t.Logf("%s: %.3f", s.Figure, s.Value)
			}
			a.Stop(t)
			c.Server.Kubectl(t, "delete", "node", a.NodeName())
			if err := store.Add("agent", round, results.Agent, samples...); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func agentRound(t *testing.T, c *harness.Cluster, a *harness.Server) []results.Sample {
	client := c.Server.Client(t)
	began := time.Now()
	a.Launch(t)
	ready := nodeReady(t, client, a.NodeName()).Sub(began)

	ns := c.Server.Namespace(t)
	for i := range idlePods {
		c.Server.Create(t, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprint("hello-", i)},
			Spec: corev1.PodSpec{
				NodeName:   a.NodeName(),
				Containers: []corev1.Container{{Name: "hello", Image: images.Hello, ImagePullPolicy: corev1.PullNever}},
			},
		})
	}
	for i := range idlePods {
		c.Server.WaitRunning(t, harness.Pod(ns, fmt.Sprint("hello-", i)))
	}
	time.Sleep(40 * time.Second) // it gives memory back half a minute after its start
	before, at := harness.CPUSeconds(t, a.PID()), time.Now()
	time.Sleep(time.Duration(results.Number(t, "IDLE_SECONDS", 120)) * time.Second)
	used := (harness.CPUSeconds(t, a.PID()) - before) / time.Since(at).Seconds()
	return []results.Sample{
		{Figure: results.AgentReady, Value: ready.Seconds()},
		{Figure: results.AgentMemory, Value: harness.AnonymousMB(t, a.PID())},
		{Figure: results.AgentCPU, Value: used * 100},
	}
}

// nodeReady is the moment when a node that did not exist is Ready.
func nodeReady(t *testing.T, client kubernetes.Interface, name string) time.Time {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	events, err := client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	for e := range events.ResultChan() {
		node, ok := e.Object.(*corev1.Node)
		if !ok {
			continue
		}
		for _, cond := range node.Status.Conditions {
			if cond.Type == corev1.NodeReady && cond.Status == corev1.ConditionTrue {
				return time.Now()
			}
		}
	}
	t.Fatalf("node %s is not Ready within two minutes", name)
	return time.Time{}
}
