// Package storagetest has a CSI driver in memory and an API for it, for the tests of what makes plugins CSI drivers.
package storagetest

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"testing"

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

// The names of the driver and of its topology key, and a unit of sizes.
const (
	DriverName  = "test.example.com"
	TopologyKey = "topology.test.example.com/node"
	GiB         = 1 << 30
)

// Driver is a CSI driver that keeps its volumes in memory.
type Driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer

	// Name is what it calls itself, Node and Rack are its topology; empty: none. They are not changed while it serves.
	Name, Node, Rack string

	rpcs  []csi.ControllerServiceCapability_RPC_Type
	space int64

	mu        sync.Mutex
	volumes   map[string]int64 // size by name, which is the id
	published map[string]string
	made      []*csi.CreateVolumeRequest
}

// NewDriver returns one with these capabilities, and 100 GiB.
func NewDriver(node string, rpcs ...csi.ControllerServiceCapability_RPC_Type) *Driver {
	return &Driver{Name: DriverName, Node: node, rpcs: rpcs, space: 100 * GiB, volumes: map[string]int64{}, published: map[string]string{}}
}

// Register adds its services.
func (d *Driver) Register(s *grpc.Server) {
	csi.RegisterIdentityServer(s, d)
	csi.RegisterControllerServer(s, d)
	csi.RegisterNodeServer(s, d)
}

// Size of a volume; 0: there is none.
func (d *Driver) Size(name string) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.volumes[name]
}

// Made are the requests for volumes.
func (d *Driver) Made() []*csi.CreateVolumeRequest {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.made)
}

// Published is the node to which a volume is attached; empty: none.
func (d *Driver) Published(volume string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.published[volume]
}

// GetPluginInfo implements csi.IdentityServer.
func (d *Driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.Name, VendorVersion: "1"}, nil
}

// GetPluginCapabilities implements csi.IdentityServer.
func (d *Driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	types := []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE}
	if d.Node != "" {
		types = append(types, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
	}
	r := &csi.GetPluginCapabilitiesResponse{}
	for _, t := range types {
		r.Capabilities = append(r.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}}})
	}
	return r, nil
}

// ControllerGetCapabilities implements csi.ControllerServer.
func (d *Driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	r := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range d.rpcs {
		rpc := &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}}
		r.Capabilities = append(r.Capabilities, &csi.ControllerServiceCapability{Type: rpc})
	}
	return r, nil
}

// NodeGetInfo implements csi.NodeServer.
func (d *Driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "id-of-" + d.Node, AccessibleTopology: d.topology()}, nil
}

// NodeGetCapabilities implements csi.NodeServer.
func (d *Driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (d *Driver) topology() *csi.Topology {
	if d.Node == "" {
		return nil
	}
	segments := map[string]string{TopologyKey: d.Node}
	if d.Rack != "" {
		segments["topology.test.example.com/rack"] = d.Rack
	}
	return &csi.Topology{Segments: segments}
}

// CreateVolume implements csi.ControllerServer.
func (d *Driver) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
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

// DeleteVolume implements csi.ControllerServer.
func (d *Driver) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.volumes, r.GetVolumeId())
	return &csi.DeleteVolumeResponse{}, nil
}

// GetCapacity implements csi.ControllerServer.
func (d *Driver) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	left := d.space
	for _, size := range d.volumes {
		left -= size
	}
	return &csi.GetCapacityResponse{AvailableCapacity: left}, nil
}

// ControllerExpandVolume implements csi.ControllerServer.
func (d *Driver) ControllerExpandVolume(_ context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.volumes[r.GetVolumeId()] == 0 {
		return nil, status.Error(codes.NotFound, "no such volume")
	}
	d.volumes[r.GetVolumeId()] = r.GetCapacityRange().GetRequiredBytes()
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: r.GetCapacityRange().GetRequiredBytes()}, nil
}

// ControllerPublishVolume implements csi.ControllerServer.
func (d *Driver) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.published[r.GetVolumeId()] = r.GetNodeId()
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"device": "/dev/x"}}, nil
}

// ControllerUnpublishVolume implements csi.ControllerServer.
func (d *Driver) ControllerUnpublishVolume(_ context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.published, r.GetVolumeId())
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

// Describe returns the description of the driver.
func Describe(t *testing.T, nodeLocal bool, classes ...*storagev1.StorageClass) *pluginv1.Description {
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
		ObjectMeta: metav1.ObjectMeta{Name: DriverName}, Spec: storagev1.CSIDriverSpec{StorageCapacity: &capacity},
	})}
	for _, c := range classes {
		s.StorageClasses = append(s.StorageClasses, text(c))
	}
	return &pluginv1.Description{Kind: &pluginv1.Description_Storage{Storage: s}}
}

// Plugin is a plugin with a process that serves the driver.
func Plugin(t *testing.T, d *Driver, nodeLocal bool, classes ...*storagev1.StorageClass) *pluginstest.Plugin {
	t.Helper()
	p := Described(t, "p", nodeLocal, classes...)
	p.Serve(t, d.Register)
	return p
}

// Described is a plugin of which only its description is known.
func Described(t *testing.T, name string, nodeLocal bool, classes ...*storagev1.StorageClass) *pluginstest.Plugin {
	t.Helper()
	p := pluginstest.New(plugins.Storage, name, plugins.Settings{})
	p.SetDescription(Describe(t, nodeLocal, classes...))
	return p
}

// Class is a StorageClass of the driver, whose volumes may grow.
func Class(name string, mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
	expand := true
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: DriverName, VolumeBindingMode: &mode, AllowVolumeExpansion: &expand}
}
