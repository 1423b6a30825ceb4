package network

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"kubelith.io/kubelith/bench/results"
	"kubelith.io/kubelith/integration/harness"
)

// TestEnforcers logs what network policies cost, and how soon and for how long they hold, when Kubelith enforces them
// and when other programs do. BENCH_ENFORCERS has a line NAME=SHELL COMMAND for each, which runs in the node's
// namespaces with $KUBECONFIG and $NODE. BENCH_POLICIES is how many there are in the end (1,000).
func TestEnforcers(t *testing.T) {
	const variable = "BENCH_ENFORCERS"
	if os.Getenv(variable) == "" {
		t.Skip(variable + " names no programs")
	}
	all := []*enforcer{{name: "kubelith"}}
	for line := range strings.Lines(os.Getenv(variable)) {
		if name, command, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			all = append(all, &enforcer{name: name, command: command})
		}
	}
	for round := range results.Number(t, "ROUNDS", 1) {
		for _, e := range all {
			t.Run(fmt.Sprint(e.name, "/", round+1), e.measure)
		}
	}
}

// enforcer is what enforces policies; without a command, Kubelith itself.
type enforcer struct {
	name, command string

	s       *harness.Server
	cs      kubernetes.Interface
	ns      string
	process *exec.Cmd
	open    string  // address of a web server that no policy selects
	before  objects // what the kernel has without policies
}

func (e *enforcer) measure(t *testing.T) {
	opts := harness.Options{}
	if e.command != "" {
		opts.Disable = []string{"network-policy"}
	}
	e.s = harness.Start(t, opts)
	e.cs, e.ns = manyClient(t, e.s), e.s.Namespace(t)
	e.start(t)
	client, stranger := e.s.Run(t, harness.Pod(e.ns, "client", "/bin/probe", "sleep")), e.s.Run(t, harness.Pod(e.ns, "stranger", "/bin/probe", "sleep"))
	near := harness.Pod(e.ns, "near", "/bin/probe", "sink")
	near.Spec.Containers = append(near.Spec.Containers, harness.Container("echo", "/bin/probe", "echo"))
	near = e.s.Run(t, near)
	e.open = e.s.Run(t, harness.Pod(e.s.Namespace(t), "open", "/bin/probe", "serve")).Status.PodIP
	in, outside := e.s.ContainerPID(t, client, "main"), e.s.ContainerPID(t, stranger, "main")
	address := func(port string) string { return net.JoinHostPort(near.Status.PodIP, port) }
	cost := func(policies string) {
		began, busy := time.Now(), harness.CPUSeconds(t, e.pid())
		for _, s := range (way{e.name, address("9100"), func(args ...string) *exec.Cmd { return inNetwork(in, in, args...) }}).measure(t) {
			t.Logf("%s policies: %s: %.2f", policies, s.Figure, s.Value)
		}
		t.Logf("%s policies: %.1f MB of anonymous memory, %.0f %% of a core meanwhile", policies, harness.AnonymousMB(t, e.pid()),
			100*(harness.CPUSeconds(t, e.pid())-busy)/time.Since(began).Seconds())
	}
	time.Sleep(10 * time.Second) // what follows a start has ended
	e.before = e.objects(t)
	cost("no")

	for i := range 10 {
		allow(t, e.cs, e.ns, i)
	}
	e.change(t, "9000")
	e.settle(t, "10 policies, 3 pods")
	cost("10")
	e.changes(t, "10 policies", in, address("9000"))
	e.flow(t, in, address("9000"))
	e.first(t, address("9100"))
	e.dies(t, in, outside, near, address)

	for i := range 20 {
		e.s.Create(t, harness.Pod(e.ns, fmt.Sprint("idle-", i), "/bin/probe", "sleep"))
	}
	for i := range 20 {
		e.s.WaitRunning(t, harness.Pod(e.ns, fmt.Sprint("idle-", i)))
	}
	e.settle(t, "10 policies, 23 pods")
	many := results.Number(t, "BENCH_POLICIES", 1000)
	for i := 10; i < many; i++ {
		allow(t, e.cs, e.ns, i)
	}
	e.settle(t, fmt.Sprint(many, " policies, 23 pods"))
	cost(fmt.Sprint(many))
	e.changes(t, fmt.Sprint(many, " policies"), in, address("9000"))
}

// start runs the program until the test ends. Its log is enforcer-NAME.log in the directory for temporary files.
func (e *enforcer) start(t *testing.T) {
	t.Helper()
	if e.command == "" {
		return
	}
	e.process = e.s.Command("/bin/sh", "-c", e.command)
	e.process.Env = append(os.Environ(), "KUBECONFIG="+harness.AdminKubeconfig, "NODE="+e.s.Node(t).Name)
	log, err := os.OpenFile(filepath.Join(os.TempDir(), "enforcer-"+e.name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	e.process.Stdout, e.process.Stderr = log, log
	if err := e.process.Start(); err != nil {
		t.Fatal(err)
	}
	process := e.process
	t.Cleanup(func() {
		process.Process.Kill()
		process.Wait()
	})
}

func (e *enforcer) pid() int {
	if e.command == "" {
		return e.s.PID()
	}
	return e.process.Process.Pid
}

// change lets the client send to one UDP port of near, beside what all policies allow.
func (e *enforcer) change(t *testing.T, port string) {
	t.Helper()
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "changes", Namespace: e.ns}}
	rule := `[{podSelector: {matchLabels: {app: %s}}}], ports: [{port: ` + port + `, protocol: UDP}]`
	spec := "podSelector: {}\npolicyTypes: [Ingress, Egress]\ningress: [{from: " + fmt.Sprintf(rule, "client") + "}]\negress: [{to: " + fmt.Sprintf(rule, "near") + "}]"
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatal(err)
	}
	policies := e.cs.NetworkingV1().NetworkPolicies(e.ns)
	if _, err := policies.Get(t.Context(), p.Name, metav1.GetOptions{}); err != nil {
		if _, err := policies.Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		return
	}
	patch, err := json.Marshal(map[string]any{"spec": p.Spec})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := policies.Patch(t.Context(), p.Name, "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// answers reports whether a datagram on a connection is answered in 30 ms.
func answers(conn net.Conn) bool {
	conn.SetDeadline(time.Now().Add(30 * time.Millisecond))
	if _, err := conn.Write([]byte("x\n")); err != nil {
		return false
	}
	_, err := conn.Read(make([]byte, 512))
	return err == nil
}

// connects reports whether a new connection is answered.
func connects(ctx context.Context, pid int, network, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	conn, err := harness.DialFrom(ctx, pid, network, address)
	if err != nil {
		return false
	}
	defer conn.Close()
	return answers(conn)
}

// until waits until as many tries in a row have the result, and returns when the first of them began.
func until(t *testing.T, limit time.Duration, tries int, want bool, try func() bool) (time.Time, bool) {
	t.Helper()
	var first time.Time
	for end, same := time.Now().Add(limit), 0; time.Now().Before(end); {
		began := time.Now()
		if try() != want {
			same = 0
			continue
		}
		if same++; same == 1 {
			first = began
		}
		if same == tries {
			return first, true
		}
	}
	return time.Time{}, false
}

// changes logs how long it takes until a change of a policy decides about new connections.
func (e *enforcer) changes(t *testing.T, what string, in int, address string) {
	t.Helper()
	var took []time.Duration
	for i := range 10 {
		began := time.Now()
		e.change(t, []string{"9001", "9000"}[i%2])
		at, ok := until(t, time.Minute, 3, i%2 == 1, func() bool { return connects(t.Context(), in, "udp", address) })
		if !ok {
			t.Errorf("%s: a change was not enforced in a minute", what)
			return
		}
		took = append(took, at.Sub(began))
		time.Sleep(500 * time.Millisecond)
	}
	slices.Sort(took)
	t.Logf("%s: a change decides about new connections after %s (median), %s (longest of %d)", what, took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond), len(took))
}

// flow logs when a flow ends that a change forbids.
func (e *enforcer) flow(t *testing.T, in int, address string) {
	t.Helper()
	conn, err := harness.DialFrom(t.Context(), in, "udp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, ok := until(t, 10*time.Second, 3, true, func() bool { return answers(conn) }); !ok {
		t.Fatal("what is allowed is not answered")
	}
	began := time.Now()
	e.change(t, "9001")
	// Of a flow that goes on, some datagrams may be late on a busy machine.
	if at, ok := until(t, 50*time.Second, 30, false, func() bool { return answers(conn) }); ok {
		t.Logf("a flow that a change forbids ends after %s", at.Sub(began).Round(time.Millisecond))
	} else {
		t.Logf("a flow that a change forbids goes on after 50 s")
	}
	e.change(t, "9000")
	until(t, time.Minute, 3, true, func() bool { return connects(t.Context(), in, "udp", address) })
}

// first logs what the first instruction of pods can do.
func (e *enforcer) first(t *testing.T, allowed string) {
	t.Helper()
	t.Logf("%d of 20 pods reached with their first instruction what is forbidden", e.reach(t, "forbidden"))
	reached, slowest := 0, 0.0
	for i := range 10 {
		pod := harness.Pod(e.ns, fmt.Sprint("allowed-", i), "/bin/probe", "latency", "--count=1", "--connect", allowed)
		pod.Labels = map[string]string{"app": "other-0"}
		if pod = e.s.WaitPod(t, e.s.Create(t, pod), "to end", harness.PodEnded); pod.Status.Phase != corev1.PodSucceeded {
			continue
		}
		var got map[string]float64
		if err := json.Unmarshal([]byte(e.s.PodLogs(t, pod, "main")), &got); err != nil {
			t.Fatal(err)
		}
		reached, slowest = reached+1, max(slowest, got["medianMicroseconds"])
	}
	t.Logf("%d of 10 pods reached with their first instruction what is allowed, the slowest in %.0f ms", reached, slowest/1000)
}

// reach returns how many of 20 pods reach with their first instruction what their rules of egress alone forbid.
func (e *enforcer) reach(t *testing.T, name string) (reached int) {
	t.Helper()
	var pods []*corev1.Pod
	for i := range 20 {
		pods = append(pods, e.s.Create(t, harness.Pod(e.ns, fmt.Sprint(name, "-", i), "/bin/probe", "dial", "--timeout=700ms", "http://"+e.open+":8080/")))
	}
	for _, pod := range pods {
		if e.s.WaitPod(t, pod, "to end", harness.PodEnded).Status.Phase == corev1.PodSucceeded {
			reached++
		}
	}
	return reached
}

// dies logs what passes while the program is dead, and over its next start.
func (e *enforcer) dies(t *testing.T, in, outside int, near *corev1.Pod, address func(port string) string) {
	t.Helper()
	if _, ok := until(t, time.Minute, 3, false, func() bool { return connects(t.Context(), outside, "tcp", address("9000")) }); !ok {
		t.Error("what is forbidden passes before")
	}
	kept, err := harness.DialFrom(t.Context(), in, "udp", address("9000"))
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	if e.command == "" {
		e.s.Kill9(t)
	} else {
		e.process.Process.Kill()
		e.process.Wait()
	}
	count := func(when string, end <-chan struct{}) {
		var tries, through, refused, lost int
		for ended := false; !ended; tries++ {
			if connects(t.Context(), outside, "tcp", address("9000")) {
				through++
			}
			if !connects(t.Context(), in, "udp", address("9000")) {
				refused++
			}
			if !answers(kept) {
				lost++
			}
			select {
			case <-end:
				ended = true
			default:
			}
		}
		t.Logf("%s: of %d tries each, %d forbidden connections came about, %d allowed ones did not, %d datagrams of a flow were lost", when, tries, through, refused, lost)
	}
	after := func(d time.Duration) <-chan struct{} {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		t.Cleanup(cancel)
		return ctx.Done()
	}
	count("dead", after(5*time.Second))
	if e.command != "" {
		t.Logf("dead: %d of 20 new pods reached what is forbidden", e.reach(t, "orphan"))
		e.start(t)
		count("next start", after(10*time.Second))
		return
	}
	e.s.Launch(t)
	count("next start", after(20*time.Second))
	e.s.WaitReady(t)
}

// objects are what the kernel has of nftables.
type objects struct{ chains, rules, elements int }

func (e *enforcer) objects(t *testing.T) (o objects) {
	t.Helper()
	var list struct{ Nftables []map[string]json.RawMessage }
	if err := json.Unmarshal([]byte(e.s.Exec(t, "nft", "-j", "list", "ruleset")), &list); err != nil {
		t.Fatal(err)
	}
	for _, object := range list.Nftables {
		for kind, content := range object {
			switch kind {
			case "chain":
				o.chains++
			case "rule":
				o.rules++
			case "set", "map":
				var set struct{ Elem []json.RawMessage }
				if err := json.Unmarshal(content, &set); err != nil {
					t.Fatal(err)
				}
				o.elements += len(set.Elem)
			}
		}
	}
	return o
}

// settle waits until the kernel's rules stay as they are, and logs how many there are more than without policies.
func (e *enforcer) settle(t *testing.T, what string) {
	t.Helper()
	began, last, same := time.Now(), objects{}, 0
	for same < 3 && time.Since(began) < 4*time.Minute {
		time.Sleep(2 * time.Second)
		now := e.objects(t)
		if same++; now != last {
			last, same = now, 0
		}
	}
	t.Logf("%s: %d chains, %d rules, %d elements of sets and maps, settled after %s", what, last.chains-e.before.chains, last.rules-e.before.rules, last.elements-e.before.elements,
		(time.Since(began) - time.Duration(same+1)*2*time.Second).Round(time.Second))
}
