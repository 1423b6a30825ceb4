package servers

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"

	"kubelith.io/kubelith/integration/harness"
)

// grace is how long the first phase of TestRotateCA lasts: API servers read a kubelet's CA again every five minutes.
const grace = 6 * time.Minute

// caRotation is what the test reads of kubelith certificate rotate-ca --status.
type caRotation struct {
	Rotation struct{ ID, Phase string }
	Waiting  string
	Machines []struct{ Name, Role, Phase, Lacks string }
}

func caStatus(t *testing.T, s *harness.Server) (v caRotation, err error) {
	r := s.RunBinary(t, "certificate", "rotate-ca", "--status", "-o", "json")
	if r.Code != 0 {
		return v, errors.New(r.Stderr)
	}
	return v, json.Unmarshal([]byte(r.Stdout), &v)
}

// TestRotateCA: two servers and an agent get new CAs while each credential is used all the time: the administrator's on
// both servers, a service account's token with the CA that its pod has mounted, and logs and exec through each kubelet.
// The server where it began is killed before others have the new CAs. No process and no container is started again
// otherwise, and a watch stays open. Afterwards the former CA is worth nothing, and an agent joins. It takes eight
// minutes and runs with KUBELITH_TEST_RENEWAL=1 only: make certificates-test.
func TestRotateCA(t *testing.T) {
	if os.Getenv("KUBELITH_TEST_RENEWAL") == "" {
		t.Skip("KUBELITH_TEST_RENEWAL is not set: make certificates-test sets it")
	}
	t.Parallel()
	grace := grace
	if d, err := time.ParseDuration(os.Getenv("KUBELITH_TEST_GRACE")); err == nil { // while one works on it
		grace = d
	}
	c := start(t, harness.Options{})
	first := c.servers[0]
	second := harness.New(t, harness.Options{Network: c.network, Args: []string{"--server=" + first.URL(), "--token=" + c.token(t)}})
	second.Launch(t)
	second.WaitReady(t)
	c.servers = append(c.servers, second)
	agent := harness.New(t, harness.Options{Network: c.network, Agent: &harness.AgentOptions{Of: first, Token: first.Token(t)}})
	agent.Launch(t)
	agent.WaitReady(t)
	nodes := []*harness.Server{first, second, agent}

	ns := first.Namespace(t)
	var pods []*corev1.Pod
	for _, n := range nodes {
		pod := harness.Pod(ns, "prints-"+n.NodeName(), "/bin/probe", "print", "line")
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: n.NodeName()}
		pods = append(pods, first.Run(t, pod))
	}
	containers := map[string]string{}
	for _, p := range pods {
		containers[p.Name] = p.Status.ContainerStatuses[0].ContainerID
	}
	_, err := first.Client(t).RbacV1().RoleBindings(ns).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "view"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "default", Namespace: ns}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	former := first.RESTConfig(t)

	// The first server dies when it has begun, and no other server has the new CAs.
	if r := first.RunBinary(t, "certificate", "rotate-ca", "--no-wait", "--grace="+grace.String()); r.Code != 0 || !strings.Contains(r.Stdout, "phase trust") {
		t.Fatalf("status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	first.Kill9(t)
	first.Launch(t)
	first.WaitReady(t)
	began := time.Now()
	pids := map[*harness.Server]int{}
	for _, n := range nodes {
		pids[n] = n.PID()
	}

	for _, p := range pods { // the first server's kubelet has just started
		harness.Eventually(t, time.Minute, "exec in "+p.Name, func() error {
			_, _, err := first.TryPodExec(t, p, "main", "true")
			return err
		})
	}

	use := newUse(t)
	for _, s := range c.servers {
		use.all("the administrator, on "+s.NodeName(), func() error { return namespaceOf(t, fresh(s.RESTConfig(t))) })
	}
	for i, n := range nodes {
		use.all("a service account in the pod on "+n.NodeName(), func() error { return asPod(t, n, pods[i], ns) })
		use.all("the log of the pod on "+n.NodeName(), func() error {
			log, err := second.Client(t).CoreV1().Pods(ns).GetLogs(pods[i].Name, &corev1.PodLogOptions{TailLines: new(int64)}).DoRaw(t.Context())
			if err == nil && len(log) > 0 {
				err = fmt.Errorf("%q", log)
			}
			return err
		})
		use.all("exec in the pod on "+n.NodeName(), func() error {
			_, _, err := first.TryPodExec(t, pods[i], "main", "true")
			return err
		})
	}
	use.until("the former kubeconfig", func() error { return namespaceOf(t, fresh(former)) })
	stream, err := watchPokes(t.Context(), second.Client(t), ns)
	if err != nil {
		t.Fatal(err)
	}
	watch := holding(t, "a watch with the former certificate", stream)

	phase := func(wanted string, timeout time.Duration) {
		t.Helper()
		harness.Eventually(t, timeout, "phase "+wanted, func() error {
			v, err := caStatus(t, second)
			if err == nil && v.Rotation.Phase != wanted {
				err = fmt.Errorf("phase %s, waiting for %s", v.Rotation.Phase, v.Waiting)
			}
			return err
		})
		t.Logf("%s: phase %s", time.Since(began).Round(time.Second), wanted)
	}
	harness.Eventually(t, time.Minute, "all machines to trust the new CAs", func() error {
		v, err := caStatus(t, first)
		if err == nil && (!strings.Contains(v.Waiting, "pods to read the new CA") || len(v.Machines) != 3) {
			err = fmt.Errorf("%+v", v)
		}
		return err
	})
	t.Logf("\n%s", first.RunBinary(t, "certificate", "rotate-ca", "--status").Stdout)
	phase("sign", grace+time.Minute)
	time.Sleep(15 * time.Second) // it takes 25 s
	use.end("the former kubeconfig")
	phase("done", 2*time.Minute)
	time.Sleep(15 * time.Second) // what is dropped is used for a while
	poke(t, first, ns, 1)
	harness.Eventually(t, 30*time.Second, "the watch with the former certificate", func() error { return watch.aliveAfter(time.Now().Add(-10 * time.Second)) })
	use.check()
	t.Logf("\n%s", first.RunBinary(t, "certificate", "rotate-ca", "--status").Stdout)

	var unknown x509.UnknownAuthorityError
	if err := namespaceOf(t, fresh(former)); !errors.As(err, &unknown) {
		t.Errorf("a client that knows the former CA only: %v", err)
	}
	for _, n := range nodes {
		if n.PID() != pids[n] {
			t.Errorf("%s was started again", n.NodeName())
		}
		r := n.RunBinary(t, "certificate", "list")
		for line := range strings.Lines(r.Stdout) {
			if fields := strings.Fields(line); !strings.HasPrefix(fields[0], "peer") && slices.ContainsFunc([]string{"kubelith-cluster-ca", "kubelith-kubelet-ca", "kubelith-front-proxy-ca"}, func(ca string) bool { return slices.Contains(fields[1:3], ca) }) {
				t.Errorf("%s: %s", n.NodeName(), line)
			}
		}
	}
	for _, p := range pods {
		now, err := first.Client(t).CoreV1().Pods(ns).Get(t.Context(), p.Name, metav1.GetOptions{})
		if err != nil || now.Status.ContainerStatuses[0].ContainerID != containers[p.Name] || now.Status.ContainerStatuses[0].RestartCount > 0 {
			t.Errorf("%s was started again: %v", p.Name, err)
		}
	}

	late := harness.New(t, harness.Options{Network: c.network, Agent: &harness.AgentOptions{Of: first, Token: first.Token(t)}})
	late.Launch(t)
	late.WaitReady(t)
	for _, s := range c.servers { // with what they have stored; of two servers, both are needed
		s.Kill9(t)
		s.Launch(t)
	}
	for i, n := range nodes {
		if n == agent { // it is started with the token of then
			n.Kill9(t)
			n.Launch(t)
		}
		n.WaitReady(t)
		harness.Eventually(t, time.Minute, "exec in the pod on "+n.NodeName()+" after another start", func() error {
			_, _, err := first.TryPodExec(t, pods[i], "main", "true")
			return err
		})
	}
}

// TestRotateCAAway: an agent that is away holds up the rotation, is named, and catches up when it is back; meanwhile
// another one joins. With --force the agent is left behind, and logs that when it starts. It takes three minutes: make
// certificates-test.
func TestRotateCAAway(t *testing.T) {
	if os.Getenv("KUBELITH_TEST_RENEWAL") == "" {
		t.Skip("KUBELITH_TEST_RENEWAL is not set: make certificates-test sets it")
	}
	t.Parallel()
	c := start(t, harness.Options{})
	first := c.servers[0]
	agent := harness.New(t, harness.Options{Network: c.network, Agent: &harness.AgentOptions{Of: first, Token: first.Token(t)}})
	agent.Launch(t)
	agent.WaitReady(t)
	agent.Stop(t)
	agent.WaitNotReady(t, 3*time.Minute)
	begin := func(args ...string) {
		t.Helper()
		args = append([]string{"certificate", "rotate-ca", "--no-wait", "--grace=0s"}, args...)
		if r := first.RunBinary(t, args...); r.Code != 0 {
			t.Fatalf("status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
	}
	begin()
	away := "agent " + agent.NodeName() + ": it is not Ready"
	harness.Eventually(t, time.Minute, "it to wait for the agent alone", func() error {
		v, err := caStatus(t, first)
		if err == nil && v.Waiting != away {
			err = fmt.Errorf("it waits for %s", v.Waiting)
		}
		return err
	})
	late := harness.New(t, harness.Options{Network: c.network, Agent: &harness.AgentOptions{Of: first, Token: first.Token(t)}})
	late.Launch(t)
	late.WaitReady(t)
	harness.Eventually(t, time.Minute, "the agent that has joined to follow", func() error {
		v, err := caStatus(t, first)
		if err == nil && (v.Waiting != away || v.Rotation.Phase != "trust" || len(v.Machines) != 3) {
			err = fmt.Errorf("%+v", v)
		}
		return err
	})
	t.Logf("\n%s", first.RunBinary(t, "certificate", "rotate-ca", "--status").Stdout)
	agent.Launch(t)
	agent.WaitReady(t)
	ended := func() error {
		v, err := caStatus(t, first)
		if err == nil && v.Rotation.Phase != "done" {
			err = fmt.Errorf("phase %s, waiting for %s", v.Rotation.Phase, v.Waiting)
		}
		return err
	}
	harness.Eventually(t, 2*time.Minute, "the end of the rotation", ended)

	agent.Stop(t)
	agent.WaitNotReady(t, 3*time.Minute)
	begin("--force")
	harness.Eventually(t, 2*time.Minute, "the end of the rotation without the agent", ended)
	if r := agent.RunBinary(t, agent.ServerArgs()...); r.Code == 0 || !strings.Contains(r.Stderr, "or this one if it has replaced its CA") {
		t.Errorf("the agent that was left behind: status %d\n%s", r.Code, r.Stderr)
	}
	late.Kill9(t)
	late.Launch(t)
	late.WaitReady(t)
}

// fresh returns a configuration whose clients open their own connections: client-go shares those of equal ones.
func fresh(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Dial = (&net.Dialer{}).DialContext
	return cfg
}

func namespaceOf(t *testing.T, cfg *rest.Config) error {
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	cs, err := kubernetes.NewForConfigAndClient(cfg, client)
	if err != nil {
		return err
	}
	_, err = cs.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceDefault, metav1.GetOptions{})
	return err
}

// asPod reads with the token and the CA that the pod has mounted, as they are now, from its network.
func asPod(t *testing.T, n *harness.Server, pod *corev1.Pod, ns string) error {
	pid := n.ContainerPID(t, pod, "main")
	dir := fmt.Sprintf("/proc/%d/root/var/run/secrets/kubernetes.io/serviceaccount/", pid)
	token, err := os.ReadFile(dir + "token")
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(dir + "ca.crt")
	if err != nil {
		return err
	}
	cfg := &rest.Config{Host: "https://10.43.0.1:443", BearerToken: string(token), TLSClientConfig: rest.TLSClientConfig{CAData: ca},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			return harness.DialFrom(ctx, pid, network, address)
		}}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	cs, err := kubernetes.NewForConfigAndClient(cfg, client)
	if err != nil {
		return err
	}
	if _, err = cs.CoreV1().Pods(ns).Get(t.Context(), pod.Name, metav1.GetOptions{}); err != nil {
		if cas, parse := certutil.ParseCertsPEM(ca); parse == nil {
			err = fmt.Errorf("with %d CAs: %w", len(cas), err)
		}
	}
	return err
}

// use does things again and again, each of which must work each time; at once again, where a server closes connections.
type use struct {
	t       *testing.T
	stop    chan struct{}
	running sync.WaitGroup
	mu      sync.Mutex
	ends    map[string]chan struct{}
	done    map[string]int
	errs    map[string][]string
}

func newUse(t *testing.T) *use {
	u := &use{t: t, stop: make(chan struct{}), ends: map[string]chan struct{}{}, done: map[string]int{}, errs: map[string][]string{}}
	t.Cleanup(u.finish)
	return u
}

func (u *use) all(what string, do func() error) { u.run(what, u.stop, do) }

// until is what works until end is called with the same words.
func (u *use) until(what string, do func() error) {
	u.ends[what] = make(chan struct{})
	u.run(what, u.ends[what], do)
}

func (u *use) end(what string) { close(u.ends[what]) }

func (u *use) run(what string, stop <-chan struct{}, do func() error) {
	u.running.Go(func() {
		for {
			began := time.Now()
			err := do()
			if err != nil {
				if again := do(); again == nil {
					err = nil
				} else {
					err = fmt.Errorf("%w, and before: %w", again, err)
				}
			}
			select {
			case <-stop:
				return
			default:
			}
			u.mu.Lock()
			u.done[what]++
			if err != nil {
				u.errs[what] = append(u.errs[what], began.UTC().Format("15:04:05")+" "+err.Error())
			}
			u.mu.Unlock()
			select {
			case <-stop:
				return
			case <-time.After(time.Second):
			}
		}
	})
}

// finish stops all.
func (u *use) finish() {
	select {
	case <-u.stop:
	default:
		close(u.stop)
	}
	for _, end := range u.ends {
		select {
		case <-end:
		default:
			close(end)
		}
	}
	u.running.Wait()
}

// check stops all and reports what has failed.
func (u *use) check() {
	u.t.Helper()
	u.finish()
	for what, n := range u.done {
		if errs := u.errs[what]; len(errs) > 0 {
			u.t.Errorf("%s failed %d of %d times: %s", what, len(errs), n, errs[0])
		} else {
			u.t.Logf("%s: %d times", what, n)
		}
	}
}
