package local

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/resource"
)

func newDriver(t *testing.T) *Driver {
	t.Helper()
	d := New()
	if err := d.Open("node-a", t.TempDir(), Config{}, hclog.NewNullLogger()); err != nil {
		t.Fatal(err)
	}
	return d
}

// request for a volume, as the provisioner sends it.
func request() *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name:          "pvc-1",
		CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 20},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		}},
		Parameters: map[string]string{parameterClaim: "data", parameterNamespace: "shop", parameterEnforcement: "none"},
	}
}

func TestCreateVolumeRefusals(t *testing.T) {
	d := newDriver(t)
	on := func(key, node string) *csi.TopologyRequirement {
		return &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{key: node}}}}
	}
	for _, tc := range []struct {
		name   string
		change func(*csi.CreateVolumeRequest)
		code   codes.Code
	}{
		{"as the provisioner asks", func(*csi.CreateVolumeRequest) {}, codes.OK},
		{"on this node", func(r *csi.CreateVolumeRequest) { r.AccessibilityRequirements = on(topologyKey, "node-a") }, codes.OK},
		{"by the labels of another driver", func(r *csi.CreateVolumeRequest) { r.AccessibilityRequirements = on("zone", "1") }, codes.OK},
		{"on another node", func(r *csi.CreateVolumeRequest) { r.AccessibilityRequirements = on(topologyKey, "node-b") }, codes.ResourceExhausted},
		{"for several nodes", func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities[0].AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
		}, codes.InvalidArgument},
		{"a parameter that does nothing", func(r *csi.CreateVolumeRequest) { r.Parameters["type"] = "fast" }, codes.InvalidArgument},
		{"an enforcement that is none", func(r *csi.CreateVolumeRequest) { r.Parameters[parameterEnforcement] = "hard" }, codes.InvalidArgument},
		{"an option that does nothing", func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities[0].GetMount().MountFlags = []string{"discard"}
		}, codes.InvalidArgument},
		{"a copy", func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = &csi.VolumeContentSource{} }, codes.InvalidArgument},
		{"more than there is", func(r *csi.CreateVolumeRequest) { r.Name, r.CapacityRange.RequiredBytes = "big", 1<<60 }, codes.ResourceExhausted},
		{"a range that is none", func(r *csi.CreateVolumeRequest) { r.CapacityRange.LimitBytes = 1 }, codes.OutOfRange},
		{"a long name", func(r *csi.CreateVolumeRequest) { r.Name = strings.Repeat("a", 129) }, codes.InvalidArgument},
	} {
		r := request()
		tc.change(r)
		got, err := d.CreateVolume(t.Context(), r)
		if status.Code(err) != tc.code {
			t.Errorf("%s: %v", tc.name, err)
		}
		if err == nil && got.GetVolume().GetAccessibleTopology()[0].GetSegments()[topologyKey] != "node-a" {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
	n, _ := d.node()
	if v, err := n.store.get("pvc-1"); err != nil || v.Claim != "shop/data" {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestCapacityOfOthers(t *testing.T) {
	d := newDriver(t)
	for node, some := range map[string]bool{"node-a": true, "node-b": false} {
		r, err := d.GetCapacity(t.Context(), &csi.GetCapacityRequest{AccessibleTopology: &csi.Topology{Segments: map[string]string{topologyKey: node}}})
		if err != nil || (r.GetAvailableCapacity() > 0) != some {
			t.Errorf("%s: %v, %v", node, r, err)
		}
	}
}

func TestOpen(t *testing.T) {
	none := resource.MustParse("0")
	for _, tc := range []struct {
		name   string
		node   string
		config Config
		says   string
	}{
		{"no node", "", Config{}, "no name"},
		{"relative", "a", Config{Path: "volumes"}, "not absolute"},
		{"no capacity", "a", Config{Capacity: &none}, "not greater than zero"},
	} {
		d := New()
		if err := d.Open(tc.node, t.TempDir(), tc.config, hclog.NewNullLogger()); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", tc.name, err)
		}
		if _, err := d.CreateVolume(t.Context(), request()); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: it serves: %v", tc.name, err)
		}
	}
}
