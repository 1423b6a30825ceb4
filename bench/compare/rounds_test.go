package compare

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/miekg/dns"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"kubelith.io/kubelith/bench/results"
	"kubelith.io/kubelith/runtime/images"
)

const (
	manyPods = 50
	idlePods = 10
	// settle lets the work that follows an action end before the next measurement begins.
	settle = 5 * time.Second
)

// podsRound measures starts and pods.
func podsRound(t *testing.T, c *cluster) []results.Sample {
	var out []results.Sample
	add := func(figure string, value float64) { out = append(out, results.Sample{Figure: figure, Value: value}) }

	client, ready, pod, cpu := coldStart(t, c)
	add(results.ColdReady, ready)
	add(results.FirstPod, pod)
	add(results.ColdCPU, cpu)
	c.verify(t, client)
	time.Sleep(settle)

	var one []float64
	for i := range 3 {
		one = append(one, onePod(t, client, fmt.Sprintf("one-%d", i)))
	}
	add(results.OnePod, results.Median(one))
	time.Sleep(settle)

	before := c.usage(t)
	add(results.FiftyPods, deploy(t, client, manyPods))
	cpu50 := c.usage(t).since(before, 1)
	out = append(out, results.Sample{Figure: results.FiftyCPU, Value: cpu50.total, Detail: cpu50.String()})
	time.Sleep(4 * settle) // a shim returns what only the start of its pod needed
	add(results.PodMemory, (c.usage(t).memory().total-before.memory().total)/manyPods)
	if t.Failed() {
		t.FailNow()
	}

	add(results.FiftyGone, removeAll(t, client))
	if t.Failed() {
		t.FailNow()
	}
	time.Sleep(settle)
	c.stop(t)
	began := c.start()
	if client, err := kubernetes.NewForConfig(c.config(t)); err != nil {
		t.Fatal(err)
	} else {
		add(results.WarmReady, nodeReady(t, client, began).Sub(began).Seconds())
	}
	c.reportRestarts(t)
	if t.Failed() {
		t.FailNow()
	}
	return out
}

// idleRound measures memory and CPU of a cluster that has nothing to do.
func idleRound(t *testing.T, set settings, c *cluster) []results.Sample {
	client, _, _, _ := coldStart(t, c)
	if err := client.CoreV1().Pods(metav1.NamespaceDefault).Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	deploy(t, client, idlePods)
	c.verify(t, client)
	time.Sleep(2 * settle)
	before := c.usage(t)
	began := time.Now()
	select {
	case <-time.After(set.idle):
	case <-t.Context().Done():
	}
	window := time.Since(began)
	after := c.usage(t)
	memory, cpu := after.memory(), after.since(before, 300/window.Seconds())
	return []results.Sample{
		{Figure: results.IdleMemory, Value: memory.total, Detail: memory.String()},
		{Figure: results.IdleCPU, Value: cpu.total, Detail: cpu.String()},
	}
}

// coldStart starts the cluster and a pod as early as the apiserver takes one. It returns seconds since the start to
// node Ready and to pod Ready, and the CPU seconds until then.
func coldStart(t *testing.T, c *cluster) (client kubernetes.Interface, node, pod, cpu float64) {
	t.Helper()
	began := c.start()
	client, err := kubernetes.NewForConfig(c.config(t))
	if err != nil {
		t.Fatal(err)
	}
	nodeAt := concurrently(func() time.Time { return nodeReady(t, client, began.Add(-time.Second)) })
	podAt := concurrently(func() time.Time { return podsReady(t, client, "first", 1) })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		_, err := client.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, helloPod("first"), metav1.CreateOptions{})
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("create the first pod: %v", err)
		}
		time.Sleep(4 * retryEvery) // a controller creates the default service account
	}
	node, pod = nodeAt.since(began), podAt.since(began)
	if t.Failed() {
		t.FailNow()
	}
	return client, node, pod, c.cpuSeconds(t)
}

// deploy creates a Deployment and returns the seconds until all its pods are Ready.
func deploy(t *testing.T, client kubernetes.Interface, n int) float64 {
	t.Helper()
	seen := concurrently(func() time.Time { return podsReady(t, client, "many-", n) })
	time.Sleep(200 * time.Millisecond)
	pod := helloPod("many")
	began := time.Now()
	_, err := client.AppsV1().Deployments(metav1.NamespaceDefault).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "many"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(int32(n)),
			Selector: &metav1.LabelSelector{MatchLabels: pod.Labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return seen.since(began)
}

// removeAll deletes all pods, with those of deploy, and returns the seconds until their objects are gone.
func removeAll(t *testing.T, client kubernetes.Interface) float64 {
	t.Helper()
	gone := concurrently(func() time.Time { return podsGone(t, client) })
	time.Sleep(200 * time.Millisecond) // the watch is open
	began := time.Now()
	if err := client.AppsV1().Deployments(metav1.NamespaceDefault).Delete(t.Context(), "many", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}); err != nil {
		t.Fatal(err)
	}
	if err := client.CoreV1().Pods(metav1.NamespaceDefault).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	return gone.since(began)
}

// helloPod runs the embedded web server, without probes: it is Ready when it runs.
func helloPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To(int64(1)),
			Containers: []corev1.Container{{
				Name: "hello", Image: images.Hello, ImagePullPolicy: corev1.PullNever,
			}},
		},
	}
}

// verify makes sure that what is measured is a working cluster: a pod answers, and so does DNS at its
// Service address, which takes kube-proxy and the DNS server.
func (c *cluster) verify(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	pods, err := client.CoreV1().Pods(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(pods.Items) == 0 {
		t.Fatalf("list pods: %v", err)
	}
	var last error
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if last = c.answers(pods.Items[len(pods.Items)-1].Status.PodIP); last == nil {
			return
		}
	}
	t.Fatalf("the cluster does not work: %v", last)
}

func (c *cluster) answers(podIP string) error {
	web := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DialContext: c.DialContext, DisableKeepAlives: true}}
	resp, err := web.Get("http://" + net.JoinHostPort(podIP, "8080") + "/healthz")
	if err != nil {
		return err
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	conn, err := c.DialContext(context.Background(), "udp", clusterDNS+":53")
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(2 * time.Second))
	query := new(dns.Msg)
	query.SetQuestion("kubernetes.default.svc.cluster.local.", dns.TypeA)
	peer := &dns.Conn{Conn: conn}
	if err := peer.WriteMsg(query); err != nil {
		return err
	}
	answer, err := peer.ReadMsg()
	if err != nil {
		return fmt.Errorf("cluster DNS: %w", err)
	}
	if len(answer.Answer) != 1 {
		return fmt.Errorf("cluster DNS: %s", answer)
	}
	return nil
}

// reportRestarts logs which programs ended and were started again: a peer loses time that way.
func (c *cluster) reportRestarts(t *testing.T) {
	for _, p := range c.processes {
		if n := p.restarts(); n > 0 {
			t.Logf("%s was started again %d times", p.name, n)
			if c.name == results.Kubelith {
				t.Errorf("kubelith ended by itself")
			}
		}
	}
}
