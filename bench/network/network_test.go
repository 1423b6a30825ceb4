package network

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"kubelith.io/kubelith/bench/results"
	"kubelith.io/kubelith/integration/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// port of probe sink.
const port = 9100

// TestWays measures each way ROUNDS times, one after the other, so that what changes on the machine falls on all alike.
func TestWays(t *testing.T) {
	store, rounds := results.OpenRun(t, "bench-network")
	for _, backend := range []string{results.VXLAN, results.HostGW} {
		t.Run(backend, func(t *testing.T) {
			if store.Rounds("network", backend) >= rounds {
				t.Skip("done in an earlier run")
			}
			c := harness.StartCluster(t, harness.ClusterOptions{
				Agents: 2,
				Server: harness.Options{Args: []string{"--network=" + backend}},
			})
			ways := ways(t, c, backend)
			time.Sleep(10 * time.Second) // what follows a start has ended
			for round := 1; round <= rounds; round++ {
				for _, w := range ways {
					if store.Done("network", round, w.name) {
						continue
					}
					samples := w.measure(t)
					for _, s := range samples {
						t.Logf("round %d, %s, %s: %.3f", round, w.name, s.Figure, s.Value)
					}
					if err := store.Add("network", round, w.name, samples...); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// way is one way from a client to a sink.
type way struct {
	name  string
	sink  string                         // its address
	probe func(args ...string) *exec.Cmd // runs a client
}

// ways are what a backend is measured on. Those that do not depend on it are measured with vxlan only.
func ways(t *testing.T, c *harness.Cluster, backend string) []way {
	t.Helper()
	ns := c.Namespace(t)
	run := func(name string, n *harness.Server, hostNetwork bool, command ...string) *corev1.Pod {
		pod := harness.Pod(ns, name, append([]string{"/bin/probe"}, command...)...)
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: n.NodeName()}
		pod.Spec.HostNetwork = hostNetwork
		return c.Server.Run(t, pod)
	}
	here, there := c.Agents[0], c.Agents[1]
	client := run("client", here, false, "sleep")
	near, far := run("near", here, false, "sink"), run("far", there, false, "sink")
	// The client is started in the pod's network by nsenter, as an exec would, without a stream through the API
	// meanwhile.
	in := func(pod *corev1.Pod) func(args ...string) *exec.Cmd {
		pid := c.ContainerPID(t, pod, "main")
		return func(args ...string) *exec.Cmd { return inNetwork(pid, pid, args...) }
	}
	from := in(client)
	address := func(ip string) string { return net.JoinHostPort(ip, fmt.Sprint(port)) }
	out := []way{
		{backend, address(far.Status.PodIP), from},
		{backend + results.ByService, address(service(t, c, ns, "far")), from},
	}
	if backend != results.VXLAN {
		return out
	}
	run("node", there, true, "sink")
	bareSink, bareClient := barePair(t, c.ContainerPID(t, client, "main"))
	return append(out,
		way{results.SameNode, address(near.Status.PodIP), from},
		way{results.SameNode + results.ByService, address(service(t, c, ns, "near")), from},
		way{results.NodeToNode, address(there.NodeIP), in(run("node-client", here, true, "sleep"))},
		way{results.BareVeth, address(bareSink), bareClient})
}

// inNetwork is the probe of a container's image, run in a network namespace.
func inNetwork(image, network int, args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{fmt.Sprintf("--net=/proc/%d/ns/net", network), fmt.Sprintf("/proc/%d/root/bin/probe", image)}, args...)...)
}

// barePair creates two network namespaces joined by a veth pair, with a sink in the first, until the test ends.
func barePair(t *testing.T, image int) (sink string, client func(args ...string) *exec.Cmd) {
	t.Helper()
	var pids [2]int
	for i := range pids {
		holder := exec.Command("unshare", "--net", "sleep", "1d")
		if err := holder.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			holder.Process.Kill()
			holder.Wait()
		})
		pids[i] = holder.Process.Pid
	}
	own := harness.NamespaceOf(t, os.Getpid(), "net")
	for _, pid := range pids { // unshare has become sleep, in its namespace
		harness.Eventually(t, 10*time.Second, "a network namespace", func() error {
			if harness.NamespaceOf(t, pid, "net") == own {
				return fmt.Errorf("process %d is in ours", pid)
			}
			return nil
		})
	}
	ip := func(pid int, args ...string) {
		t.Helper()
		if out, err := exec.Command("nsenter", append([]string{fmt.Sprintf("--net=/proc/%d/ns/net", pid), "ip"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	ip(pids[0], "link", "add", "bare", "type", "veth", "peer", "name", "bare", "netns", fmt.Sprint(pids[1]))
	for i, pid := range pids {
		ip(pid, "addr", "add", fmt.Sprintf("198.18.0.%d/30", 1+i), "dev", "bare")
		ip(pid, "link", "set", "bare", "up")
	}
	server := inNetwork(image, pids[0], "sink")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Process.Kill()
		server.Wait()
	})
	return "198.18.0.1", func(args ...string) *exec.Cmd { return inNetwork(image, pids[1], args...) }
}

// service creates a Service for the pod of that name and returns its address.
func service(t *testing.T, c *harness.Cluster, ns, pod string) string {
	t.Helper()
	svc, err := c.Server.Client(t).CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: pod},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": pod},
			Ports:    []corev1.ServicePort{{Port: port, TargetPort: intstr.FromInt(port)}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return svc.Spec.ClusterIP
}

// measure takes one sample of each metric.
func (w way) measure(t *testing.T) []results.Sample {
	t.Helper()
	stream := w.run(t, "throughput", "--time=5s")
	trips := w.run(t, "latency", "--count=20000")
	connects := w.run(t, "latency", "--count=2000", "--connect")
	return []results.Sample{
		{Figure: results.Throughput, Value: stream["bitsPerSecond"] / 1e9},
		{Figure: results.RoundTrip, Value: trips["medianMicroseconds"]},
		{Figure: results.RoundTripP99, Value: trips["p99Microseconds"]},
		{Figure: results.Connect, Value: connects["medianMicroseconds"]},
	}
}

// run starts a client and reads what it prints. The rules of a new Service may take a moment.
func (w way) run(t *testing.T, args ...string) map[string]float64 {
	t.Helper()
	var got map[string]float64
	harness.Eventually(t, 30*time.Second, w.name, func() error {
		out, err := w.probe(append(args, w.sink)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("probe %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return json.Unmarshal(out, &got)
	})
	return got
}
