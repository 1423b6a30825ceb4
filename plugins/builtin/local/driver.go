// Package local is the storage driver that comes with Kubelith: a volume is a directory of the node under a project quota, a file
// system of its own in a file, or an image behind a loop device for pods that want a block device (enforce.go).
//
// It is an ordinary plugin: a CSI driver that knows nothing of Kubernetes' API. Claims, PersistentVolumes and their
// retries are the host's (plugins/storage), mounting into pods and fsGroup the kubelet's. cmd/ makes a program of it.
//
// All that it remembers is in its directory, so that a process may be killed at any moment and another
// one may run beside it while it is replaced:
//
//	<dir>/lock                    held while the set of volumes or a promise changes
//	<dir>/volumes/<id>/meta.json  what was promised; the directory is locked while the volume is mounted or removed
//	                  /data       what pods see; of a file system in a file a link to it, while it is mounted
//	                  /image      of a block device, or with a file system whose directory data is what pods see
//	<dir>/new/                    volumes that have no name yet
//	<dir>/trash/                  volumes that were deleted and wait to be removed
package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/hashicorp/go-hclog"
)

// Name of the driver: the provisioner of its StorageClass.
const Name = "local.kubelith.io"

// Version of the driver, for the operator. Volumes have a version of their own.
const Version = "1.1.0"

// topologyKey is the label that leads a pod to the node of its volume.
const topologyKey = "topology." + Name + "/node"

// Driver serves csi.v1. It answers UNAVAILABLE until Open.
type Driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer

	opened atomic.Pointer[node]
}

var (
	_ csi.IdentityServer   = (*Driver)(nil)
	_ csi.ControllerServer = (*Driver)(nil)
	_ csi.NodeServer       = (*Driver)(nil)
)

// node is a driver that knows where it runs.
type node struct {
	name  string
	store *store
}

// New driver.
func New() *Driver { return &Driver{} }

// Config is the plugin's `config:`.
type Config struct {
	// Path of the directory for volumes, instead of the plugin's own: a file system of their own, for example.
	Path string `json:"path,omitempty"`
	// Capacity is how many bytes all volumes together may promise; empty: what the file system has.
	Capacity *resource.Quantity `json:"capacity,omitempty"`
}

// Open makes the driver serve the volumes in the configured directory, or in dir.
func (d *Driver) Open(nodeName, dir string, c Config, log hclog.Logger) error {
	if nodeName == "" {
		return errors.New("the node has no name")
	}
	own := dir // below the data directory
	if c.Path != "" {
		dir = c.Path
	}
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("config: path %q is not absolute", dir)
	}
	limit := int64(0)
	if c.Capacity != nil {
		if limit = c.Capacity.Value(); limit <= 0 {
			return fmt.Errorf("config: capacity %s is not above zero", c.Capacity)
		}
	}
	s, err := openStore(filepath.Clean(dir), limit, log)
	if err != nil {
		return err
	}
	if s.shared, err = sameDisk(s.dir, filepath.Dir(own)); err != nil {
		return err
	}
	d.opened.Store(&node{name: nodeName, store: s})
	return nil
}

// sameDisk reports whether two directories are on one file system.
func sameDisk(a, b string) (bool, error) {
	var one, other unix.Stat_t
	if err := unix.Stat(a, &one); err != nil {
		return false, &os.PathError{Op: "stat", Path: a, Err: err}
	}
	if err := unix.Stat(b, &other); err != nil {
		return false, &os.PathError{Op: "stat", Path: b, Err: err}
	}
	return one.Dev == other.Dev, nil
}

// node of an opened driver.
func (d *Driver) node() (*node, error) {
	if n := d.opened.Load(); n != nil {
		return n, nil
	}
	return nil, status.Error(codes.Unavailable, "not configured yet")
}

// GetPluginInfo implements csi.IdentityServer.
func (d *Driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: Name, VendorVersion: Version}, nil
}

// GetPluginCapabilities implements csi.IdentityServer.
func (d *Driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	service := func(t csi.PluginCapability_Service_Type) *csi.PluginCapability {
		return &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}}}
	}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		service(csi.PluginCapability_Service_CONTROLLER_SERVICE),
		service(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS),
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{
			Type: csi.PluginCapability_VolumeExpansion_ONLINE,
		}}},
	}}, nil
}

// Probe implements csi.IdentityServer: ready when the directory can be read.
func (d *Driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	n, err := d.node()
	if err != nil {
		return &csi.ProbeResponse{Ready: wrapperspb.Bool(false)}, nil
	}
	if _, err := n.store.free(); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}
