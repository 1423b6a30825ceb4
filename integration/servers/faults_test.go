package servers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/integration/harness"
)

// leaderFault does something to one server, and returns how to undo it.
type leaderFault struct {
	name string
	hold time.Duration
	// loses means that the others elect another leader meanwhile, and ends that the process may end.
	loses, ends bool
	inject      func(t *testing.T, c *cluster, s *harness.Server) (heal func())
}

// leaderFaults are what `make bench-ha` does to the leader. A wrong clock on one server alone needs a separate machine.
var leaderFaults = []leaderFault{
	{"killed", 0, true, true, func(t *testing.T, _ *cluster, s *harness.Server) func() {
		s.Kill9(t)
		return func() { s.Launch(t) }
	}},
	{"paused", 10 * time.Second, true, false, func(t *testing.T, _ *cluster, s *harness.Server) func() {
		signal(t, s, unix.SIGSTOP)
		return func() { signal(t, s, unix.SIGCONT) }
	}},
	{"cut off", 15 * time.Second, true, false, func(t *testing.T, _ *cluster, s *harness.Server) func() {
		s.Isolate(t)
		return func() { s.Rejoin(t) }
	}},
	{"deaf to the others", 15 * time.Second, true, false, func(t *testing.T, c *cluster, s *harness.Server) func() {
		return oneWay(t, "saddr", s, c.others(s))
	}},
	{"not heard by the others", 15 * time.Second, true, false, func(t *testing.T, c *cluster, s *harness.Server) func() {
		return oneWay(t, "daddr", s, c.others(s))
	}},
	{"on a slow disk", 20 * time.Second, false, false, slowDisk},
	{"on a full disk", 10 * time.Second, false, true, func(t *testing.T, _ *cluster, s *harness.Server) func() {
		filler := harness.DataDir + "/filler"
		s.TryExec(t, "dd", "if=/dev/zero", "of="+filler, "bs=1M") // ends when the disk is full
		return func() { s.Exec(t, "rm", filler) }
	}},
	{"cut off for 70 s", 70 * time.Second, true, false, func(t *testing.T, _ *cluster, s *harness.Server) func() {
		s.Isolate(t)
		return func() { s.Rejoin(t) }
	}},
}

func signal(t *testing.T, s *harness.Server, sig unix.Signal) {
	t.Helper()
	if err := unix.Kill(s.PID(), sig); err != nil {
		t.Fatal(err)
	}
}

// oneWay drops packets of one direction between a server and others. Whoever else asks them is not affected.
func oneWay(t *testing.T, direction string, s *harness.Server, others []*harness.Server) func() {
	t.Helper()
	hook := map[string]string{"saddr": "input", "daddr": "output"}[direction]
	var addresses []string
	for _, o := range others {
		addresses = append(addresses, o.NodeIP)
	}
	s.Exec(t, "nft", fmt.Sprintf("add table ip klt_one_way\nadd chain ip klt_one_way c { type filter hook %s priority 0; }\nadd rule ip klt_one_way c ip %s { %s } drop",
		hook, direction, strings.Join(addresses, ", ")))
	return func() { s.Exec(t, "nft", "delete", "table", "ip", "klt_one_way") }
}

// slowDisk makes each sync to disk of a server take 300 ms.
func slowDisk(t *testing.T, _ *cluster, s *harness.Server) func() {
	t.Helper()
	harness.RequireProgram(t, "strace")
	strace := exec.Command("strace", "--follow-forks", "--quiet=all", "--trace=fsync,fdatasync", "--output=/dev/null",
		"--inject=fsync,fdatasync:delay_enter=300000", "--attach="+strconv.Itoa(s.PID()))
	if err := strace.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := strace.Process.Signal(unix.SIGINT); err != nil { // it lets go of the server
			t.Error(err)
		}
		_ = strace.Wait() // it ends with the signal
	}
}

// killsPerHistory is how many servers are killed before what the clients saw is checked: the longer a history, the more
// orders there are.
const killsPerHistory = 25

// TestFaults does each of leaderFaults while clients write, then kills servers at random. It needs minutes to hours:
// `make bench-ha`, with KUBELITH_LEADER_KILLS as the number of leaders to kill, and KUBELITH_RANDOM_KILLS as that of
// servers.
func TestFaults(t *testing.T) {
	leaderKills, randomKills := number(t, "KUBELITH_LEADER_KILLS"), number(t, "KUBELITH_RANDOM_KILLS")
	c := threeOnSmallDisks(t)
	for _, f := range leaderFaults {
		t.Run(f.name, func(t *testing.T) {
			h := record(t, 20*time.Millisecond, c.servers...)
			defer h.forget(t)
			leader := c.leader(t)
			pid, rest := leader.PID(), c.others(leader)
			time.Sleep(2 * time.Second)
			began := time.Now()
			heal := f.inject(t, c, leader)
			again := writesAgain(t, rest)
			time.Sleep(time.Until(began.Add(f.hold)))
			heal()
			healed := time.Now()
			back(t, leader, f.ends)
			t.Logf("writes again after %s, the server after %s", again.Round(time.Millisecond), time.Since(healed).Round(time.Millisecond))
			if !f.ends && (leader.PID() != pid || !harness.Alive(pid)) {
				t.Error("the process was ended")
			}
			h.check(t)
		})
	}
	var pauses []time.Duration
	inHistories(t, c, "leaders killed", leaderKills, func(t *testing.T) {
		leader := c.leader(t)
		leader.Kill9(t)
		pauses = append(pauses, writesAgain(t, c.others(leader)))
		leader.Launch(t)
		back(t, leader, false)
	})
	if n := len(pauses); n > 0 {
		slices.Sort(pauses)
		t.Logf("%d leaders killed: writes again after %s (median), %s (p99), %s (longest)",
			n, pauses[n/2].Round(time.Millisecond), pauses[(n*99-1)/100].Round(time.Millisecond), pauses[n-1].Round(time.Millisecond))
	}
	inHistories(t, c, "servers killed at random", randomKills, func(t *testing.T) {
		s := c.servers[rand.IntN(len(c.servers))]
		s.Kill9(t)
		time.Sleep(time.Duration(rand.IntN(3000)) * time.Millisecond)
		s.Launch(t) // while it starts the next may be killed, or the same
		time.Sleep(time.Duration(rand.IntN(6000)) * time.Millisecond)
	})
}

// TestReadyAfterCut cuts each of three servers off for 70 s, longer than a node may be silent, and reports when its
// node is Ready for the others again. Its process and its pod's container are the same then: `make bench-ha`.
func TestReadyAfterCut(t *testing.T) {
	number(t, "KUBELITH_LEADER_KILLS")
	c := start(t, harness.Options{})
	c.join(t)
	c.join(t)
	ns := c.servers[0].Namespace(t)
	for _, s := range c.servers {
		t.Run(s.NodeName(), func(t *testing.T) {
			pod := harness.Pod(ns, "on-"+s.NodeName(), "sleep", "100000")
			pod.Spec.NodeName = s.NodeName()
			pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} // it is not evicted
			pod = c.servers[0].Run(t, pod)
			server, container := s.PID(), c.pid(t, pod)
			leads, other := c.leader(t) == s, c.others(s)[0]

			began := time.Now()
			s.Isolate(t)
			notReady := waitReadyIs(t, corev1.ConditionUnknown, s, other)
			time.Sleep(time.Until(began.Add(70 * time.Second)))
			s.Rejoin(t)
			healed := time.Now()
			ready := waitReadyIs(t, corev1.ConditionTrue, s, other)
			t.Logf("leader: %t; not Ready %s after the cut, Ready %s after its end", leads,
				notReady.Sub(began).Round(100*time.Millisecond), ready.Sub(healed).Round(100*time.Millisecond))
			if s.PID() != server || !harness.Alive(server) {
				t.Error("the process was ended")
			}
			back(t, s, false)
			if now := c.pid(t, pod); now != container {
				t.Errorf("the pod's container is process %d and was %d", now, container)
			}
		})
	}
}

// waitReadyIs waits until the node has that status of its condition Ready in the API of a server, and returns when.
func waitReadyIs(t *testing.T, status corev1.ConditionStatus, node, of *harness.Server) time.Time {
	t.Helper()
	harness.Eventually(t, 2*time.Minute, fmt.Sprintf("the condition Ready of %s to be %s", node.NodeName(), status), func() error {
		n, err := of.Client(t).CoreV1().Nodes().Get(t.Context(), node.NodeName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == status {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %v", n.Status.Conditions)
	})
	return time.Now()
}

// number is that of an environment variable. Without it the test is skipped.
func number(t *testing.T, variable string) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		t.Skip(variable + " is not set: see make bench-ha")
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// inHistories kills as many times, while clients write. After each killsPerHistory all servers must write again, and a
// new history begins.
func inHistories(t *testing.T, c *cluster, name string, kills int, kill func(t *testing.T)) {
	for done := 0; done < kills && !t.Failed(); {
		last := min(done+killsPerHistory, kills)
		t.Run(fmt.Sprintf("%s, %d to %d", name, done+1, last), func(t *testing.T) {
			h := record(t, 20*time.Millisecond, c.servers...)
			defer h.forget(t)
			for ; done < last; done++ {
				kill(t)
			}
			for _, s := range c.servers {
				back(t, s, false)
			}
			h.check(t)
		})
		done = last // also after a failure
	}
}

// threeOnSmallDisks starts three servers whose data directories have 2 GiB each, so that one can be filled.
func threeOnSmallDisks(t *testing.T) *cluster {
	t.Helper()
	prepare := harness.SmallDisk(2)
	c := start(t, harness.Options{Args: []string{noNode}, NoWait: true, Prepare: prepare})
	c.servers[0].WaitAPI(t)
	for range 2 {
		s := harness.New(t, harness.Options{Network: c.network, Args: []string{"--server=" + c.servers[0].URL(), "--token=" + c.token(t), noNode}, Prepare: prepare})
		s.Launch(t)
		s.WaitAPI(t)
		c.servers = append(c.servers, s)
	}
	return c
}

// writesAgain returns how long it takes until one of the servers acknowledges a write. A request that is on its way to
// a leader that dies takes longer, seven seconds: etcd waits for its answer.
func writesAgain(t *testing.T, servers []*harness.Server) time.Duration {
	t.Helper()
	began, n := time.Now(), rand.Int64N(1<<40)
	harness.Eventually(t, time.Minute, "writes to go on", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		n++
		return write(ctx, t, servers[n%int64(len(servers))], fmt.Sprintf("again-%d", n))
	})
	return time.Since(began)
}

// back waits until a server writes again. One that may end is started again, as a service manager would. Its client has
// a connection of its own: TCP repeats what was sent on another one during a cut some time after its end.
func back(t *testing.T, s *harness.Server, mayEnd bool) {
	t.Helper()
	n := rand.Int64N(1 << 40)
	config := s.RESTConfig(t)
	config.Dial = (&net.Dialer{}).DialContext // otherwise client-go shares connections
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 2*time.Minute, "the server to write again", func() error {
		select {
		case <-s.Exited():
			if !mayEnd {
				return harness.Permanent(errors.New("it has ended"))
			}
			s.Launch(t)
		default:
		}
		n++
		return writeTo(t.Context(), client.CoreV1().ConfigMaps(metav1.NamespaceDefault), fmt.Sprintf("back-%d", n))
	})
}
