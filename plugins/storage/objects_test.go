package storage

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

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

func TestValidate(t *testing.T) {
	good := `{"metadata":{"name":"a.example.com"},"spec":{"podInfoOnMount":true}}`
	for _, tc := range []struct {
		name, driver, class, wrong string
	}{
		{"good", good, `{"metadata":{"name":"c"},"provisioner":"a.example.com"}`, ""},
		{"no JSON", "{", "", "csi_driver: unexpected EOF"},
		{"unknown field", `{"spec":{"attachRequire":true}}`, "", `csi_driver: json: unknown field "attachRequire"`},
		{"no name", `{}`, "", `csi_driver: the name "" is no driver's`},
		{"a path for a name", `{"metadata":{"name":"../../etc"}}`, "", `csi_driver: the name "../../etc" is no driver's`},
		{"a name of 64 characters", `{"metadata":{"name":"` + strings.Repeat("a", 64) + `"}}`, "", "is no driver's"},
		{"class of another", good, `{"metadata":{"name":"c"},"provisioner":"b"}`, "storage_classes[0]: it needs a name, and the provisioner a.example.com"},
		{"class without a name", good, `{"provisioner":"a.example.com"}`, "storage_classes[0]: it needs a name"},
	} {
		s := &pluginv1.StorageDescription{CsiDriver: []byte(tc.driver)}
		if tc.class != "" {
			s.StorageClasses = [][]byte{[]byte(tc.class)}
		}
		err := Validate("p", &pluginv1.Description{Kind: &pluginv1.Description_Storage{Storage: s}})
		if (tc.wrong == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.wrong) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.wrong)
		}
	}
	if err := Validate("p", &pluginv1.Description{}); err == nil {
		t.Error("a plugin of another kind is a storage plugin")
	}
}

// objectsOf returns a driver that makes objects, and its log.
func objectsOf(t *testing.T, d *pluginv1.Description, objects ...runtime.Object) (*driver, *fake.Clientset, *logtest.Hook) {
	t.Helper()
	declared, err := declarationOf(d)
	if err != nil {
		t.Fatal(err)
	}
	log, lines := logtest.NewNullLogger()
	cs := fake.NewClientset(objects...)
	return &driver{host: &host{client: cs, Options: Options{Central: true, NodeName: "n1"}}, declared: declared, log: log}, cs, lines
}

func TestDriverObject(t *testing.T) {
	yes, no := true, false
	attaches := facts{controller: map[csi.ControllerServiceCapability_RPC_Type]bool{csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME: true}}
	of := func(labels map[string]string, spec storagev1.CSIDriverSpec) *storagev1.CSIDriver {
		return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName, Labels: labels}, Spec: spec}
	}
	ours := map[string]string{managedByLabel: managedBy}
	for _, tc := range []struct {
		name      string
		nodeLocal bool
		facts     facts
		have      *storagev1.CSIDriver
		attach    *bool
		wrong     string
	}{
		{"made, nobody attaches", false, facts{}, nil, &no, ""},
		{"made, the driver attaches", false, attaches, nil, nil, ""},
		{"made, node-local", true, attaches, nil, &no, ""},
		{"there, and as it was made", false, facts{}, of(ours, storagev1.CSIDriverSpec{StorageCapacity: &yes, AttachRequired: &no}), &no, ""},
		{"there, and older", false, facts{}, of(ours, storagev1.CSIDriverSpec{AttachRequired: &yes, PodInfoOnMount: &yes}), &no, ""},
		{"somebody else's", false, facts{}, of(nil, storagev1.CSIDriverSpec{}), nil, "is somebody else's"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var objects []runtime.Object
			if tc.have != nil {
				objects = append(objects, tc.have)
			}
			d, cs, _ := objectsOf(t, describe(t, tc.nodeLocal), objects...)
			err := d.makeObjects(t.Context(), tc.facts)
			if (tc.wrong == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.wrong) {
				t.Fatalf("%v, want %q", err, tc.wrong)
			}
			if err != nil {
				return
			}
			got, err := cs.StorageV1().CSIDrivers().Get(t.Context(), driverName, metav1.GetOptions{})
			if err != nil || !isOurs(got) {
				t.Fatalf("%v, %v", got, err)
			}
			if s := got.Spec; s.StorageCapacity == nil || !*s.StorageCapacity || (s.AttachRequired == nil) != (tc.attach == nil) ||
				tc.attach != nil && *s.AttachRequired != *tc.attach {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestNodeLocalDriver: the CSIDriver says by which key volumes name their node, one of an older version as well.
func TestNodeLocalDriver(t *testing.T) {
	on := func(key, value string) facts {
		return facts{info: &csi.NodeGetInfoResponse{AccessibleTopology: &csi.Topology{Segments: map[string]string{"rack": "r7", key: value}}}}
	}
	older := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName, Labels: map[string]string{managedByLabel: managedBy}}}
	for _, tc := range []struct {
		name      string
		nodeLocal bool
		facts     facts
		have      []runtime.Object
		want      string
	}{
		{"made", true, on(topologyKey, "n1"), nil, topologyKey},
		{"there, of an older version", true, on(topologyKey, "n1"), []runtime.Object{older}, topologyKey},
		{"the node has another name in it", true, on(topologyKey, "id-1"), nil, ""},
		{"not node-local", false, on(topologyKey, "n1"), nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, cs, _ := objectsOf(t, describe(t, tc.nodeLocal), tc.have...)
			if err := d.makeObjects(t.Context(), tc.facts); err != nil {
				t.Fatal(err)
			}
			got, err := cs.StorageV1().CSIDrivers().Get(t.Context(), driverName, metav1.GetOptions{})
			if err != nil || got.Annotations[nodeLocalKey] != tc.want {
				t.Errorf("%v, %v", got.Annotations, err)
			}
		})
	}
}

// TestObjectsOnAgents: an agent makes no objects; it looks whether those of the server let it make volumes.
func TestObjectsOnAgents(t *testing.T) {
	driver := func(key string) runtime.Object {
		return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName, Annotations: map[string]string{nodeLocalKey: key}}}
	}
	here := func(value string) facts {
		return facts{info: &csi.NodeGetInfoResponse{AccessibleTopology: &csi.Topology{Segments: map[string]string{topologyKey: value}}}}
	}
	for _, tc := range []struct {
		name      string
		nodeLocal bool
		facts     facts
		have      runtime.Object
		wrong     string
	}{
		{"as the server made it", true, here("n1"), driver(topologyKey), ""},
		{"not node-local", false, facts{}, driver(""), ""},
		{"without the key", true, here("n1"), driver(""), "kubectl annotate csidriver test.example.com kubelith.io/node-local=topology.test.example.com/node"},
		{"another key", true, here("n1"), driver("kubernetes.io/hostname"), "does not let agents make its volumes"},
		{"the node has another name in it", true, here("id-1"), driver(topologyKey), "must be the node's name, n1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, cs, _ := objectsOf(t, describe(t, tc.nodeLocal, class("local", storagev1.VolumeBindingImmediate)), tc.have)
			d.Central = false
			err := d.makeObjects(t.Context(), tc.facts)
			if (tc.wrong == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.wrong) {
				t.Errorf("%v, want %q", err, tc.wrong)
			}
			for _, a := range cs.Actions() {
				if a.GetVerb() != "get" {
					t.Errorf("the agent writes: %v", a)
				}
			}
		})
	}
}

// TestDeclared: a server that runs no plugin makes the objects of the driver that agents run.
func TestDeclared(t *testing.T) {
	d, cs, _ := objectsOf(t, describe(t, true))
	d.Declared = []Declared{{Driver: &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName, Annotations: map[string]string{nodeLocalKey: topologyKey}}},
		Classes: []*storagev1.StorageClass{class("local", storagev1.VolumeBindingImmediate)}}}
	d.Log = d.log
	d.makeDeclared(t.Context(), d.Declared[0])
	driver, err := cs.StorageV1().CSIDrivers().Get(t.Context(), driverName, metav1.GetOptions{})
	if err != nil || !isOurs(driver) || driver.Annotations[nodeLocalKey] != topologyKey || driver.Spec.AttachRequired == nil || *driver.Spec.AttachRequired {
		t.Errorf("%+v, %v", driver, err)
	}
	if _, err := cs.StorageV1().StorageClasses().Get(t.Context(), "local", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// TestDriverObjectStays: what the API does not let change stays, and the operator hears of it.
func TestDriverObjectStays(t *testing.T) {
	have := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName, Labels: map[string]string{managedByLabel: managedBy}}}
	d, cs, lines := objectsOf(t, describe(t, false), have)
	cs.PrependReactor("update", "csidrivers", func(ktesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewInvalid(storagev1.SchemeGroupVersion.WithKind("CSIDriver").GroupKind(), driverName, nil)
	})
	if err := d.makeObjects(t.Context(), facts{}); err != nil {
		t.Error(err)
	}
	if e := lines.LastEntry(); e == nil || e.Level != logrus.WarnLevel || !strings.Contains(e.Message, "delete it to have it made anew") {
		t.Errorf("the log says %v", e)
	}
}

func TestClasses(t *testing.T) {
	standard := class("standard", storagev1.VolumeBindingImmediate)
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
		{"made", nil, true, driverName, 0, ""},
		{"made beside another default", []runtime.Object{other}, false, driverName, 0, "theirs is"},
		{"changed by a person", []runtime.Object{changed}, false, driverName, 1, ""},
		{"name taken", []runtime.Object{taken}, false, "x", 0, "is not made"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, cs, lines := objectsOf(t, describe(t, false, standard), tc.have...)
			if err := d.makeObjects(t.Context(), facts{}); err != nil {
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
