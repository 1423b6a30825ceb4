package storagecontrollers

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	ktesting "k8s.io/client-go/testing"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/plugins/pluginstest"
	"kubelith.io/kubelith/plugins/storage"
	"kubelith.io/kubelith/plugins/storage/storagetest"
)

const (
	create  = csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME
	expand  = csi.ControllerServiceCapability_RPC_EXPAND_VOLUME
	free    = csi.ControllerServiceCapability_RPC_GET_CAPACITY
	modify  = csi.ControllerServiceCapability_RPC_MODIFY_VOLUME
	publish = csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME
)

// server is a server with a plugin, on which the component runs in terms.
type server struct {
	*storagetest.API
	set    *pluginstest.Set
	root   string
	shared informers.SharedInformerFactory
}

// newServer returns a server on which a plugin is served as the component "storage" does.
func newServer(t *testing.T, plugin *pluginstest.Plugin, objects ...runtime.Object) *server {
	t.Helper()
	s := &server{API: storagetest.NewAPI(objects...), set: pluginstest.NewSet(plugin), root: t.TempDir()}
	s.shared = informers.NewSharedInformerFactory(s.Clientset, 0)
	socket := storage.Socket(s.root, storagetest.DriverName)
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	forwarder, served := storage.NewForwarder(plugin, nil), make(chan struct{})
	go func() { defer close(served); forwarder.Serve(l) }()
	t.Cleanup(func() { forwarder.Stop(); <-served })
	return s
}

// lead begins a term and returns what ends it.
func (s *server) lead(t *testing.T) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	term := &term{
		Options: Options{Plugins: s.set, Informers: func() informers.SharedInformerFactory { return processInformers{s.shared, t} },
			NodeName: "n1", KubeletRootDir: s.root, Log: s.Log},
		clients: storage.Clients{Client: s.Clientset}, work: &lifecycle.Watchdog{},
	}
	ended := make(chan struct{})
	go func() { defer close(ended); term.run(ctx) }()
	end = func() { cancel(); <-ended }
	t.Cleanup(end)
	return end
}

// processInformers are informers that end with the process and not with the component that starts them.
type processInformers struct {
	informers.SharedInformerFactory
	t *testing.T
}

func (f processInformers) Start(<-chan struct{}) { f.SharedInformerFactory.Start(f.t.Context().Done()) }

// TestCentral: a driver that any node may use is served by the server that leads, which attaches as well.
func TestCentral(t *testing.T) {
	d := storagetest.NewDriver("", create, publish)
	n := newServer(t, storagetest.Plugin(t, d, false, storagetest.Class("net", storagev1.VolumeBindingImmediate)),
		&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: storagetest.DriverName, NodeID: "id-of-n2"}}}})
	n.lead(t)
	n.Ready(t)
	claim := n.Claim(t, "c", "net", "")
	var volume *corev1.PersistentVolume
	storagetest.Eventually(t, "the volume is created", func() (ok bool) { volume, ok = n.Volume(t, claim); return ok })
	if volume.Spec.NodeAffinity != nil {
		t.Errorf("it is for some nodes only: %v", volume.Spec.NodeAffinity)
	}
	attachment := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: storagev1.VolumeAttachmentSpec{
		Attacher: storagetest.DriverName, NodeName: "n2", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume.Name},
	}}
	if _, err := n.StorageV1().VolumeAttachments().Create(t.Context(), attachment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	storagetest.Eventually(t, "it is attached", func() bool {
		a, err := n.StorageV1().VolumeAttachments().Get(t.Context(), "a", metav1.GetOptions{})
		return err == nil && a.Status.Attached && a.Status.AttachmentMetadata["device"] == "/dev/x"
	})
	if at := d.Published(volume.Name); at != "id-of-n2" {
		t.Errorf("attached to %q", at)
	}
}

// TestObjects: what a plugin declares is there for all nodes; volumes of a node-local driver are left to them.
func TestObjects(t *testing.T) {
	p := storagetest.Plugin(t, storagetest.NewDriver("n1", create), true, storagetest.Class("local", storagev1.VolumeBindingImmediate))
	s := newServer(t, p)
	end := s.lead(t)
	storagetest.Eventually(t, "the driver and its class are there", func() bool {
		driver, err := s.StorageV1().CSIDrivers().Get(t.Context(), storagetest.DriverName, metav1.GetOptions{})
		_, errClass := s.StorageV1().StorageClasses().Get(t.Context(), "local", metav1.GetOptions{})
		return err == nil && errClass == nil && driver.Annotations[names.NodeLocalAnnotation] == storagetest.TopologyKey
	})
	s.Claim(t, "c", "local", "n1")
	end()
	for _, called := range p.Called() {
		if called == "CreateVolume" {
			t.Error("the server creates a volume that is its node's")
		}
	}
}

// TestForeign: the objects of a foreign driver are left alone, and each node logs that.
func TestForeign(t *testing.T) {
	s := newServer(t, storagetest.Plugin(t, storagetest.NewDriver("", create), false, storagetest.Class("net", storagev1.VolumeBindingImmediate)),
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: storagetest.DriverName}})
	read := make(chan struct{}, 10)
	s.PrependReactor("get", "csidrivers", func(ktesting.Action) (bool, runtime.Object, error) {
		read <- struct{}{}
		return false, nil, nil
	})
	end := s.lead(t)
	<-read
	end()
	if _, err := s.StorageV1().StorageClasses().Get(t.Context(), "net", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a StorageClass of another driver: %v", err)
	}
	if s.Said("belongs to another driver") {
		t.Error("it is logged twice")
	}
}

// TestTerms: a term acts as the one before, and what it started has ended with it.
func TestTerms(t *testing.T) {
	d := storagetest.NewDriver("", create, expand, free, modify, publish)
	s := newServer(t, storagetest.Plugin(t, d, false, storagetest.Class("net", storagev1.VolumeBindingImmediate)))
	var first map[string]int
	for i, name := range []string{"a", "b", "c", "d"} {
		end := s.lead(t)
		s.Ready(t)
		claim := s.Claim(t, name, "net", "")
		storagetest.Eventually(t, "a volume is created", func() bool { _, ok := s.Volume(t, claim); return ok })
		end()
		if i == 0 { // what is started once for the process
			first = goroutines(t)
		}
	}
	late := s.Claim(t, "late", "net", "")
	var more []string
	defer func() {
		if t.Failed() {
			t.Logf("left are:\n%s", strings.Join(more, "\n\n"))
		}
	}()
	storagetest.Eventually(t, "nothing is left of a term", func() bool {
		more = nil
		for stack, n := range goroutines(t) {
			if n > first[stack] && !strings.Contains(stack, "writeGoroutine") {
				more = append(more, stack)
			}
		}
		return len(more) == 0
	})
	if d.Size("pvc-"+string(late.UID)) != 0 {
		t.Error("a volume is created after the end of the term")
	}
}

// goroutines counts those of the process by their stacks.
func goroutines(t *testing.T) map[string]int {
	t.Helper()
	var text strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&text, 1); err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	for block := range strings.SplitSeq(text.String(), "\n\n") {
		var n int
		head, stack, _ := strings.Cut(block, "\n")
		if _, err := fmt.Sscanf(head, "%d @", &n); err == nil {
			all[stack] += n
		}
	}
	return all
}
