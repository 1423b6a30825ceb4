// Package local is the storage driver that comes with Kubelith. A volume is a directory of the node under a project
// quota, a file system in a file, or an image behind a loop device for pods that request a block device (enforce.go).
//
// It is an ordinary plugin: a CSI driver that knows nothing of Kubernetes' API. Claims, PersistentVolumes and their
// retries belong to plugins/storage, mounting into pods and fsGroup to the kubelet. cmd/ is the program.
//
// All its state is in its directory, so that a process may be killed at any moment, and another may run at the same
// time during a replacement:
//
//	<dir>/lock                    held while the set of volumes or the size of one changes
//	<dir>/volumes/<id>/meta.json  name, size and mode; the directory is locked while the volume is mounted or removed
//	                  /data       what pods see; for a file system in a file, a link to its mount
//	                  /image      of a block device, or with a file system; pods see its directory data
//	<dir>/new/                    volumes being created
//	<dir>/trash/                  deleted volumes to be removed
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

// Version of the driver, for the operator. Volumes have their own version.
const Version = "1.1.0"

// topologyKey is the label by which the scheduler finds the node of a volume.
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

// node is an opened driver.
type node struct {
	name  string
	store *store
}

// New returns a driver. Open opens it.
func New() *Driver { return &Driver{} }

// Config is the plugin's `config:`.
type Config struct {
	// Path of the directory for volumes, such as a separate file system; empty: the plugin's own directory.
	Path string `json:"path,omitempty"`
	// Capacity is the maximum total size of all volumes; empty: that of the file system.
	Capacity *resource.Quantity `json:"capacity,omitempty"`
}

// Open makes the driver serve the volumes in the configured directory, by default dir.
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
			return fmt.Errorf("config: capacity %s is not greater than zero", c.Capacity)
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

// node returns the opened driver; the error is UNAVAILABLE before Open.
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

// Probe implements csi.IdentityServer. The driver is ready if its directory can be read.
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
