package storage

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/plugins/pluginstest"
	"kubelith.io/kubelith/plugins/storage"
	"kubelith.io/kubelith/plugins/storage/storagetest"
)

const (
	driverName  = storagetest.DriverName
	topologyKey = storagetest.TopologyKey

	create = csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME
	expand = csi.ControllerServiceCapability_RPC_EXPAND_VOLUME
	free   = csi.ControllerServiceCapability_RPC_GET_CAPACITY
)

// node is a node whose component runs, with a plugin.
type node struct {
	*storagetest.API
	set    *pluginstest.Set
	plugin *pluginstest.Plugin
	root   string
	stop   func()
}

// run runs the component on the node n1 until the test ends: on a server, with shared informers, or on an agent. The
// objects of the plugin are there unless others are given.
func run(t *testing.T, agent bool, plugin *pluginstest.Plugin, objects ...runtime.Object) *node {
	t.Helper()
	if len(objects) == 0 {
		objects = declaredBy(plugin)
	}
	n := &node{API: storagetest.NewAPI(objects...), set: pluginstest.NewSet(plugin), plugin: plugin, root: t.TempDir()}
	ctx, cancel := context.WithCancel(t.Context())
	shared := informers.NewSharedInformerFactory(n.Clientset, 0)
	h := &host{
		Options: Options{Plugins: n.set, NodeName: "n1", KubeletRootDir: n.root, Agent: agent, Log: n.Log},
		clients: storage.Clients{Client: n.Clientset}, work: &lifecycle.Watchdog{},
	}
	if !agent {
		h.Informers = func() informers.SharedInformerFactory { return shared }
	}
	ended := make(chan struct{})
	go func() { defer close(ended); h.run(ctx) }()
	n.stop = func() { cancel(); <-ended }
	t.Cleanup(n.stop)
	return n
}

// declaredBy are the objects that a server has created from what the plugin declares.
func declaredBy(plugin *pluginstest.Plugin) (objects []runtime.Object) {
	description := plugin.Description().GetStorage()
	driver := &storagev1.CSIDriver{}
	if err := json.Unmarshal(description.GetCsiDriver(), driver); err != nil {
		panic(err)
	}
	driver.Labels = map[string]string{"app.kubernetes.io/managed-by": "kubelith"}
	if description.GetNodeLocal() {
		metav1.SetMetaDataAnnotation(&driver.ObjectMeta, names.NodeLocalAnnotation, topologyKey)
	}
	for _, text := range description.GetStorageClasses() {
		class := &storagev1.StorageClass{}
		if err := json.Unmarshal(text, class); err != nil {
			panic(err)
		}
		objects = append(objects, class)
	}
	return append(objects, driver)
}

// registered reports whether the kubelet would find the driver.
func (n *node) registered() bool {
	_, err := os.Stat(registrationSocket(n.root, driverName))
	return err == nil
}

// TestNodeLocal: a volume is created, grown and deleted on the node that was chosen for it, and the scheduler learns of
// the space.
func TestNodeLocal(t *testing.T) {
	d := storagetest.NewDriver("n1", create, expand, free)
	n := run(t, true, storagetest.Plugin(t, d, true, storagetest.Class("local", storagev1.VolumeBindingWaitForFirstConsumer)))
	storagetest.Eventually(t, "the kubelet can find it", n.registered)

	n.Ready(t)
	elsewhere, here := n.Claim(t, "elsewhere", "local", "n2"), n.Claim(t, "here", "local", "n1")
	var volume *corev1.PersistentVolume
	storagetest.Eventually(t, "the volume is made", func() (ok bool) { volume, ok = n.Volume(t, here); return ok })
	if d.Size(volume.Name) != storagetest.GiB || volume.Spec.CSI.Driver != driverName || volume.Spec.CSI.VolumeHandle != volume.Name {
		t.Errorf("size %d, %+v", d.Size(volume.Name), volume.Spec)
	}
	term := volume.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0]
	if term.Key != topologyKey || !slices.Equal(term.Values, []string{"n1"}) {
		t.Errorf("it is for %+v", volume.Spec.NodeAffinity.Required)
	}
	if parameters := d.Made()[0].GetParameters(); parameters["csi.storage.k8s.io/pvc/name"] != "here" {
		t.Errorf("the driver gets %v", parameters)
	}
	storagetest.Eventually(t, "the remaining capacity is published", func() bool {
		all, err := n.StorageV1().CSIStorageCapacities(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{})
		return err == nil && len(all.Items) == 1 && all.Items[0].Capacity.Value() == 99*storagetest.GiB && all.Items[0].StorageClassName == "local" &&
			all.Items[0].NodeTopology.MatchLabels[topologyKey] == "n1" && ownedBy(&all.Items[0], "first")
	})

	// What the API does when it is bound and a user requests more.
	foreign := volume.DeepCopy()
	foreign.Name, foreign.Spec.CSI.VolumeHandle = "of-n2", "of-n2"
	foreign.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values = []string{"n2"}
	if _, err := n.CoreV1().PersistentVolumes().Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for claim, volume := range map[*corev1.PersistentVolumeClaim]string{elsewhere: "of-n2", here: volume.Name} {
		bind(t, n, claim, volume)
	}
	storagetest.Eventually(t, "the volume has grown", func() bool { return d.Size(volume.Name) == 2*storagetest.GiB })
	storagetest.Eventually(t, "the PersistentVolume says so", func() bool {
		v, _ := n.Volume(t, here)
		return v.Spec.Capacity.Storage().Value() == 2*storagetest.GiB
	})

	deleted := func(v *corev1.PersistentVolume) {
		v = v.DeepCopy()
		v.Status.Phase = corev1.VolumeReleased
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
		if _, err := n.CoreV1().PersistentVolumes().Update(t.Context(), v, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	volume, _ = n.Volume(t, here)
	deleted(foreign)
	deleted(volume)
	storagetest.Eventually(t, "the volume is deleted", func() bool { _, there := n.Volume(t, here); return !there && d.Size(volume.Name) == 0 })
	if _, there := n.Volume(t, elsewhere); there || len(d.Made()) != 1 {
		t.Errorf("a volume of another node was made: %v", d.Made())
	}
	if _, err := n.CoreV1().PersistentVolumes().Get(t.Context(), "of-n2", metav1.GetOptions{}); err != nil {
		t.Errorf("a volume of another node: %v", err)
	}
	eventsOf := func(reason string) bool {
		all, err := n.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(all.Items, func(e corev1.Event) bool { return e.Reason == reason })
	}
	storagetest.Eventually(t, "people can read of it", func() bool { return eventsOf("ProvisioningSucceeded") })
	if eventsOf("VolumeResizeFailed") {
		t.Error("a controller tried to resize a volume of another node")
	}
}

// bind makes a claim a bound one that requests 2 GiB.
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

// ownedBy reports whether the Node n1 with this UID is the one owner.
func ownedBy(c *storagev1.CSIStorageCapacity, uid types.UID) bool {
	return len(c.OwnerReferences) == 1 && c.OwnerReferences[0].APIVersion == "v1" && c.OwnerReferences[0].Kind == "Node" &&
		c.OwnerReferences[0].Name == "n1" && c.OwnerReferences[0].UID == uid
}

// TestCapacityOfNode: what the scheduler gets belongs to the Node, and to the next one when it was created again.
func TestCapacityOfNode(t *testing.T) {
	n := run(t, true, storagetest.Plugin(t, storagetest.NewDriver("n1", create, free), true, storagetest.Class("local", storagev1.VolumeBindingWaitForFirstConsumer)))
	capacities := n.StorageV1().CSIStorageCapacities(metav1.NamespaceSystem)
	published := func(uid types.UID) func() bool {
		return func() bool {
			all, err := capacities.List(t.Context(), metav1.ListOptions{})
			return err == nil && len(all.Items) == 1 && ownedBy(&all.Items[0], uid)
		}
	}
	storagetest.Eventually(t, "the capacity is published as the Node's", published("first"))
	if err := n.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	storagetest.Eventually(t, "the change is logged", func() bool { return n.Said("the driver " + driverName + " or its Node has changed") })
	all, err := capacities.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all.Items { // the garbage collector's part
		if err := capacities.Delete(t.Context(), c.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.CoreV1().Nodes().Create(t.Context(), storagetest.Node("second"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	storagetest.Eventually(t, "the capacity is published as the next Node's", published("second"))
}

// TestImmediate: a node takes a claim without a chosen node.
func TestImmediate(t *testing.T) {
	n := run(t, true, storagetest.Plugin(t, storagetest.NewDriver("n1", create, free), true, storagetest.Class("now", storagev1.VolumeBindingImmediate)))
	n.Ready(t)
	claim := n.Claim(t, "any", "now", "")
	storagetest.Eventually(t, "the node takes it", func() bool {
		c, err := n.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "any", metav1.GetOptions{})
		return err == nil && c.Annotations["volume.kubernetes.io/selected-node"] == "n1"
	})
	storagetest.Eventually(t, "the volume is made", func() bool { _, ok := n.Volume(t, claim); return ok })
}

// TestCentralElsewhere: a node that is not the one registers the driver and does nothing for volumes.
func TestCentralElsewhere(t *testing.T) {
	p := storagetest.Plugin(t, storagetest.NewDriver("", create), false, storagetest.Class("net", storagev1.VolumeBindingImmediate))
	n := run(t, true, p)
	storagetest.Eventually(t, "it is registered", n.registered)
	n.Claim(t, "c", "net", "")
	n.stop()
	if slices.Contains(p.Called(), "CreateVolume") {
		t.Error("two nodes would create the volume")
	}
}

// TestReplaced: another process with the same facts changes nothing for the kubelet; one with others registers again.
func TestReplaced(t *testing.T) {
	d := storagetest.NewDriver("n1", create)
	p := storagetest.Plugin(t, d, true, storagetest.Class("local", storagev1.VolumeBindingWaitForFirstConsumer))
	n := run(t, true, p)
	storagetest.Eventually(t, "it is registered", n.registered)
	n.Ready(t)
	first := n.Claim(t, "first", "local", "n1")
	storagetest.Eventually(t, "a volume is made", func() bool { _, ok := n.Volume(t, first); return ok })
	// When the socket was created: an inode number may be used again.
	made := func() (at time.Time) {
		if info, err := os.Stat(registrationSocket(n.root, driverName)); err == nil {
			at = info.ModTime()
		}
		return at
	}
	before := made()

	p.Serve(t, d.Register)
	n.set.Replace(p)
	second := n.Claim(t, "second", "local", "n1")
	storagetest.Eventually(t, "the new process creates one", func() bool { _, ok := n.Volume(t, second); return ok })
	if !made().Equal(before) {
		t.Error("the driver was registered again")
	}

	more := storagetest.NewDriver("n1", create, expand)
	p.Serve(t, more.Register)
	n.set.Replace(p)
	storagetest.Eventually(t, "the change is seen", func() bool { return n.Said("has changed") })
	third := n.Claim(t, "third", "local", "n1")
	storagetest.Eventually(t, "and volumes are made", func() bool { _, ok := n.Volume(t, third); return ok })
	if !made().Equal(before) {
		t.Error("the driver was registered again though only its capabilities changed")
	}

	moved := storagetest.NewDriver("n1", create)
	moved.Rack = "r8"
	p.Serve(t, moved.Register)
	n.set.Replace(p)
	storagetest.Eventually(t, "it is registered again", func() bool { now := made(); return !now.IsZero() && now.After(before) })
}

// TestGone: a plugin that is no longer wanted leaves the kubelet; the end of the process does not.
func TestGone(t *testing.T) {
	p := storagetest.Plugin(t, storagetest.NewDriver("n1", create), true)
	n := run(t, true, p)
	storagetest.Eventually(t, "it is registered", n.registered)
	n.set.Replace()
	storagetest.Eventually(t, "it is gone", func() bool {
		_, err := os.Stat(storage.Socket(n.root, driverName))
		return !n.registered() && os.IsNotExist(err)
	})
	n.set.Replace(p)
	storagetest.Eventually(t, "it is back", n.registered)
	n.stop()
	if !n.registered() {
		t.Error("the end of the process takes the driver from the kubelet")
	}
	if _, err := n.StorageV1().CSIDrivers().Get(context.Background(), driverName, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// TestRefused: what cannot work is reported once, on the Node too, and leaves others alone.
func TestRefused(t *testing.T) {
	wrongName := storagetest.NewDriver("n1", create)
	wrongName.Name = "other.example.com"
	for _, tc := range []struct {
		name    string
		plugins func(t *testing.T) []*pluginstest.Plugin
		have    []runtime.Object
		says    string
	}{
		{"another name", func(t *testing.T) []*pluginstest.Plugin {
			return []*pluginstest.Plugin{storagetest.Plugin(t, wrongName, true)}
		}, nil,
			"it reports the driver name other.example.com"},
		{"no topology", func(t *testing.T) []*pluginstest.Plugin {
			return []*pluginstest.Plugin{storagetest.Plugin(t, storagetest.NewDriver("", create), true)}
		}, nil,
			"has no VOLUME_ACCESSIBILITY_CONSTRAINTS"},
		{"another owner's driver", func(t *testing.T) []*pluginstest.Plugin {
			return []*pluginstest.Plugin{storagetest.Plugin(t, storagetest.NewDriver("n1", create), true)}
		},
			[]runtime.Object{&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}}}, "belongs to another driver"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := run(t, false, tc.plugins(t)[0], tc.have...)
			storagetest.Eventually(t, "a log line", func() bool { return n.Said(tc.says) })
			storagetest.Eventually(t, "it is an Event", func() bool {
				all, err := n.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
				return err == nil && slices.ContainsFunc(all.Items, func(e corev1.Event) bool {
					return e.Reason == storage.Refused && e.InvolvedObject.Name == "n1" && strings.Contains(e.Message, tc.says)
				})
			})
			if n.registered() {
				t.Error("the kubelet has registered it nevertheless")
			}
		})
	}
	t.Run("two of one name", func(t *testing.T) {
		n := run(t, true, storagetest.Plugin(t, storagetest.NewDriver("n1", create), true))
		twin := storagetest.Described(t, "q", true)
		twin.Serve(t, storagetest.NewDriver("n1", create).Register)
		n.set.Replace(n.plugin, twin)
		storagetest.Eventually(t, "a log line", func() bool { return n.Said("another plugin serves the driver " + driverName) })
		storagetest.Eventually(t, "the first works", n.registered)
	})
}

// TestSocketOfDriver: what the kubelet dials is there before any process is.
func TestSocketOfDriver(t *testing.T) {
	p := storagetest.Described(t, "p", true)
	n := run(t, true, p)
	conn, err := grpc.NewClient("unix:"+storage.Socket(n.root, driverName), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	storagetest.Eventually(t, "the socket is there", func() bool { _, err := os.Stat(storage.Socket(n.root, driverName)); return err == nil })
	if n.registered() {
		t.Error("it is registered before it has reported what it is")
	}
	answered := make(chan error, 1)
	go func() {
		_, err := csi.NewNodeClient(conn).NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{}, grpc.WaitForReady(true))
		answered <- err
	}()
	p.Serve(t, storagetest.NewDriver("n1", create).Register)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	n.set.Replace(p)
	storagetest.Eventually(t, "it is registered", n.registered)
	if n.Said("ended with status 2") {
		t.Error("the log repeats what the plugin host has logged")
	}
}
