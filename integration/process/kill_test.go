package process

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestKill9 kills the server at twelve random moments: while it starts and imports images, while it creates sandboxes,
// and in a rolling update. After each restart everything converges, running containers do not notice, nothing is lost.
func TestKill9(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{})
	ns := s.Namespace(t)
	untouched := map[string]process{}
	for i := range 3 {
		pod := harness.Pod(ns, fmt.Sprintf("old-%d", i), "/bin/probe", "sleep")
		pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
		untouched[pod.Name] = processOf(t, s, s.Run(t, pod))
	}
	s.Deploy(t, harness.Pod(ns, "rolling", "/bin/probe", "sleep"), 2)
	harness.Eventually(t, harness.PodTimeout, "the Deployment", func() error { return rolledOut(s, t, ns, "rolling") })

	images := []string{"docker.io/library/kill:0"}
	archive(t, s, images[0])
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	dice := rand.New(rand.NewPCG(seed, 0))
	moment := func(upTo time.Duration) { time.Sleep(time.Duration(dice.Int64N(int64(upTo)))) }

	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("mounts:\n%s", s.Exec(t, "cat", "/proc/mounts"))
		}
	})

	const kills = 12
	var kept []string
	for n := 0; n < kills; {
		kept = append(kept, fmt.Sprintf("kept-%d", n))
		keep(t, s, ns, kept[len(kept)-1])
		switch kind := n % 3; kind {
		case 0: // sandboxes are being made
			for i := range 2 {
				pod := harness.Pod(ns, fmt.Sprintf("burst-%d-%d", n, i), "/bin/probe", "sleep")
				pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
				pod.Labels["burst"] = "yes"
				s.Create(t, pod)
			}
			moment(1200 * time.Millisecond)
		case 1: // pods are being replaced
			s.Kubectl(t, "-n", ns, "set", "env", "deployment/rolling", fmt.Sprintf("ROUND=%d", n))
			moment(2500 * time.Millisecond)
		case 2: // an image comes with the next start, and leftovers of the rounds before are deleted now
			images = append(images, fmt.Sprintf("docker.io/library/kill:%d", n))
			archive(t, s, images[len(images)-1])
			s.Kubectl(t, "-n", ns, "delete", "pods", "-l", "burst=yes", "--wait=false")
			moment(800 * time.Millisecond)
		}
		s.Kill9(t)
		n++
		for n < kills && dice.IntN(2) == 0 { // again while it starts
			s.Launch(t)
			moment(3 * time.Second)
			if err := alive(s); err != nil {
				t.Fatal(err)
			}
			s.Kill9(t)
			n++
		}
		s.Launch(t)
		s.WaitReady(t)
		for name, p := range untouched {
			p.same(t, fmt.Sprintf("after %d kills, %s", n, name))
		}
		harness.Eventually(t, 60*time.Second, fmt.Sprintf("everything to converge after %d kills", n), func() error {
			if err := alive(s); err != nil {
				return err
			}
			if err := rolledOut(s, t, ns, "rolling"); err != nil {
				return err
			}
			return agree(t.Context(), t, s)
		})
		if t.Failed() {
			t.FailNow()
		}
	}
	for name, p := range untouched {
		pod := s.WaitRunning(t, harness.Pod(ns, name))
		if st := harness.Status(pod, "main"); st.RestartCount != 0 || processOf(t, s, pod) != p {
			t.Errorf("pod %s has been restarted", name)
		}
	}
	for _, name := range kept {
		if _, err := s.Client(t).CoreV1().ConfigMaps(ns).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("ConfigMap %s: %v", name, err)
		}
	}
	harness.Eventually(t, 60*time.Second, "all images", func() error {
		list := s.Exec(t, s.BinaryPath(), "ctr", "images", "list", "--quiet")
		for _, image := range images {
			if !strings.Contains(list, image+"\n") {
				return fmt.Errorf("%s is missing", image)
			}
		}
		return nil
	})
}

// archive puts an image of 24 MB that cannot be compressed where it is imported at the next start.
func archive(t *testing.T, s *harness.Server, ref string) {
	t.Helper()
	dir := s.Path(harness.DataDir + "/agent/images")
	temp := dir + "/.new"
	randomArchive(t, temp, ref, 8<<20, 3)
	_, tag, _ := strings.Cut(ref, ":")
	if err := os.Rename(temp, fmt.Sprintf("%s/%s.tar", dir, tag)); err != nil {
		t.Fatal(err)
	}
}

// keep creates an object that must survive.
func keep(t *testing.T, s *harness.Server, ns, name string) {
	t.Helper()
	_, err := s.Client(t).CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}
