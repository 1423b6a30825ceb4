package restart

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"kubelith.io/kubelith/integration/harness"
)

// TestEveryone breaks all components at once, by a panic of Run, by a panic of one of their goroutines and by a hang,
// round after round. Meanwhile the API answers every request, containers run on and the Service is reached. Afterwards
// everything works, and what the process holds is what it held.
func TestEveryone(t *testing.T) {
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pid := s.PID()
	address := web(t, s, ns, "web")
	load := begin(t, s, ns, address)

	ways, everyone := []string{"panic", "goroutine", "hang"}, everyone(t, s)
	round := func(ways ...string) {
		for _, fault := range ways {
			before := metrics(t, s)
			for _, c := range everyone {
				breaks(t, s, c, fault)
			}
			again(t, s, before, everyone...)
		}
	}
	round(ways[0]) // the first restart has created what stays for good
	goroutines, memory := held(t, s)
	started := starters(t, s)
	n := rounds(t)
	for range n {
		round(ways...)
	}
	moreGoroutines, moreMemory := held(t, s)
	grown := func() float64 { return (moreGoroutines - goroutines) / float64(len(ways)*n) }
	for began := time.Now(); grown() > leftPerRestart && time.Since(began) < harness.Patience(30*time.Second); { // watches that still end
		moreGoroutines, moreMemory = held(t, s)
	}
	t.Logf("%d rounds: goroutines %.0f, then %.0f; anonymous memory %.0f MB, then %.0f MB; %s",
		n, goroutines, moreGoroutines, memory, moreMemory, load.end(t))
	if grown() > leftPerRestart {
		t.Errorf("starting all components again leaves %.1f goroutines behind, want at most %d", grown(), leftPerRestart)
	}
	t.Logf("functions that started more running goroutines:%s", more(started, starters(t, s)))
	if s.PID() != pid {
		t.Error("the server is another process")
	}

	// Controllers and scheduler make pods, the kubelet mounts a CSI volume, the proxy knows a new Service, DNS its
	// name.
	name := "after"
	before := metrics(t, s)
	breaks(t, s, "storage", "panic") // its driver registers again, with what the controller-manager has left of CSI
	again(t, s, before, "storage")
	volume(t, s, ns, name)
	newAddress := web(t, s, ns, name)
	reach(t, s, newAddress)
	resolves(t, s, name+"."+ns+".svc.cluster.local.", newAddress)
	harness.Eventually(t, 30*time.Second, "the Node to report that all is well", func() error {
		c, err := condition(t, s)
		if err == nil && c.Status != corev1.ConditionTrue {
			err = fmt.Errorf("%s: %s", c.Reason, c.Message)
		}
		return err
	})
	events, err := s.Client(t).CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,reason=ComponentFailed"})
	if err != nil || len(events.Items) == 0 {
		t.Errorf("no Event of a component that failed (%v)", err)
	}
}

// leftPerRestart is how many goroutines of upstream's may stay behind when all components are started again: those that
// upstream ends with the process only.
const leftPerRestart = 25

// TestStuck: a run that does not end is abandoned and reported, if another one may run beside it.
func TestStuck(t *testing.T) {
	s := cluster.Get(t)
	before := metrics(t, s)
	breaks(t, s, "dns", "stuck")
	harness.Eventually(t, 30*time.Second, "the Node to report that dns hangs", func() error {
		c, err := condition(t, s)
		if err == nil && (c.Status != corev1.ConditionFalse || !strings.Contains(c.Message, "dns: hangs")) {
			err = fmt.Errorf("%s %s: %s", c.Status, c.Reason, c.Message)
		}
		return err
	})
	again(t, s, before, "dns")
	if n := metrics(t, s)[of("abandoned_runs", "dns")]; n != 1 {
		t.Errorf("%.0f abandoned runs", n)
	}
	resolves(t, s, "kubernetes.default.svc.cluster.local.", "10.43.0.1")
	breaks(t, s, "dns", "release")
	harness.Eventually(t, 10*time.Second, "the abandoned run to have ended", func() error {
		if n := metrics(t, s)[of("abandoned_runs", "dns")]; n != 0 {
			return fmt.Errorf("%.0f abandoned runs", n)
		}
		return nil
	})
}

// TestStuckAlone: of the schedulers there is never a second one: the process ends in order, for its supervisor to start
// it again.
func TestStuckAlone(t *testing.T) {
	t.Parallel()
	o := options
	o.Disable, o.NoWait, o.NoTestImage = []string{"kubelet", "containerd", "proxy", "dns"}, true, true
	s := harness.Start(t, o)
	harness.Eventually(t, 60*time.Second, "a scheduler to break", func() error { return breakOne(s, "scheduler", "stuck") })
	if code := s.WaitExit(t, 40*time.Second); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if want := "a second run beside it is not safe"; !strings.Contains(s.Logs(), want) {
		t.Errorf("the log does not have %q", want)
	}
}

// TestCrashLoop: a panic that nothing catches ends the process, and its supervisor restarts it. A component that does
// so for the third time is left out of the next start, which logs that, and comes back later.
func TestCrashLoop(t *testing.T) {
	t.Parallel()
	o := options
	o.NoTestImage = true
	s := harness.Start(t, o)
	for range 3 {
		_ = breakOne(s, "dns", "crash") // the answer may not be out when the process ends
		if code := s.WaitExit(t, 40*time.Second); code != 2 {
			t.Fatalf("exit code %d", code)
		}
		s.Launch(t)
		s.WaitReady(t)
	}
	for want, times := range map[string]int{"held back, starting in": 1, "a panic ended the previous process:": 3} {
		if n := strings.Count(s.Logs(), want); n != times {
			t.Errorf("the log has %q %d times, not %d", want, n, times)
		}
	}
	harness.Eventually(t, 60*time.Second, "an Event of it", func() error {
		events, err := s.Client(t).CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,reason=ComponentFailed"})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if strings.Contains(e.Message, `dns: has crashed the process 3 times in a row, the last time with "panic: a test"`) {
				return nil
			}
		}
		return fmt.Errorf("%d others", len(events.Items))
	})
	harness.Eventually(t, 60*time.Second, "dns to be up again", func() error {
		if metrics(t, s)[of("up", "dns")] != 1 {
			return errors.New("it is not")
		}
		return nil
	})
	resolves(t, s, "kubernetes.default.svc.cluster.local.", "10.43.0.1")
}

// web creates a Deployment of two pods that serve, and returns the address of its Service when they do.
func web(t *testing.T, s *harness.Server, ns, name string) (address string) {
	t.Helper()
	pod := harness.Pod(ns, name, "/bin/probe", "serve")
	s.Deploy(t, pod, 2)
	svc, err := s.Client(t).CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Selector: pod.Labels, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt(8080)}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	reach(t, s, svc.Spec.ClusterIP)
	return svc.Spec.ClusterIP
}

// reach waits until a Service answers.
func reach(t *testing.T, s *harness.Server, address string) {
	t.Helper()
	harness.Eventually(t, harness.PodTimeout, "the Service "+address, func() error {
		_, err := harness.Ask(client(s), "http://"+address+"/")
		return err
	})
}

// client dials from inside the server's namespace, with a new connection for each request.
func client(s *harness.Server) *http.Client {
	return &http.Client{Timeout: 15 * time.Second, Transport: &http.Transport{DialContext: s.DialContext, DisableKeepAlives: true}}
}

// resolves waits until the cluster DNS knows a name.
func resolves(t *testing.T, s *harness.Server, name, address string) {
	t.Helper()
	harness.Eventually(t, 30*time.Second, "DNS to know "+name, func() error {
		reply, err := harness.QueryDNS(s.DialContext, "udp", "10.43.0.10:53", name, dns.TypeA)
		if err != nil {
			return err
		}
		for _, a := range reply.Answer {
			if a, ok := a.(*dns.A); ok && a.A.Equal(net.ParseIP(address)) {
				return nil
			}
		}
		return fmt.Errorf("answer: %v", reply)
	})
}

// volume has a pod write to a volume of the built-in CSI driver.
func volume(t *testing.T, s *harness.Server, ns, name string) {
	t.Helper()
	if _, err := s.Client(t).CoreV1().PersistentVolumeClaims(ns).Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := harness.Pod(ns, name+"-volume", harness.Shell("echo written >/data/file && cat /data/file")...)
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	if ended := s.RunToEnd(t, pod); ended.Status.Phase != corev1.PodSucceeded {
		t.Errorf("a pod with a volume: %s", ended.Status.Phase)
	}
}

func condition(t *testing.T, s *harness.Server) (corev1.NodeCondition, error) {
	t.Helper()
	nodes, err := s.Client(t).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return corev1.NodeCondition{}, err
	}
	for _, c := range nodes.Items[0].Status.Conditions {
		if c.Type == "KubelithComponents" {
			return c, nil
		}
	}
	return corev1.NodeCondition{}, fmt.Errorf("the Node has no condition KubelithComponents")
}

// held is what the process holds when nothing happens any more: the least of some looks.
func held(t *testing.T, s *harness.Server) (goroutines, memory float64) {
	t.Helper()
	for i := range 4 {
		time.Sleep(time.Second)
		now := metrics(t, s)["go_goroutines"]
		if i == 0 || now < goroutines {
			goroutines = now
		}
	}
	return goroutines, harness.AnonymousMB(t, s.PID())
}

// starters counts the goroutines of the process by what has started them.
func starters(t *testing.T, s *harness.Server) map[string]int {
	t.Helper()
	text, err := s.Client(t).CoreV1().RESTClient().Get().AbsPath("/debug/pprof/goroutine").Param("debug", "2").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for line := range strings.Lines(string(text)) {
		if starter, ok := strings.CutPrefix(line, "created by "); ok {
			starter, _, _ = strings.Cut(strings.TrimSpace(starter), " in goroutine ")
			out[starter]++
		}
	}
	return out
}

// more lists the functions that have started more goroutines than before, most first.
func more(before, after map[string]int) string {
	var names []string
	for name, n := range after {
		if n > before[name] {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(after[b]-before[b]-after[a]+before[a], strings.Compare(a, b))
	})
	var out strings.Builder
	for _, name := range names {
		fmt.Fprintf(&out, "\n%5d  %s", after[name]-before[name], name)
	}
	return out.String()
}

// load is what users do meanwhile.
type load struct {
	stop    context.CancelFunc
	running sync.WaitGroup

	mu                          sync.Mutex
	writes, requests, questions int
	unanswered                  int
	failed                      []string
}

// begin writes objects, asks a Service and resolves names until the end.
func begin(t *testing.T, s *harness.Server, ns, address string) *load {
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{stop: cancel}
	every := func(count *int, what string, must bool, f func() error) {
		l.running.Go(func() {
			for tick := time.NewTicker(50 * time.Millisecond); ctx.Err() == nil; {
				err := f()
				l.mu.Lock()
				switch *count++; {
				case ctx.Err() != nil || err == nil:
				case must:
					l.failed = append(l.failed, fmt.Sprintf("%s: %v", what, err))
				default:
					l.unanswered++
				}
				l.mu.Unlock()
				select {
				case <-tick.C:
				case <-ctx.Done():
					tick.Stop()
				}
			}
		})
	}
	maps := s.Client(t).CoreV1().ConfigMaps(ns)
	every(&l.writes, "write", true, func() error {
		made, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "load-"}}, metav1.CreateOptions{})
		if err == nil {
			err = maps.Delete(ctx, made.Name, metav1.DeleteOptions{})
		}
		return err
	})
	every(&l.requests, "Service", true, func() error {
		_, err := harness.Ask(client(s), "http://"+address+"/")
		return err
	})
	every(&l.questions, "DNS", false, func() error { // which is started again, too
		_, err := harness.QueryDNS(s.DialContext, "udp", "10.43.0.10:53", "web."+ns+".svc.cluster.local.", dns.TypeA)
		return err
	})
	return l
}

// end stops the load, fails the test if a client was refused, and returns how much the load was.
func (l *load) end(t *testing.T) string {
	t.Helper()
	l.stop()
	l.running.Wait()
	if len(l.failed) > 0 {
		t.Errorf("%d failures, such as %s", len(l.failed), l.failed[0])
	}
	return fmt.Sprintf("%d writes, %d requests of a Service, %d questions to DNS of which %d had no answer", l.writes, l.requests, l.questions, l.unanswered)
}
