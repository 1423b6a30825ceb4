package storage

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/plugins/storage"
)

// TestAwaitDriver: no node creates objects; an agent checks whether those of the server let it create volumes, a server
// whether they are ours.
func TestAwaitDriver(t *testing.T) {
	driver := func(key string) *storagev1.CSIDriver {
		return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName, Annotations: map[string]string{names.NodeLocalAnnotation: key}}}
	}
	ours := driver("")
	ours.Labels = map[string]string{"app.kubernetes.io/managed-by": "kubelith"}
	here := func(value string) storage.Facts {
		return storage.Facts{Info: &csi.NodeGetInfoResponse{AccessibleTopology: &csi.Topology{Segments: map[string]string{topologyKey: value}}}}
	}
	for _, tc := range []struct {
		name      string
		agent     bool
		nodeLocal bool
		facts     storage.Facts
		have      runtime.Object
		wrong     string
	}{
		{"as the server made it", true, true, here("n1"), driver(topologyKey), ""},
		{"not node-local", true, false, storage.Facts{}, driver(""), ""},
		{"without the key", true, true, here("n1"), driver(""), "kubectl annotate csidriver test.example.com kubelith.io/node-local=topology.test.example.com/node"},
		{"another key", true, true, here("n1"), driver("kubernetes.io/hostname"), "does not let agents create its volumes"},
		{"the node has another name in it", true, true, here("id-1"), driver(topologyKey), "must be the node's name, n1"},
		{"on a server", false, true, here("id-1"), ours, ""},
		{"on a server, of another driver", false, true, here("n1"), driver(topologyKey), "belongs to another driver"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cs := fake.NewClientset(tc.have)
			h := &host{Options: Options{NodeName: "n1", Agent: tc.agent}, clients: storage.Clients{Client: cs}}
			d := storage.Declare(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}}, nil, tc.nodeLocal)
			err := h.awaitDriver(t.Context(), d, tc.facts)
			if (tc.wrong == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.wrong) {
				t.Errorf("%v, want %q", err, tc.wrong)
			}
			for _, a := range cs.Actions() {
				if a.GetVerb() != "get" {
					t.Errorf("the node writes: %v", a)
				}
			}
		})
	}
}

// TestLateDriver: a node waits for a CSIDriver that the server has not created yet.
func TestLateDriver(t *testing.T) {
	cs := fake.NewClientset()
	asked := make(chan struct{}, 100)
	cs.PrependReactor("get", "csidrivers", func(ktesting.Action) (bool, runtime.Object, error) {
		asked <- struct{}{}
		return false, nil, nil
	})
	h := &host{Options: Options{NodeName: "n1"}, clients: storage.Clients{Client: cs}}
	d := storage.Declare(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}}, nil, false)
	found := make(chan error, 1)
	go func() { found <- h.awaitDriver(t.Context(), d, storage.Facts{}) }()
	<-asked
	if _, err := cs.StorageV1().CSIDrivers().Create(t.Context(), d.Driver, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := <-found; err != nil {
		t.Error(err)
	}
}
