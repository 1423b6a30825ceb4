package process

import (
	"errors"
	"fmt"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestUnservedWebhook: webhooks that must answer every request, and that no server serves, do not keep a killed or a
// stopped server from starting: it notifies systemd that it is ready, pods run, and the webhooks can be deleted. Then
// the server writes what they refused.
func TestUnservedWebhook(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{Env: []string{"NOTIFY_SOCKET=/run/notify.sock"}})
	heard := listen(t, s)
	s.Launch(t)
	s.WaitReady(t)
	ns := s.Namespace(t)
	pod := harness.Pod(ns, "a", "/bin/probe", "sleep")
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	before := processOf(t, s, s.Run(t, pod))

	// Roles that the next start misses, and one that is not as it should be.
	roles := s.Client(t).RbacV1().ClusterRoles()
	const gone, changed = "system:kubelith:dns", "system:kubelith:servicelb"
	s.Kubectl(t, "delete", "clusterrole", gone, "system:kube-scheduler")
	s.Kubectl(t, "patch", "clusterrole", changed, "--type=json", `--patch=[{"op":"remove","path":"/rules/0"}]`)
	patched, err := roles.Get(t.Context(), changed, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"validating", "mutating"} {
		interceptAll(t, s, kind)
	}
	harness.Eventually(t, 10*time.Second, "the webhooks to refuse writes", func() error {
		_, err := s.Client(t).CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}}, metav1.CreateOptions{})
		if !apierrors.IsInternalError(err) {
			return fmt.Errorf("a write: %v", err)
		}
		return nil
	})

	for _, end := range []struct {
		name string
		stop func()
	}{{"stop", func() { s.Stop(t) }}, {"kill", func() { s.Kill9(t) }}} {
		end.stop()
		heard.forget()
		began := time.Now()
		s.Launch(t)
		select {
		case <-heard.isReady():
		case <-s.Exited():
			t.Fatalf("after the %s the server has ended", end.name)
		case <-time.After(harness.Patience(90 * time.Second)):
			t.Fatalf("after the %s no READY=1, only %q", end.name, heard.all())
		}
		t.Logf("after the %s ready in %s", end.name, time.Since(began).Round(100*time.Millisecond))
		before.same(t, "after the "+end.name)
	}
	s.Kubectl(t, "delete", "validatingwebhookconfiguration", "everything")
	s.Kubectl(t, "delete", "mutatingwebhookconfiguration", "everything")

	s.WaitReady(t)
	harness.Eventually(t, 90*time.Second, "what was refused to be written", func() error {
		if _, err := roles.Get(t.Context(), gone, metav1.GetOptions{}); err != nil {
			return err
		}
		if _, err := roles.Get(t.Context(), "system:kube-scheduler", metav1.GetOptions{}); err != nil {
			return err
		}
		role, err := roles.Get(t.Context(), changed, metav1.GetOptions{})
		if err == nil && len(role.Rules) == len(patched.Rules) {
			err = errors.New("the changed role is as it was changed")
		}
		return err
	})
	s.Run(t, harness.Pod(ns, "b", "/bin/probe", "sleep"))
}

// interceptAll adds a webhook for every request of every kind, which no server serves.
func interceptAll(t *testing.T, s *harness.Server, kind string) {
	t.Helper()
	everything := admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*/*"}},
	}
	service := admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "default", Name: "nobody"}}
	fail, none := admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone
	meta, name := metav1.ObjectMeta{Name: "everything"}, "everything.example.com"
	client := s.Client(t).AdmissionregistrationV1()
	var err error
	if kind == "validating" {
		_, err = client.ValidatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: meta,
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{Name: name, ClientConfig: service, Rules: []admissionregistrationv1.RuleWithOperations{everything},
				FailurePolicy: &fail, SideEffects: &none, AdmissionReviewVersions: []string{"v1"}}}}, metav1.CreateOptions{})
	} else {
		_, err = client.MutatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: meta,
			Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: name, ClientConfig: service, Rules: []admissionregistrationv1.RuleWithOperations{everything},
				FailurePolicy: &fail, SideEffects: &none, AdmissionReviewVersions: []string{"v1"}}}}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}
