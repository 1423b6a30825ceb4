package storage

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/pluginstest"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

const (
	driverName  = "test.example.com"
	topologyKey = "topology.test.example.com/node"
	gib         = 1 << 30
)

// eventually waits until what f says is true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("did not happen: %s", what)
		}
	}
}

// fakeDriver is a CSI driver that keeps its volumes in memory.
type fakeDriver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer

	name  string
	node  string // of its topology; empty: none
	rack  string // of its topology too, when it is not empty
	rpcs  []csi.ControllerServiceCapability_RPC_Type
	space int64

	mu        sync.Mutex
	volumes   map[string]int64 // size by name, which is the id
	published map[string]string
	made      []*csi.CreateVolumeRequest
}

func newFakeDriver(node string, rpcs ...csi.ControllerServiceCapability_RPC_Type) *fakeDriver {
	return &fakeDriver{name: driverName, node: node, rpcs: rpcs, space: 100 * gib, volumes: map[string]int64{}, published: map[string]string{}}
}

func (d *fakeDriver) register(s *grpc.Server) {
	csi.RegisterIdentityServer(s, d)
	csi.RegisterControllerServer(s, d)
	csi.RegisterNodeServer(s, d)
}

// size of a volume; 0: there is none.
func (d *fakeDriver) size(name string) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.volumes[name]
}

func (d *fakeDriver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "1"}, nil
}

func (d *fakeDriver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	types := []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE}
	if d.node != "" {
		types = append(types, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
	}
	r := &csi.GetPluginCapabilitiesResponse{}
	for _, t := range types {
		r.Capabilities = append(r.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}}})
	}
	return r, nil
}

func (d *fakeDriver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	r := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range d.rpcs {
		r.Capabilities = append(r.Capabilities, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}}})
	}
	return r, nil
}

func (d *fakeDriver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "id-of-" + d.node, AccessibleTopology: d.topology()}, nil
}

func (d *fakeDriver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (d *fakeDriver) topology() *csi.Topology {
	if d.node == "" {
		return nil
	}
	segments := map[string]string{topologyKey: d.node}
	if d.rack != "" {
		segments["topology.test.example.com/rack"] = d.rack
	}
	return &csi.Topology{Segments: segments}
}

func (d *fakeDriver) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.made = append(d.made, r)
	size := r.GetCapacityRange().GetRequiredBytes()
	d.volumes[r.GetName()] = size
	v := &csi.Volume{VolumeId: r.GetName(), CapacityBytes: size}
	if t := d.topology(); t != nil {
		v.AccessibleTopology = []*csi.Topology{t}
	}
	return &csi.CreateVolumeResponse{Volume: v}, nil
}

func (d *fakeDriver) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.volumes, r.GetVolumeId())
	return &csi.DeleteVolumeResponse{}, nil
}

func (d *fakeDriver) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	left := d.space
	for _, size := range d.volumes {
		left -= size
	}
	return &csi.GetCapacityResponse{AvailableCapacity: left}, nil
}

func (d *fakeDriver) ControllerExpandVolume(_ context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.volumes[r.GetVolumeId()] == 0 {
		return nil, status.Error(codes.NotFound, "no such volume")
	}
	d.volumes[r.GetVolumeId()] = r.GetCapacityRange().GetRequiredBytes()
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: r.GetCapacityRange().GetRequiredBytes()}, nil
}

func (d *fakeDriver) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.published[r.GetVolumeId()] = r.GetNodeId()
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"device": "/dev/x"}}, nil
}

func (d *fakeDriver) ControllerUnpublishVolume(_ context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.published, r.GetVolumeId())
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

// describe makes the description of the driver.
func describe(t *testing.T, nodeLocal bool, classes ...*storagev1.StorageClass) *pluginv1.Description {
	t.Helper()
	capacity := true
	text := func(o any) []byte {
		b, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	s := &pluginv1.StorageDescription{NodeLocal: nodeLocal, CsiDriver: text(&storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{StorageCapacity: &capacity},
	})}
	for _, c := range classes {
		s.StorageClasses = append(s.StorageClasses, text(c))
	}
	return &pluginv1.Description{Kind: &pluginv1.Description_Storage{Storage: s}}
}

// described is a plugin of which only its description is known.
func described(t *testing.T, name string, nodeLocal bool, classes ...*storagev1.StorageClass) *pluginstest.Plugin {
	t.Helper()
	p := pluginstest.New(plugins.Storage, name, plugins.Settings{})
	p.SetDescription(describe(t, nodeLocal, classes...))
	return p
}

func class(name string, mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
	expand := true
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: driverName, VolumeBindingMode: &mode, AllowVolumeExpansion: &expand}
}
