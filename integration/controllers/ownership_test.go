package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubelith.io/kubelith/integration/harness"
)

func createReplicaSet(t testing.TB, s *harness.Server, ns, name string, replicas int32) *appsv1.ReplicaSet {
	t.Helper()
	rs, err := s.Client(t).AppsV1().ReplicaSets(ns).Create(t.Context(), &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: selector(name), Template: template(name, "1")},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

func uids(list []corev1.Pod) []types.UID {
	var out []types.UID
	for _, p := range list {
		out = append(out, p.UID)
	}
	slices.Sort(out)
	return out
}

// TestReplicaSetAdoption: a matching pod without an owner is taken over, one whose labels no longer match is released.
func TestReplicaSetAdoption(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	bare := harness.Pod(ns, "bare", "/bin/probe", "sleep")
	bare.Labels = map[string]string{"app": "rs"}
	bare.Spec.RestartPolicy = corev1.RestartPolicyAlways
	bare = s.Run(t, bare)
	rs := createReplicaSet(t, s, ns, "rs", 2)
	list := waitPods(t, s, ns, "rs", 2)
	if !slices.Contains(uids(list), bare.UID) {
		t.Fatal("the bare pod is not among the two pods")
	}
	harness.Eventually(t, 10*time.Second, "every pod to be owned by the ReplicaSet", func() error {
		for _, p := range pods(t, s, ns, "rs") {
			if owner := metav1.GetControllerOf(&p); owner == nil || owner.UID != rs.UID {
				return fmt.Errorf("%s is owned by %v", p.Name, owner)
			}
		}
		return nil
	})

	s.Kubectl(t, "-n", ns, "label", "pod", "bare", "app=other", "--overwrite")
	waitPods(t, s, ns, "rs", 2) // a replacement was made
	s.WaitPod(t, bare, "to be released", func(p *corev1.Pod) error {
		if owner := metav1.GetControllerOf(p); owner != nil {
			return fmt.Errorf("it is owned by %s", owner.Name)
		}
		return harness.PodReady(p)
	})
}

// TestReplicaSetOrphans: deleted with --cascade=orphan its pods go on, and a new ReplicaSet adopts them unchanged.
func TestReplicaSetOrphans(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	createReplicaSet(t, s, ns, "rs", 2)
	before := waitPods(t, s, ns, "rs", 2)
	pid := s.ContainerPID(t, &before[0], "main")
	s.Kubectl(t, "-n", ns, "delete", "replicaset", "rs", "--cascade=orphan")
	harness.Eventually(t, 30*time.Second, "the pods to be without owner", func() error {
		for _, p := range pods(t, s, ns, "rs") {
			if len(p.OwnerReferences) > 0 {
				return fmt.Errorf("%s has %v", p.Name, p.OwnerReferences)
			}
		}
		return nil
	})
	again := createReplicaSet(t, s, ns, "rs", 2)
	harness.Eventually(t, 30*time.Second, "the new ReplicaSet to adopt", func() error {
		for _, p := range pods(t, s, ns, "rs") {
			if owner := metav1.GetControllerOf(&p); owner == nil || owner.UID != again.UID {
				return fmt.Errorf("%s is owned by %v", p.Name, owner)
			}
		}
		return nil
	})
	if after := waitPods(t, s, ns, "rs", 2); !slices.Equal(uids(before), uids(after)) || !harness.Alive(pid) {
		t.Errorf("the pods were replaced: %v, then %v", uids(before), uids(after))
	}
}

// TestCascade deletes a Deployment in the three ways. Its pod takes 3 s to end.
func TestCascade(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"background", "foreground", "orphan"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			s := cluster.Get(t)
			ns := s.Namespace(t)
			client := s.Client(t)
			slow := template("web", "1")
			slow.Spec.Containers[0].Command = []string{"/bin/probe", "sleep", "--on-term=3s"}
			slow.Spec.TerminationGracePeriodSeconds = ptr(int64(20))
			_, err := client.AppsV1().Deployments(ns).Create(t.Context(), &appsv1.Deployment{
				ObjectMeta: metav1.ObjectMeta{Name: "web"},
				Spec:       appsv1.DeploymentSpec{Selector: selector("web"), Template: slow},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			pod := waitPods(t, s, ns, "web", 1)[0]
			pid := s.ContainerPID(t, &pod, "main")
			s.Kubectl(t, "-n", ns, "delete", "deployment", "web", "--cascade="+policy, "--wait=false")
			gone := func() bool {
				_, err := client.AppsV1().Deployments(ns).Get(context.Background(), "web", metav1.GetOptions{})
				return apierrors.IsNotFound(err)
			}
			switch policy {
			case "background":
				harness.Eventually(t, 10*time.Second, "the Deployment to be gone first", func() error {
					if !gone() {
						return errors.New("it is there")
					}
					return nil
				})
				if !harness.Alive(pid) {
					t.Error("the process ended before its owner was gone")
				}
				expectNoPods(t, s, ns, pid)
			case "foreground":
				harness.Eventually(t, 30*time.Second, "the pod to be deleted, the owner waiting for it", func() error {
					p := pods(t, s, ns, "web")
					if len(p) == 1 && p[0].DeletionTimestamp == nil {
						return errors.New("the pod is not being deleted")
					}
					if len(p) > 0 && gone() {
						// Look again: the pod may have gone between the two requests.
						if len(pods(t, s, ns, "web")) > 0 {
							return harness.Permanent(errors.New("the Deployment was gone before its pod"))
						}
					}
					if len(p) > 0 || !gone() {
						return errors.New("not finished")
					}
					return nil
				})
				expectNoPods(t, s, ns, pid)
			case "orphan":
				harness.Eventually(t, 30*time.Second, "the ReplicaSet to be orphaned", func() error {
					sets, err := client.AppsV1().ReplicaSets(ns).List(context.Background(), metav1.ListOptions{})
					if err != nil {
						return err
					}
					if !gone() || len(sets.Items) != 1 || len(sets.Items[0].OwnerReferences) > 0 {
						return fmt.Errorf("Deployment gone=%t, %d ReplicaSets", gone(), len(sets.Items))
					}
					return nil
				})
				if now := waitPods(t, s, ns, "web", 1); now[0].UID != pod.UID || !harness.Alive(pid) {
					t.Error("the pod did not survive")
				}
			}
		})
	}
}

func expectNoPods(t testing.TB, s *harness.Server, ns string, pid int) {
	t.Helper()
	harness.Eventually(t, 30*time.Second, "the pod to be gone", func() error {
		if n := len(pods(t, s, ns, "web")); n > 0 {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})
	if harness.Alive(pid) {
		t.Errorf("the pod is gone, its process %d is not", pid)
	}
}
