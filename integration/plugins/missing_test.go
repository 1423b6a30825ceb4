package plugins

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestMissingAtStart: a server starts, and its node is alive, though the executable of a plugin that may not fail is
// missing: at the first start one that has never run, at the second one that has reviewed every request.
func TestMissingAtStart(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{NoTestImage: true, NoWait: true, ConfigYAML: pluginsHeader + example("short-secrets"),
		Prepare: func(s *harness.Server) error { return os.MkdirAll(s.Path(examplesDir), 0o755) }}) // a directory that is there is watched
	t.Run("never ran", func(t *testing.T) { testNeverRan(t, s) })
	t.Run("reviewed everything", func(t *testing.T) { testReviewedEverything(t, s) })
}

// testNeverRan: the plugin keeps requests back, but neither the server's start nor kube-system nor the node; it reviews
// as soon as it is there.
func testNeverRan(t *testing.T, s *harness.Server) {
	harness.Eventually(t, 60*time.Second, "the node to be Ready", func() error { return nodeReadySince(t, s, time.Time{}) })
	configMap := func(ns string) error {
		_, err := s.Client(t).CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}}, metav1.CreateOptions{})
		return err
	}
	if err := configMap(metav1.NamespaceSystem); err != nil {
		t.Errorf("in kube-system: %v", err)
	}
	if err := configMap(metav1.NamespaceDefault); err == nil || !strings.Contains(err.Error(), "plugin short-secrets is not running") {
		t.Errorf("while nothing is known of the plugin: %v", err)
	}
	if _, err := s.Client(t).CoreV1().Events(metav1.NamespaceDefault).Create(t.Context(), &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}, InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "a", Namespace: metav1.NamespaceDefault},
	}, metav1.CreateOptions{}); err != nil {
		t.Errorf("an Event, which would report it: %v", err)
	}
	putExample(t, s, examplesDir, "short-secrets")
	harness.Eventually(t, 60*time.Second, "the plugin to review", func() error {
		if err := configMap(metav1.NamespaceDefault); err != nil {
			return fmt.Errorf("a ConfigMap, which it does not review: %w", err)
		}
		return shortSecretDenied(t, s)
	})
}

// testReviewedEverything: all requests are held back, as with a webhook, but those that keep the node alive.
func testReviewedEverything(t *testing.T, s *harness.Server) {
	path := examplesDir + "/everything"
	install(t, s, harness.BuildProgram(t, "./everything"), path)
	configure(t, s, "plugins:\n"+example("everything"))
	wait(t, s, "everything", "is ready", ready)
	create := func() harness.Result {
		return s.TryKubectl(t, "-n", "kube-public", "create", "configmap", "a", "--dry-run=server")
	}
	harness.Eventually(t, soon, "it to review", func() error {
		if r := create(); r.Code != 0 || !strings.Contains(r.Stderr, "everything was here") {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	s.Stop(t)
	if err := os.Remove(s.Path(path)); err != nil {
		t.Fatal(err)
	}
	s.Launch(t)
	began := time.Now()
	harness.Eventually(t, 90*time.Second, "the node to be Ready, with a heartbeat of the new server", func() error { return nodeReadySince(t, s, began) })
	if r := create(); r.Code == 0 || !strings.Contains(r.Stderr, "plugin everything is not running") {
		t.Errorf("without the plugin: %+v", r)
	}
}

// nodeReadySince returns nil when the node is Ready, with a heartbeat after this time.
func nodeReadySince(t *testing.T, s *harness.Server, began time.Time) error {
	t.Helper()
	if _, err := os.Stat(s.Path(harness.AdminKubeconfig)); err != nil {
		return err // the server has just begun to start
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience(5*time.Second))
	defer cancel()
	nodes, err := s.Client(t).CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(nodes.Items) != 1 {
		return errors.New("there is no node, or more than one")
	}
	for _, c := range nodes.Items[0].Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && c.LastHeartbeatTime.After(began) {
			return nil
		}
	}
	return fmt.Errorf("conditions %+v", nodes.Items[0].Status.Conditions)
}
