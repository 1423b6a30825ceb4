package storage

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"kubelith.io/kubelith/components/lifecycle"
	"kubelith.io/kubelith/plugins/pluginstest"
)

const (
	create  = csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME
	expand  = csi.ControllerServiceCapability_RPC_EXPAND_VOLUME
	free    = csi.ControllerServiceCapability_RPC_GET_CAPACITY
	publish = csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME
)

// node is a node whose component runs, with a plugin.
type node struct {
	*fake.Clientset
	set    *pluginstest.Set
	plugin *pluginstest.Plugin
	root   string
	log    *logtest.Hook
	stop   func()

	mu      sync.Mutex
	watched map[string]bool // by resource
}

// run runs the component on the node n1 until the test ends: as on a server, with shared informers, or as on an agent.
func run(t *testing.T, central bool, plugin *pluginstest.Plugin, objects ...runtime.Object) *node {
	t.Helper()
	log, lines := logtest.NewNullLogger()
	if !central {
		objects = append(objects, declaredBy(t, plugin)...)
	}
	n := &node{Clientset: fake.NewClientset(append(objects, nodeObject("first"))...), set: pluginstest.NewSet(plugin), plugin: plugin, root: t.TempDir(), log: lines, watched: map[string]bool{}}
	n.PrependWatchReactor("*", n.watch)
	ctx, cancel := context.WithCancel(t.Context())
	shared := informers.NewSharedInformerFactory(n.Clientset, 0)
	h := &host{
		work:    &lifecycle.Watchdog{},
		Options: Options{Plugins: n.set, NodeName: "n1", KubeletRootDir: n.root, Central: central, Log: log},
		life:    ctx.Done(), client: n.Clientset, drivers: map[string]*driver{}, said: map[string]string{},
	}
	if central {
		h.Informers = func() informers.SharedInformerFactory { return shared }
	}
	h.events, h.stopEvents = newEvents(ctx, n.Clientset, "n1")
	ended := make(chan struct{})
	go func() { defer close(ended); h.run(ctx); h.wait() }()
	n.stop = func() { cancel(); <-ended; h.stopEvents() }
	t.Cleanup(n.stop)
	return n
}

// declaredBy are the objects that a server has made of what the plugin declares.
func declaredBy(t *testing.T, plugin *pluginstest.Plugin) (objects []runtime.Object) {
	t.Helper()
	declared, err := declarationOf(plugin.Description())
	if err != nil {
		return nil // the test is about that
	}
	driver := declared.driver.DeepCopy()
	if declared.nodeLocal {
		metav1.SetMetaDataAnnotation(&driver.ObjectMeta, nodeLocalKey, topologyKey)
	}
	for _, class := range declared.classes {
		objects = append(objects, class)
	}
	return append(objects, driver)
}

// nodeObject is the Node n1 that a kubelet has registered.
func nodeObject(uid types.UID) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: uid}}
}

// watch notes that a watch has begun: what happens between a list and a watch is lost in a fake API.
func (n *node) watch(action ktesting.Action) (bool, watch.Interface, error) {
	w, err := n.Tracker().Watch(action.GetResource(), action.GetNamespace())
	n.mu.Lock()
	defer n.mu.Unlock()
	n.watched[action.GetResource().Resource] = true
	return true, w, err
}

// ready waits until the controllers see what changes.
func (n *node) ready(t *testing.T) {
	t.Helper()
	eventually(t, "claims, volumes and classes are watched", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.watched["persistentvolumeclaims"] && n.watched["persistentvolumes"] && n.watched["storageclasses"]
	})
}

// registered tells whether the kubelet would find the driver.
func (n *node) registered() bool {
	_, err := os.Stat(registrationSocket(n.root, driverName))
	return err == nil
}

// said tells whether the log has a line with the text.
func (n *node) said(text string) bool {
	return slices.ContainsFunc(n.log.AllEntries(), func(e *logrus.Entry) bool { return strings.Contains(e.Message, text) })
}

func (n *node) volume(t *testing.T, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, bool) {
	t.Helper()
	v, err := n.CoreV1().PersistentVolumes().Get(t.Context(), "pvc-"+string(claim.UID), metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return v, err == nil
}

// claim makes a claim as upstream's controllers leave it for a provisioner.
func (n *node) claim(t *testing.T, name, class, selectedNode string) *corev1.PersistentVolumeClaim {
	t.Helper()
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-of-" + name),
			Annotations: map[string]string{"volume.kubernetes.io/storage-provisioner": driverName}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
			Resources:  corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	if selectedNode != "" {
		c.Annotations["volume.kubernetes.io/selected-node"] = selectedNode
	}
	made, err := n.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), c, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// newPlugin is a plugin with a process that serves the driver.
func newPlugin(t *testing.T, d *fakeDriver, nodeLocal bool, classes ...*storagev1.StorageClass) *pluginstest.Plugin {
	t.Helper()
	p := described(t, "p", nodeLocal, classes...)
	p.Serve(t, d.register)
	return p
}

// TestNodeLocal: a volume is made, grown and deleted on the node that was chosen for it, and the scheduler is told of the space.
func TestNodeLocal(t *testing.T) {
	d := newFakeDriver("n1", create, expand, free)
	n := run(t, false, newPlugin(t, d, true, class("local", storagev1.VolumeBindingWaitForFirstConsumer)))
	eventually(t, "the kubelet can find it", n.registered)

	n.ready(t)
	elsewhere, here := n.claim(t, "elsewhere", "local", "n2"), n.claim(t, "here", "local", "n1")
	var volume *corev1.PersistentVolume
	eventually(t, "the volume is made", func() (ok bool) { volume, ok = n.volume(t, here); return ok })
	if d.size(volume.Name) != gib || volume.Spec.CSI.Driver != driverName || volume.Spec.CSI.VolumeHandle != volume.Name {
		t.Errorf("size %d, %+v", d.size(volume.Name), volume.Spec)
	}
	term := volume.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0]
	if term.Key != topologyKey || !slices.Equal(term.Values, []string{"n1"}) {
		t.Errorf("it is for %+v", volume.Spec.NodeAffinity.Required)
	}
	if parameters := d.made[0].GetParameters(); parameters["csi.storage.k8s.io/pvc/name"] != "here" {
		t.Errorf("the driver hears %v", parameters)
	}
	eventually(t, "the space that is left is told", func() bool {
		all, err := n.StorageV1().CSIStorageCapacities(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{})
		return err == nil && len(all.Items) == 1 && all.Items[0].Capacity.Value() == 99*gib && all.Items[0].StorageClassName == "local" &&
			all.Items[0].NodeTopology.MatchLabels[topologyKey] == "n1" && ownedBy(&all.Items[0], "first")
	})

	// What the API does when it is bound and somebody asks for more.
	foreign := volume.DeepCopy()
	foreign.Name, foreign.Spec.CSI.VolumeHandle = "of-n2", "of-n2"
	foreign.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values = []string{"n2"}
	if _, err := n.CoreV1().PersistentVolumes().Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for claim, volume := range map[*corev1.PersistentVolumeClaim]string{elsewhere: "of-n2", here: volume.Name} {
		bind(t, n, claim, volume)
	}
	eventually(t, "the volume has grown", func() bool { return d.size(volume.Name) == 2*gib })
	eventually(t, "the PersistentVolume says so", func() bool {
		v, _ := n.volume(t, here)
		return v.Spec.Capacity.Storage().Value() == 2*gib
	})

	deleted := func(v *corev1.PersistentVolume) {
		v = v.DeepCopy()
		v.Status.Phase = corev1.VolumeReleased
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
		if _, err := n.CoreV1().PersistentVolumes().Update(t.Context(), v, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	volume, _ = n.volume(t, here)
	deleted(foreign)
	deleted(volume)
	eventually(t, "the volume is deleted", func() bool { _, there := n.volume(t, here); return !there && d.size(volume.Name) == 0 })
	if _, there := n.volume(t, elsewhere); there || len(d.made) != 1 {
		t.Errorf("a volume of another node was made: %v", d.made)
	}
	if _, err := n.CoreV1().PersistentVolumes().Get(t.Context(), "of-n2", metav1.GetOptions{}); err != nil {
		t.Errorf("a volume of another node: %v", err)
	}
	eventsOf := func(reason string) bool {
		all, err := n.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(all.Items, func(e corev1.Event) bool { return e.Reason == reason })
	}
	eventually(t, "people can read of it", func() bool { return eventsOf("ProvisioningSucceeded") })
	if eventsOf("VolumeResizeFailed") {
		t.Error("somebody tried to resize a volume of another node")
	}
}

// bind makes a claim a bound one that asks for 2 GiB.
func bind(t *testing.T, n *node, claim *corev1.PersistentVolumeClaim, volume string) {
	t.Helper()
	v, err := n.CoreV1().PersistentVolumes().Get(t.Context(), volume, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	v.Status.Phase = corev1.VolumeBound
	_, errVolume := n.CoreV1().PersistentVolumes().Update(t.Context(), v, metav1.UpdateOptions{})
	claim = claim.DeepCopy()
	claim.Spec.VolumeName = volume
	claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: claim.Spec.Resources.Requests.DeepCopy()}
	_, errBound := n.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(t.Context(), claim, metav1.UpdateOptions{})
	claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
	_, errMore := n.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(t.Context(), claim, metav1.UpdateOptions{})
	if err := errors.Join(errVolume, errBound, errMore); err != nil {
		t.Fatal(err)
	}
}

// ownedBy tells whether the Node n1 with this UID is the one owner.
func ownedBy(c *storagev1.CSIStorageCapacity, uid types.UID) bool {
	return len(c.OwnerReferences) == 1 && c.OwnerReferences[0].APIVersion == "v1" && c.OwnerReferences[0].Kind == "Node" &&
		c.OwnerReferences[0].Name == "n1" && c.OwnerReferences[0].UID == uid
}

// TestCapacityOfNode: what the scheduler is told belongs to the Node, and to the next one when it was made again.
func TestCapacityOfNode(t *testing.T) {
	n := run(t, false, newPlugin(t, newFakeDriver("n1", create, free), true, class("local", storagev1.VolumeBindingWaitForFirstConsumer)))
	capacities := n.StorageV1().CSIStorageCapacities(metav1.NamespaceSystem)
	told := func(uid types.UID) func() bool {
		return func() bool {
			all, err := capacities.List(t.Context(), metav1.ListOptions{})
			return err == nil && len(all.Items) == 1 && ownedBy(&all.Items[0], uid)
		}
	}
	eventually(t, "the space is told as the Node's", told("first"))
	if err := n.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the driver hears of it", func() bool { return n.said("the driver " + driverName + " or its Node has changed") })
	all, err := capacities.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all.Items { // the garbage collector's part
		if err := capacities.Delete(t.Context(), c.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.CoreV1().Nodes().Create(t.Context(), nodeObject("second"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the space is told as the next Node's", told("second"))
}

// TestImmediate: a node takes a claim for which nobody chose a node.
func TestImmediate(t *testing.T) {
	n := run(t, false, newPlugin(t, newFakeDriver("n1", create, free), true, class("now", storagev1.VolumeBindingImmediate)))
	n.ready(t)
	claim := n.claim(t, "any", "now", "")
	eventually(t, "the node takes it", func() bool {
		c, err := n.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "any", metav1.GetOptions{})
		return err == nil && c.Annotations["volume.kubernetes.io/selected-node"] == "n1"
	})
	eventually(t, "the volume is made", func() bool { _, ok := n.volume(t, claim); return ok })
}

// TestCentral: a driver that any node may use is served by one of them, which attaches as well.
func TestCentral(t *testing.T) {
	d := newFakeDriver("", create, publish)
	n := run(t, true, newPlugin(t, d, false, class("net", storagev1.VolumeBindingImmediate)),
		&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driverName, NodeID: "id-of-n2"}}}})
	n.ready(t)
	claim := n.claim(t, "c", "net", "")
	var volume *corev1.PersistentVolume
	eventually(t, "the volume is made", func() (ok bool) { volume, ok = n.volume(t, claim); return ok })
	if volume.Spec.NodeAffinity != nil {
		t.Errorf("it is for some nodes only: %v", volume.Spec.NodeAffinity)
	}
	attachment := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: storagev1.VolumeAttachmentSpec{
		Attacher: driverName, NodeName: "n2", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume.Name},
	}}
	if _, err := n.StorageV1().VolumeAttachments().Create(t.Context(), attachment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is attached", func() bool {
		a, err := n.StorageV1().VolumeAttachments().Get(t.Context(), "a", metav1.GetOptions{})
		return err == nil && a.Status.Attached && a.Status.AttachmentMetadata["device"] == "/dev/x"
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.published[volume.Name] != "id-of-n2" {
		t.Errorf("attached to %v", d.published)
	}
}

// TestCentralElsewhere: a node that is not the one registers the driver and does nothing for volumes.
func TestCentralElsewhere(t *testing.T) {
	p := newPlugin(t, newFakeDriver("", create), false, class("net", storagev1.VolumeBindingImmediate))
	n := run(t, false, p)
	eventually(t, "it is registered", n.registered)
	n.claim(t, "c", "net", "")
	n.stop()
	if slices.Contains(p.Called(), "CreateVolume") {
		t.Error("two nodes would make the volume")
	}
}

// TestReplaced: another process with the same facts changes nothing for the kubelet; one with others registers anew.
func TestReplaced(t *testing.T) {
	d := newFakeDriver("n1", create)
	p := newPlugin(t, d, true, class("local", storagev1.VolumeBindingWaitForFirstConsumer))
	n := run(t, false, p)
	eventually(t, "it is registered", n.registered)
	n.ready(t)
	first := n.claim(t, "first", "local", "n1")
	eventually(t, "a volume is made", func() bool { _, ok := n.volume(t, first); return ok })
	// When the socket was made: an inode number may be used again.
	made := func() (at time.Time) {
		if info, err := os.Stat(registrationSocket(n.root, driverName)); err == nil {
			at = info.ModTime()
		}
		return at
	}
	before := made()

	p.Serve(t, d.register)
	n.set.Replace(p)
	second := n.claim(t, "second", "local", "n1")
	eventually(t, "the new process makes a volume", func() bool { _, ok := n.volume(t, second); return ok })
	if !made().Equal(before) {
		t.Error("the driver was registered anew")
	}

	more := newFakeDriver("n1", create, expand)
	p.Serve(t, more.register)
	n.set.Replace(p)
	eventually(t, "the change is seen", func() bool { return n.said("has changed") })
	third := n.claim(t, "third", "local", "n1")
	eventually(t, "and volumes are made", func() bool { _, ok := n.volume(t, third); return ok })
	if !made().Equal(before) {
		t.Error("the driver was registered anew though only its capabilities changed")
	}

	moved := newFakeDriver("n1", create)
	moved.rack = "r8"
	p.Serve(t, moved.register)
	n.set.Replace(p)
	eventually(t, "it is registered anew", func() bool { now := made(); return !now.IsZero() && now.After(before) })
}

// TestGone: a plugin that is no longer wanted leaves the kubelet; the end of the process does not.
func TestGone(t *testing.T) {
	p := newPlugin(t, newFakeDriver("n1", create), true)
	n := run(t, false, p)
	eventually(t, "it is registered", n.registered)
	n.set.Replace()
	eventually(t, "it is gone", func() bool {
		_, err := os.Stat(csiSocket(n.root, driverName))
		return !n.registered() && os.IsNotExist(err)
	})
	n.set.Replace(p)
	eventually(t, "it is back", n.registered)
	n.stop()
	if !n.registered() {
		t.Error("the end of the process takes the driver from the kubelet")
	}
	if _, err := n.StorageV1().CSIDrivers().Get(context.Background(), driverName, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// TestRefused: what cannot work is said once, on the Node too, and leaves others alone.
func TestRefused(t *testing.T) {
	wrongName := newFakeDriver("n1", create)
	wrongName.name = "other.example.com"
	for _, tc := range []struct {
		name    string
		plugins func(t *testing.T) []*pluginstest.Plugin
		have    []runtime.Object
		says    string
	}{
		{"another name", func(t *testing.T) []*pluginstest.Plugin { return []*pluginstest.Plugin{newPlugin(t, wrongName, true)} }, nil,
			"it says that it is the driver other.example.com"},
		{"no topology", func(t *testing.T) []*pluginstest.Plugin {
			return []*pluginstest.Plugin{newPlugin(t, newFakeDriver("", create), true)}
		}, nil,
			"has no VOLUME_ACCESSIBILITY_CONSTRAINTS"},
		{"somebody else's driver", func(t *testing.T) []*pluginstest.Plugin {
			return []*pluginstest.Plugin{newPlugin(t, newFakeDriver("n1", create), true)}
		},
			[]runtime.Object{&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}}}, "is somebody else's"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := run(t, true, tc.plugins(t)[0], tc.have...)
			eventually(t, "it is said", func() bool { return n.said(tc.says) })
			eventually(t, "it is an Event", func() bool {
				all, err := n.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
				return err == nil && slices.ContainsFunc(all.Items, func(e corev1.Event) bool {
					return e.Reason == refused && e.InvolvedObject.Name == "n1" && strings.Contains(e.Message, tc.says)
				})
			})
			if n.registered() {
				t.Error("the kubelet has it all the same")
			}
		})
	}
	t.Run("two of one name", func(t *testing.T) {
		n := run(t, true, newPlugin(t, newFakeDriver("n1", create), true))
		twin := described(t, "q", true)
		twin.Serve(t, newFakeDriver("n1", create).register)
		n.set.Replace(n.plugin, twin)
		eventually(t, "it is said", func() bool { return n.said("another plugin is the driver " + driverName) })
		eventually(t, "the first works", n.registered)
	})
}

// TestSocketOfDriver: what the kubelet dials is there before any process is.
func TestSocketOfDriver(t *testing.T) {
	p := described(t, "p", true)
	n := run(t, false, p)
	conn, err := grpc.NewClient("unix:"+csiSocket(n.root, driverName), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	eventually(t, "the socket is there", func() bool { _, err := os.Stat(csiSocket(n.root, driverName)); return err == nil })
	if n.registered() {
		t.Error("it is registered before it has said what it is")
	}
	answered := make(chan error, 1)
	go func() {
		_, err := csi.NewNodeClient(conn).NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{}, grpc.WaitForReady(true))
		answered <- err
	}()
	p.Serve(t, newFakeDriver("n1", create).register)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	n.set.Replace(p)
	eventually(t, "it is registered", n.registered)
	if n.said("ended with status 2") {
		t.Error("the log says what the host of plugins says already")
	}
}
