package nodes

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// template of web pods.
func template(app string) corev1.PodTemplateSpec {
	pod := web("", "", app)
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec}
}

func selector(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

// daemonSet creates a DaemonSet of web pods and waits until it is complete.
func daemonSet(t *testing.T, c *harness.Cluster, ns, app string) {
	t.Helper()
	api := c.Server.Client(t).AppsV1().DaemonSets(ns)
	_, err := api.Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec:       appsv1.DaemonSetSpec{Selector: selector(app), Template: template(app)},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.PodTimeout, "DaemonSet "+app, func() error {
		ds, err := api.Get(context.Background(), app, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if want := len(c.Nodes()); int(ds.Status.NumberAvailable) != want || int(ds.Status.DesiredNumberScheduled) != want {
			return fmt.Errorf("%d of %d pods are available, on %d nodes", ds.Status.NumberAvailable, ds.Status.DesiredNumberScheduled, want)
		}
		return nil
	})
}

// deployment creates a Deployment of web pods, spread over the nodes where that is possible, that give up a node which
// is gone after five seconds. It waits until it is complete.
func deployment(t *testing.T, c *harness.Cluster, ns, app string, replicas int32) {
	t.Helper()
	tmpl := template(app)
	tmpl.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: selector(app),
	}}
	seconds := int64(5)
	for _, key := range []string{corev1.TaintNodeUnreachable, corev1.TaintNodeNotReady} {
		tmpl.Spec.Tolerations = append(tmpl.Spec.Tolerations, corev1.Toleration{
			Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds,
		})
	}
	_, err := c.Server.Client(t).AppsV1().Deployments(ns).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: selector(app), Template: tmpl},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	readyPods(t, c, ns, app, int(replicas), nil)
}

// podsOf lists the pods with the label app=APP that are not being deleted.
func podsOf(t *testing.T, c *harness.Cluster, ns, app string) []*corev1.Pod {
	t.Helper()
	list, err := c.Server.Client(t).CoreV1().Pods(ns).List(context.Background(), metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		t.Fatal(err)
	}
	var pods []*corev1.Pod
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp == nil {
			pods = append(pods, &list.Items[i])
		}
	}
	return pods
}

// readyPods waits until there are so many ready pods and no others, none of them on a node that they are to avoid.
func readyPods(t *testing.T, c *harness.Cluster, ns, app string, count int, avoid *harness.Server) []*corev1.Pod {
	t.Helper()
	var pods []*corev1.Pod
	harness.Eventually(t, harness.PodTimeout, fmt.Sprintf("%d pods of %s", count, app), func() error {
		pods = podsOf(t, c, ns, app)
		var errs []error
		for _, p := range pods {
			if avoid != nil && p.Spec.NodeName == avoid.NodeName() {
				errs = append(errs, fmt.Errorf("pod %s is on %s", p.Name, p.Spec.NodeName))
			} else if harness.PodReady(p) != nil {
				errs = append(errs, fmt.Errorf("pod %s on %q is not ready", p.Name, p.Spec.NodeName))
			}
		}
		if len(pods) != count {
			errs = append(errs, fmt.Errorf("there are %d pods", len(pods)))
		}
		return errors.Join(errs...)
	})
	return pods
}

// gone waits until a pod's object no longer exists.
func gone(t *testing.T, c *harness.Cluster, pod *corev1.Pod) {
	t.Helper()
	harness.Eventually(t, 60*time.Second, "pod "+pod.Name+" to be gone", func() error {
		now, err := c.Server.Client(t).CoreV1().Pods(pod.Namespace).Get(context.Background(), pod.Name, metav1.GetOptions{})
		if err == nil && now.UID == pod.UID {
			return fmt.Errorf("it is there, deleted at %v", now.DeletionTimestamp)
		}
		return nil
	})
}

// noPods waits until the pods of earlier tests are gone.
func noPods(t *testing.T, c *harness.Cluster) {
	t.Helper()
	harness.Eventually(t, 60*time.Second, "earlier pods to be gone", func() error {
		list, err := c.Server.Client(t).CoreV1().Pods(metav1.NamespaceAll).List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if n := len(list.Items); n > 0 {
			return fmt.Errorf("there are %d, for example %s/%s on %s", n, list.Items[0].Namespace, list.Items[0].Name, list.Items[0].Spec.NodeName)
		}
		return nil
	})
}
