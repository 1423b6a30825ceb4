package driver

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"kubelith.io/kubelith/plugins/examples/fuse/client"
	"kubelith.io/kubelith/plugins/examples/fuse/store"
)

// TestPods: a client pod comes with the first use of a volume on a node, is created again when it ends or its image
// changes, and goes after the last use; all that also with a plugin that has just started.
func TestPods(t *testing.T) {
	api := fake.NewClientset()
	p := newPods(api, Config{Image: "old", Namespace: "ns", Clients: "/clients"}, hclog.NewNullLogger())
	ctx := t.Context()
	step := func() {
		t.Helper()
		if err := p.reconcile(ctx); err != nil {
			t.Fatal(err)
		}
	}
	pods := func() []corev1.Pod {
		t.Helper()
		list, err := api.CoreV1().Pods("ns").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return list.Items
	}
	setPhase := func(phase corev1.PodPhase, waits ...corev1.ContainerStatus) {
		t.Helper()
		pod := pods()[0]
		pod.Status = corev1.PodStatus{Phase: phase, ContainerStatuses: waits}
		if _, err := api.CoreV1().Pods("ns").UpdateStatus(ctx, &pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return p.want(ctx, "pvc-1", "node-a", client.Config{Store: store.Config{Endpoint: "https://s", Bucket: "b"}, Capacity: 1})
	}

	if err := want(time.Millisecond); err == nil || !strings.Contains(err.Error(), "does not run: it is ") {
		t.Errorf("a pod that does not run: %v", err)
	}
	setPhase(corev1.PodPending, corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "not found"}}})
	if err := want(time.Millisecond); err == nil || !strings.Contains(err.Error(), "ErrImagePull: not found") {
		t.Errorf("an image that is missing: %v", err)
	}
	setPhase(corev1.PodRunning)
	if err := want(time.Second); err != nil {
		t.Fatal(err)
	}
	if got := pods(); len(got) != 1 || got[0].Spec.NodeName != "node-a" || got[0].Spec.Volumes[0].HostPath.Path != "/clients/pvc-1" {
		t.Fatalf("pods %+v", got)
	}
	if err := p.resize(ctx, "pvc-1", 7); err != nil {
		t.Error(err)
	}
	if s, err := api.CoreV1().Secrets("ns").Get(ctx, podName("pvc-1", "node-a"), metav1.GetOptions{}); err != nil || !strings.Contains(string(s.Data[configFile]), `"capacity":7`) {
		t.Errorf("the Secret has %s, %v", s.Data, err)
	}

	setPhase(corev1.PodFailed)
	step()
	if len(pods()) != 0 {
		t.Error("a pod that has failed stays")
	}
	step()
	p = newPods(api, Config{Image: "new", Namespace: "ns", Clients: "/clients"}, hclog.NewNullLogger())
	step()
	step()
	if got := pods(); len(got) != 1 || got[0].Spec.Containers[0].Image != "new" {
		t.Errorf("pods %+v after the image has changed", got)
	}

	if err := p.unwant(ctx, "pvc-1", "node-b"); err != nil {
		t.Error(err)
	}
	if err := p.unwant(ctx, "pvc-1", "node-a"); err != nil {
		t.Error(err)
	}
	step()
	if len(pods()) != 1 {
		t.Error("the pod is removed at once")
	}
	setPhase(corev1.PodRunning)
	if err := want(time.Second); err != nil { // it is used again
		t.Fatal(err)
	}
	p.unusedFor = 0
	step()
	if len(pods()) != 1 {
		t.Error("a pod that is used again is removed")
	}
	if err := p.unwant(ctx, "pvc-1", ""); err != nil {
		t.Error(err)
	}
	step()
	step()
	secrets, err := api.CoreV1().Secrets("ns").List(ctx, metav1.ListOptions{})
	if err != nil || len(pods()) != 0 || len(secrets.Items) != 0 {
		t.Errorf("%d pods and %d Secrets are left, %v", len(pods()), len(secrets.Items), err)
	}
}

func TestOptions(t *testing.T) {
	o, err := optionsOf([]string{"ro", "noexec", "uid=5", "gid=6", "umask=022"})
	if err != nil || o.UID != 5 || o.GID != 6 || o.Umask != 0o22 || o.flags == 0 {
		t.Errorf("%+v, %v", o, err)
	}
	for _, bad := range []string{"uid", "uid=x", "umask=9", "sync", ""} {
		if _, err := optionsOf([]string{bad}); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	if idOf("pvc-1") != "pvc-1" || idOf("A/b") == "A/b" || !idPattern.MatchString(idOf(strings.Repeat("ü", 100))) {
		t.Error("ids")
	}
}
