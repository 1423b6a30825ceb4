package storagetest

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
)

// Eventually waits until f returns true.
func Eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("did not happen: %s", what)
		}
	}
}

// API is one in memory, with a log for its users.
type API struct {
	*fake.Clientset
	Log   *logrus.Logger
	lines *logtest.Hook

	mu      sync.Mutex
	watched map[string]bool // by resource
}

// NewAPI has these objects and the Node n1.
func NewAPI(objects ...runtime.Object) *API {
	log, lines := logtest.NewNullLogger()
	a := &API{Clientset: fake.NewClientset(append(objects, Node("first"))...), Log: log, lines: lines, watched: map[string]bool{}}
	a.PrependWatchReactor("*", a.watch)
	return a
}

// Node is the Node n1 that a kubelet has registered.
func Node(uid types.UID) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: uid}}
}

// watch notes that a watch has begun: what happens between a list and a watch is lost in a fake API.
func (a *API) watch(action ktesting.Action) (bool, watch.Interface, error) {
	w, err := a.Tracker().Watch(action.GetResource(), action.GetNamespace())
	a.mu.Lock()
	defer a.mu.Unlock()
	a.watched[action.GetResource().Resource] = true
	return true, w, err
}

// Ready waits until controllers see what changes.
func (a *API) Ready(t *testing.T) {
	t.Helper()
	Eventually(t, "claims, volumes and classes are watched", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.watched["persistentvolumeclaims"] && a.watched["persistentvolumes"] && a.watched["storageclasses"]
	})
}

// Said reports whether the log has a line with the text.
func (a *API) Said(text string) bool {
	return slices.ContainsFunc(a.lines.AllEntries(), func(e *logrus.Entry) bool { return strings.Contains(e.Message, text) })
}

// Volume returns the PersistentVolume of a claim, if there is one.
func (a *API) Volume(t *testing.T, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, bool) {
	t.Helper()
	v, err := a.CoreV1().PersistentVolumes().Get(t.Context(), "pvc-"+string(claim.UID), metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return v, err == nil
}

// Claim creates a claim for 1 GiB as upstream's controllers leave it for a provisioner. No node was selected if the
// name is empty.
func (a *API) Claim(t *testing.T, name, class, selectedNode string) *corev1.PersistentVolumeClaim {
	t.Helper()
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-of-" + name),
			Annotations: map[string]string{"volume.kubernetes.io/storage-provisioner": DriverName}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
			Resources:  corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	if selectedNode != "" {
		c.Annotations["volume.kubernetes.io/selected-node"] = selectedNode
	}
	made, err := a.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), c, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}
