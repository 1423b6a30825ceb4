package soak

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/integration/harness"
)

// day is how old the server is when the faults begin, by its certificates: no jump goes further back. It refuses a
// clock that is before its certificates or its program.
const day = 24 * time.Hour

// jumps are how wrong the clock gets, either way.
var jumps = []time.Duration{5 * time.Second, time.Minute, 10 * time.Minute, time.Hour, day / 2}

// wallClock is the clock of the machine, all of it: there is no namespace of CLOCK_REALTIME.
type wallClock struct {
	booted time.Time     // by the true time
	later  time.Duration // what the test takes as the true time, in truth
}

// newWallClock takes the clock as true, and sets it again when the test ends.
func newWallClock(t *testing.T) *wallClock {
	t.Helper()
	var now, up unix.Timespec
	for id, into := range map[int32]*unix.Timespec{unix.CLOCK_REALTIME: &now, unix.CLOCK_BOOTTIME: &up} {
		if err := unix.ClockGettime(id, into); err != nil {
			t.Fatal(err)
		}
	}
	c := &wallClock{booted: time.Unix(now.Unix()).Add(-time.Duration(up.Nano()))}
	t.Cleanup(func() { c.set(t, -c.later) })
	return c
}

// set makes the clock wrong by an offset, which may be negative; zero: right.
func (c *wallClock) set(t *testing.T, offset time.Duration) {
	t.Helper()
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		t.Fatal(err)
	}
	to, err := unix.TimeToTimespec(c.booted.Add(time.Duration(up.Nano()) + c.later + offset))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &to); err != nil {
		t.Fatalf("set the clock: %v", err)
	}
}

// fast and slow are in every run; what else happens while the clock is wrong is chosen at random.
func (c *wallClock) fast(t *testing.T, s *harness.Server, random *rand.Rand) string {
	return c.wrong(t, s, random, time.Hour)
}

func (c *wallClock) slow(t *testing.T, s *harness.Server, random *rand.Rand) string {
	return c.wrong(t, s, random, -time.Hour)
}

// jump makes the clock wrong at random.
func (c *wallClock) jump(t *testing.T, s *harness.Server, random *rand.Rand) string {
	offset := jumps[random.IntN(len(jumps))]
	if random.IntN(2) == 0 {
		offset = -offset
	}
	return c.wrong(t, s, random, offset)
}

// wrong makes the clock wrong for a while, during which the server may start again, or have its certificates dated by
// that clock. The cluster works meanwhile and afterwards, its Leases are renewed, and what runs goes on.
func (c *wallClock) wrong(t *testing.T, s *harness.Server, random *rand.Rand, offset time.Duration) string {
	what := fmt.Sprintf("a clock that is %s fast", offset)
	if offset < 0 {
		what = fmt.Sprintf("a clock that is %s slow", -offset)
	}
	process := c.steady(t, s)
	leases := c.leases(t, s)
	c.set(t, offset)
	dated := false
	switch random.IntN(4) {
	case 0:
		what += ", and kill -9"
		s.Kill9(t)
		s.Launch(t)
	case 1:
		what += ", and a restart"
		s.Stop(t)
		s.Launch(t)
	case 2:
		what += ", and a restart with new certificates"
		dated = true
		s.Stop(t)
		s.Exec(t, "sh", "-c", "cd "+harness.DataDir+"/server/tls && ls *.crt | grep -v -e '-ca.crt$' -e trust | xargs rm")
		s.Launch(t)
	}
	s.WaitReady(t)
	time.Sleep(time.Duration(random.IntN(20)) * time.Second)
	c.works(t, s, what)
	leases = c.renewed(t, s, what, leases)
	c.set(t, 0)
	what += ", and was set"
	if dated && offset > 0 { // those of the future are replaced at a start, or within ten minutes
		s.Stop(t)
		s.Launch(t)
	}
	s.WaitReady(t)
	c.works(t, s, what)
	c.renewed(t, s, what, leases)
	if now := c.steady(t, s); now != process {
		t.Errorf("%s: the process of a pod was %s and is %s", what, process, now)
	}
	return what
}

// steady is the process of a pod that runs all the time.
func (c *wallClock) steady(t *testing.T, s *harness.Server) string {
	t.Helper()
	const name = "steady"
	pod := harness.Pod(namespace, name, "sleep", "1000000")
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	eventually(t, "create a steady pod", func() error {
		_, err := s.Client(t).CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		return unlessExists(err)
	})
	running := s.WaitRunning(t, pod)
	pid := s.ContainerPID(t, running, running.Spec.Containers[0].Name)
	return fmt.Sprintf("%d of %d", pid, harness.StartTime(t, pid))
}

// leases are those of the nodes and of the server that leads.
func (c *wallClock) leases(t *testing.T, s *harness.Server) map[string]coordinationv1.Lease {
	t.Helper()
	var out map[string]coordinationv1.Lease
	eventually(t, "the Leases", func() error {
		list, err := s.Client(t).CoordinationV1().Leases("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		out = map[string]coordinationv1.Lease{}
		for _, lease := range list.Items {
			if lease.Namespace == corev1.NamespaceNodeLease || lease.Namespace == metav1.NamespaceSystem && lease.Name == "kubelith" {
				out[lease.Namespace] = lease
			}
		}
		if len(out) != 2 {
			return fmt.Errorf("%d Leases of a node and of the leader", len(out))
		}
		return nil
	})
	return out
}

// renewed waits until the Leases are not those of before any more. The node's must not have gone back: the controller
// for the lives of nodes takes only a later time as a sign of life.
func (c *wallClock) renewed(t *testing.T, s *harness.Server, when string, before map[string]coordinationv1.Lease) map[string]coordinationv1.Lease {
	t.Helper()
	var now map[string]coordinationv1.Lease
	eventually(t, when+": Leases that are renewed", func() error {
		now = c.leases(t, s)
		for namespace, old := range before {
			if now[namespace].ResourceVersion == old.ResourceVersion {
				return fmt.Errorf("that of %s is still from %v", namespace, old.Spec.RenewTime)
			}
		}
		return nil
	})
	if was, is := before[corev1.NamespaceNodeLease].Spec.RenewTime, now[corev1.NamespaceNodeLease].Spec.RenewTime; !was.Before(is) {
		t.Errorf("%s: the node's Lease was renewed at %v, and before that at %v", when, is, was)
	}
	return now
}

// works tries the ways by which the components show each other certificates and tokens: a pod starts, the kubelet is
// called, and the token of the pod is good.
func (c *wallClock) works(t *testing.T, s *harness.Server, when string) {
	t.Helper()
	const name = "tries"
	pod := harness.Pod(namespace, name, "sleep", "1000000")
	eventually(t, when+": create a pod", func() error {
		_, err := s.Client(t).CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		return unlessExists(err)
	})
	s.WaitRunning(t, pod)
	var token string
	eventually(t, when+": exec", func() error {
		r := s.TryKubectl(t, "-n", namespace, "exec", name, "--", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token")
		if token = r.Stdout; r.Code != 0 {
			return fmt.Errorf("%s", r.Stderr)
		}
		return nil
	})
	eventually(t, when+": the token of a new pod", func() error {
		config := rest.AnonymousClientConfig(s.RESTConfig(t))
		config.BearerToken = token
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		_, err = client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		return err
	})
	eventually(t, when+": delete a pod", func() error {
		now := int64(0)
		err := s.Client(t).CoreV1().Pods(namespace).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("it is still there")
		}
		return err
	})
}
