package plugins

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"kubelith.io/kubelith/bench/results"
	"kubelith.io/kubelith/integration/harness"
)

// claims of one round, and as many pods.
const claims = 50

// TestStorage measures how long it takes from a claim to a running pod that has it mounted, 50 of them at once, and
// the same pods with an emptyDir, which is what starting them takes anyway. Samples go to the file BENCH_RESULTS.
func TestStorage(t *testing.T) {
	store, rounds := results.OpenRun(t, "bench-plugins")
	if store.Rounds("storage", results.EmptyDirs) >= rounds {
		t.Skip("done in an earlier run")
	}
	s := harness.Start(t, harness.Options{})
	harness.Eventually(t, time.Minute, "the default class", func() error {
		_, err := s.Client(t).StorageV1().StorageClasses().Get(t.Context(), "local", metav1.GetOptions{})
		return err
	})
	storageRound(t, s, true) // caches
	for round := 1; round <= rounds; round++ {
		for _, with := range []string{results.Claims, results.EmptyDirs} {
			if store.Done("storage", round, with) {
				continue
			}
			samples := storageRound(t, s, with == results.Claims).samples()
			for _, x := range samples {
				t.Logf("round %d, %s, %s: %.2f", round, with, x.Figure, x.Value)
			}
			if err := store.Add("storage", round, with, samples...); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// times of one round, each from the creation of the claim or, without one, of the pod.
type times struct{ bound, running []time.Duration }

func (r times) samples() []results.Sample {
	all := []results.Sample{
		{Figure: results.MountedMedian, Value: quantile(r.running, 0.5).Seconds()},
		{Figure: results.MountedLast, Value: quantile(r.running, 1).Seconds()},
	}
	if len(r.bound) > 0 {
		all = append(all, results.Sample{Figure: results.BoundMedian, Value: quantile(r.bound, 0.5).Seconds()},
			results.Sample{Figure: results.BoundLast, Value: quantile(r.bound, 1).Seconds()})
	}
	return all
}

func quantile(d []time.Duration, q float64) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[int(q*float64(len(d)-1))]
}

func storageRound(t *testing.T, s *harness.Server, withClaims bool) times {
	t.Helper()
	ns := s.Namespace(t)
	client := s.Client(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	pods, err := client.CoreV1().Pods(ns).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer pods.Stop()
	volumes, err := client.CoreV1().PersistentVolumeClaims(ns).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer volumes.Stop()
	created, failed := map[string]time.Time{}, make(chan error, 1)
	for i := range claims {
		created[fmt.Sprint("p", i)] = time.Time{}
	}
	start := time.Now()
	go func() {
		for i := range claims {
			name := fmt.Sprint("p", i)
			if withClaims {
				if _, err := client.CoreV1().PersistentVolumeClaims(ns).Create(ctx, newClaim(name), metav1.CreateOptions{}); err != nil {
					failed <- err
					return
				}
			}
			if _, err := client.CoreV1().Pods(ns).Create(ctx, newPodWith(ns, name, withClaims), metav1.CreateOptions{}); err != nil {
				failed <- err
				return
			}
		}
	}()
	var r times
	bound, running := map[string]bool{}, map[string]bool{}
	for len(running) < claims || withClaims && len(bound) < claims {
		select {
		case err := <-failed:
			t.Fatal(err)
		case <-ctx.Done():
			t.Fatalf("%d claims bound and %d pods running after %s", len(bound), len(running), time.Since(start))
		case e := <-volumes.ResultChan():
			c, ok := e.Object.(*corev1.PersistentVolumeClaim)
			if !ok {
				t.Fatalf("watch of claims: %v", e)
			}
			if e.Type == watch.Added {
				created[c.Name] = time.Now()
			}
			if c.Status.Phase == corev1.ClaimBound && !bound[c.Name] {
				bound[c.Name] = true
				r.bound = append(r.bound, time.Since(created[c.Name]))
			}
		case e := <-pods.ResultChan():
			p, ok := e.Object.(*corev1.Pod)
			if !ok {
				t.Fatalf("watch of pods: %v", e)
			}
			if e.Type == watch.Added && created[p.Name].IsZero() {
				created[p.Name] = time.Now()
			}
			if p.Status.Phase == corev1.PodRunning && !running[p.Name] {
				running[p.Name] = true
				r.running = append(r.running, time.Since(created[p.Name]))
			}
		}
	}
	removePods(t, s, ns)
	return r
}

func newClaim(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
		},
	}
}

func newPodWith(ns, name string, claim bool) *corev1.Pod {
	pod := harness.Pod(ns, name, "/bin/probe", "sleep")
	source := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	if claim {
		source = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
	}
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: source}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	return pod
}

// removePods ends a round: the next one begins on an empty node.
func removePods(t *testing.T, s *harness.Server, ns string) {
	t.Helper()
	s.Kubectl(t, "-n", ns, "delete", "pods,pvc", "--all", "--wait=true")
	harness.Eventually(t, time.Minute, "the volumes to be gone", func() error {
		list, err := s.Client(t).CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d are there", len(list.Items))
		}
		return err
	})
}
