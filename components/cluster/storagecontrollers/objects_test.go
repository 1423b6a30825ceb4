package storagecontrollers

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/plugins/storage"
	"kubelith.io/kubelith/plugins/storage/storagetest"
)

// ours are the labels of what Kubelith created.
var ours = map[string]string{"app.kubernetes.io/managed-by": "kubelith"}

// declared is a declaration of the driver.
func declared(nodeLocal bool, classes ...*storagev1.StorageClass) storage.Declaration {
	return storage.Declare(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: storagetest.DriverName},
		Spec: storagev1.CSIDriverSpec{StorageCapacity: ptr.To(true)}}, classes, nodeLocal)
}

// objectsOf returns what creates objects, on an API with these, and its log.
func objectsOf(have ...runtime.Object) (objects, *fake.Clientset, *logtest.Hook) {
	log, lines := logtest.NewNullLogger()
	cs := fake.NewClientset(have...)
	return objects{cs, "n1", log}, cs, lines
}

func TestDriverObject(t *testing.T) {
	yes, no := true, false
	attaches := storage.Facts{Controller: map[csi.ControllerServiceCapability_RPC_Type]bool{csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME: true}}
	of := func(labels map[string]string, spec storagev1.CSIDriverSpec) *storagev1.CSIDriver {
		return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: storagetest.DriverName, Labels: labels}, Spec: spec}
	}
	for _, tc := range []struct {
		name      string
		nodeLocal bool
		facts     storage.Facts
		have      *storagev1.CSIDriver
		attach    *bool
		wrong     string
	}{
		{"created, no attacher", false, storage.Facts{}, nil, &no, ""},
		{"created, the driver attaches", false, attaches, nil, nil, ""},
		{"created, node-local", true, attaches, nil, &no, ""},
		{"there, and as it was created", false, storage.Facts{}, of(ours, storagev1.CSIDriverSpec{StorageCapacity: &yes, AttachRequired: &no}), &no, ""},
		{"there, and older", false, storage.Facts{}, of(ours, storagev1.CSIDriverSpec{AttachRequired: &yes, PodInfoOnMount: &yes}), &no, ""},
		{"another driver's", false, storage.Facts{}, of(nil, storagev1.CSIDriverSpec{}), nil, "belongs to another driver"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var objects []runtime.Object
			if tc.have != nil {
				objects = append(objects, tc.have)
			}
			m, cs, _ := objectsOf(objects...)
			err := m.make(t.Context(), declared(tc.nodeLocal), tc.facts)
			if (tc.wrong == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.wrong) {
				t.Fatalf("%v, want %q", err, tc.wrong)
			}
			if err != nil {
				return
			}
			got, err := cs.StorageV1().CSIDrivers().Get(t.Context(), storagetest.DriverName, metav1.GetOptions{})
			if err != nil || !storage.IsOurs(got) {
				t.Fatalf("%v, %v", got, err)
			}
			if s := got.Spec; s.StorageCapacity == nil || !*s.StorageCapacity || (s.AttachRequired == nil) != (tc.attach == nil) ||
				tc.attach != nil && *s.AttachRequired != *tc.attach {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestNodeLocalDriver: the CSIDriver has the key by which volumes name their node, one of an older version as well.
func TestNodeLocalDriver(t *testing.T) {
	on := func(key, value string) storage.Facts {
		return storage.Facts{Info: &csi.NodeGetInfoResponse{AccessibleTopology: &csi.Topology{Segments: map[string]string{"rack": "r7", key: value}}}}
	}
	older := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: storagetest.DriverName, Labels: ours}}
	for _, tc := range []struct {
		name      string
		nodeLocal bool
		facts     storage.Facts
		have      []runtime.Object
		want      string
	}{
		{"created", true, on(storagetest.TopologyKey, "n1"), nil, storagetest.TopologyKey},
		{"there, of an older version", true, on(storagetest.TopologyKey, "n1"), []runtime.Object{older}, storagetest.TopologyKey},
		{"the node has another name in it", true, on(storagetest.TopologyKey, "id-1"), nil, ""},
		{"not node-local", false, on(storagetest.TopologyKey, "n1"), nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, cs, _ := objectsOf(tc.have...)
			if err := m.make(t.Context(), declared(tc.nodeLocal), tc.facts); err != nil {
				t.Fatal(err)
			}
			got, err := cs.StorageV1().CSIDrivers().Get(t.Context(), storagetest.DriverName, metav1.GetOptions{})
			if err != nil || got.Annotations[names.NodeLocalAnnotation] != tc.want {
				t.Errorf("%v, %v", got.Annotations, err)
			}
		})
	}
}

// TestDeclared: a server that runs no plugin creates the objects of the driver that agents run.
func TestDeclared(t *testing.T) {
	m, cs, _ := objectsOf()
	d := storage.Declare(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: storagetest.DriverName, Annotations: map[string]string{names.NodeLocalAnnotation: storagetest.TopologyKey}}},
		[]*storagev1.StorageClass{storagetest.Class("local", storagev1.VolumeBindingImmediate)}, true)
	term := &term{Options: Options{NodeName: "n1", Log: m.log}, clients: storage.Clients{Client: cs}}
	term.makeDeclared(t.Context(), d)
	driver, err := cs.StorageV1().CSIDrivers().Get(t.Context(), storagetest.DriverName, metav1.GetOptions{})
	if err != nil || !storage.IsOurs(driver) || driver.Annotations[names.NodeLocalAnnotation] != storagetest.TopologyKey || driver.Spec.AttachRequired == nil || *driver.Spec.AttachRequired {
		t.Errorf("%+v, %v", driver, err)
	}
	if _, err := cs.StorageV1().StorageClasses().Get(t.Context(), "local", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// TestDriverObjectStays: fields that the API does not let change stay, and a log line informs the operator.
func TestDriverObjectStays(t *testing.T) {
	have := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: storagetest.DriverName, Labels: ours}}
	m, cs, lines := objectsOf(have)
	cs.PrependReactor("update", "csidrivers", func(ktesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewInvalid(storagev1.SchemeGroupVersion.WithKind("CSIDriver").GroupKind(), storagetest.DriverName, nil)
	})
	if err := m.make(t.Context(), declared(false), storage.Facts{}); err != nil {
		t.Error(err)
	}
	if e := lines.LastEntry(); e == nil || e.Level != logrus.WarnLevel || !strings.Contains(e.Message, "delete it to have it created again") {
		t.Errorf("the log says %v", e)
	}
}

func TestClasses(t *testing.T) {
	standard := storagetest.Class("standard", storagev1.VolumeBindingImmediate)
	standard.Annotations = map[string]string{defaultClass: "true"}
	other := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "theirs", Annotations: map[string]string{defaultClass: "true"}}, Provisioner: "x"}
	changed := standard.DeepCopy()
	changed.Parameters, changed.Annotations = map[string]string{"changed": "by a person"}, nil
	taken := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "standard"}, Provisioner: "x"}
	for _, tc := range []struct {
		name        string
		have        []runtime.Object
		isDefault   bool
		provisioner string
		parameters  int
		says        string
	}{
		{"created", nil, true, storagetest.DriverName, 0, ""},
		{"created beside another default", []runtime.Object{other}, false, storagetest.DriverName, 0, "theirs already is"},
		{"changed by a person", []runtime.Object{changed}, false, storagetest.DriverName, 1, ""},
		{"name taken", []runtime.Object{taken}, false, "x", 0, "not created for"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, cs, lines := objectsOf(tc.have...)
			if err := m.make(t.Context(), declared(false, standard), storage.Facts{}); err != nil {
				t.Fatal(err)
			}
			got, err := cs.StorageV1().StorageClasses().Get(t.Context(), "standard", metav1.GetOptions{})
			if err != nil || (got.Annotations[defaultClass] == "true") != tc.isDefault || got.Provisioner != tc.provisioner || len(got.Parameters) != tc.parameters {
				t.Errorf("%v, %v", got, err)
			}
			e := lines.LastEntry()
			if (e == nil) != (tc.says == "") || e != nil && !strings.Contains(e.Message, tc.says) {
				t.Errorf("the log says %v, want %q", e, tc.says)
			}
		})
	}
}
