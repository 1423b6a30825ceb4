package restart

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestLostLease: when another server leads, what a cluster has once stops here, and nothing else; it starts again when nobody leads.
func TestLostLease(t *testing.T) {
	t.Parallel()
	o := options
	o.Disable, o.NoTestImage, o.NoWait = []string{"kubelet", "containerd", "proxy", "dns"}, true, true
	s := harness.Start(t, o)
	harness.Eventually(t, 60*time.Second, "the API to answer", func() error {
		if res := s.TryExec(t, s.BinaryPath(), "kubectl", "get", "--raw", "/readyz"); res.Code != 0 {
			return errors.New(res.Stderr)
		}
		return nil
	})
	leases := s.Client(t).CoordinationV1().Leases(metav1.NamespaceSystem)
	var own string
	harness.Eventually(t, 60*time.Second, "a server to lead", func() error {
		lease, err := leases.Get(t.Context(), "kubelith", metav1.GetOptions{})
		if err == nil {
			own = *lease.Spec.HolderIdentity
		}
		return err
	})
	deploy(t, s, "before")
	harness.Eventually(t, 60*time.Second, "a ReplicaSet", func() error { return replicaSet(t, s, "before") })

	take := func(ctx context.Context) error {
		lease, err := leases.Get(ctx, "kubelith", metav1.GetOptions{})
		if err != nil {
			return err
		}
		other, now := "other", metav1.NowMicro()
		lease.Spec.HolderIdentity, lease.Spec.RenewTime = &other, &now
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		return err
	}
	harness.Eventually(t, 20*time.Second, "another server to take the Lease", func() error { return take(t.Context()) })
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_ = take(ctx) // a conflict is made up for by the next
			select {
			case <-ctx.Done():
			case <-time.After(2 * time.Second):
			}
		}
	}()
	harness.Eventually(t, 90*time.Second, "the server to say that its term is over", func() error {
		if !strings.Contains(s.Logs(), "what a cluster has once stops on this server") {
			return errors.New("it does not")
		}
		return nil
	})
	time.Sleep(time.Second) // what was under way
	deploy(t, s, "meanwhile")
	for range 20 {
		if replicaSet(t, s, "meanwhile") == nil {
			t.Fatal("a controller acts while another server leads")
		}
		time.Sleep(100 * time.Millisecond)
	}
	select {
	case <-s.Exited():
		t.Fatal("the process ended with the term")
	default:
	}

	stop()
	<-ended
	harness.Eventually(t, 120*time.Second, "the server to lead again", func() error {
		lease, err := leases.Get(t.Context(), "kubelith", metav1.GetOptions{})
		if err == nil && *lease.Spec.HolderIdentity != own {
			err = fmt.Errorf("%s does", *lease.Spec.HolderIdentity)
		}
		return err
	})
	harness.Eventually(t, 60*time.Second, "a ReplicaSet in the next term", func() error { return replicaSet(t, s, "meanwhile") })
}

// deploy makes a Deployment in the namespace default.
func deploy(t *testing.T, s *harness.Server, name string) {
	t.Helper()
	pod := harness.Pod(metav1.NamespaceDefault, name, "sleep", "1000")
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	pod.Labels = map[string]string{"app": name}
	_, err := s.Client(t).AppsV1().Deployments(metav1.NamespaceDefault).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: pod.Labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// replicaSet returns an error while the Deployment has none.
func replicaSet(t *testing.T, s *harness.Server, deployment string) error {
	t.Helper()
	all, err := s.Client(t).AppsV1().ReplicaSets(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + deployment})
	if err == nil && len(all.Items) == 0 {
		err = errors.New("there is none")
	}
	return err
}
