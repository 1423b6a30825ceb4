package cluster_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/cluster"
)

// TestControllers shows what a test has without a node, and without root: controllers that create ReplicaSets and pods,
// and the garbage collector, which deletes them with their owner.
func TestControllers(t *testing.T) {
	t.Parallel()
	needsKubelith(t)
	c := cluster.Start(t, cluster.Options{})
	client := kubernetes.NewForConfigOrDie(c.Config())
	create(t, client, deployment("hello", 2))

	eventually(t, "two pods", func(ctx context.Context) (bool, error) {
		pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=hello"})
		return err == nil && len(pods.Items) == 2, err
	})
	if err := client.AppsV1().Deployments("default").Delete(t.Context(), "hello", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no ReplicaSet and no pod", func(ctx context.Context) (bool, error) {
		sets, err := client.AppsV1().ReplicaSets("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		return err == nil && len(sets.Items)+len(pods.Items) == 0, err
	})
}

// TestPods shows what a node adds: pods run. The image comes with kubelith; others are pulled, or imported with
// Options.Images.
func TestPods(t *testing.T) {
	t.Parallel()
	needsKubelith(t)
	if os.Geteuid() != 0 {
		t.Skip("a node needs root")
	}
	c := cluster.Start(t, cluster.Options{Node: true})
	client := kubernetes.NewForConfigOrDie(c.Config())
	create(t, client, deployment("hello", 1))
	eventually(t, "a pod that is ready", func(ctx context.Context) (bool, error) {
		d, err := client.AppsV1().Deployments("default").Get(ctx, "hello", metav1.GetOptions{})
		return err == nil && d.Status.ReadyReplicas == 1, err
	})
}

func deployment(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "kubelith/hello:1"}}},
			},
		},
	}
}

func create(t *testing.T, client kubernetes.Interface, d *appsv1.Deployment) {
	t.Helper()
	if _, err := client.AppsV1().Deployments("default").Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, check func(context.Context) (bool, error)) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, check); err != nil {
		t.Fatal(fmt.Errorf("waiting for %s: %w", what, err))
	}
}

// needsKubelith skips the test in Kubelith's own unit tests, which have no executable. Tests of your own do without it.
func needsKubelith(t *testing.T) {
	t.Helper()
	if os.Getenv("KUBELITH_BIN") == "" && os.Getenv("KUBELITH_REQUIRE_INTEGRATION") != "1" {
		t.Skip("KUBELITH_BIN is not set")
	}
}
