// Package driver is the CSI driver fuse.kubelith.io: volumes whose files are objects of a store, served by a FUSE
// client per volume and node (package client).
//
//	controller.go  volumes in the store: create, expand, delete; who uses which
//	pods.go        client pods, one per volume and node
//	node.go        mounts, for the kubelet
//	mount.go       keeps one mount alive: a client serves it, whatever dies
//	sidecar.go     clients in the pods that use a volume: their connection to the driver
//	inpod.go       the volumes of such a pod
//
// All state of the node is in two directories, so that a process may be killed at any moment, and another may run at
// the same time during a replacement:
//
//	<data dir>/mounts/<mount>.json   a mount, and where pods see it
//	<clients>/<volume>/              directory of a client: its socket, and what it has not uploaded
//	<data dir>/pods/<pod>.json       a pod with a sidecar
//	<clients>/_pods/<pod>/run/       the driver's sockets, which the sidecar has read-only
package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/plugins/examples/fuse/store"
)

// Name of the driver: the provisioner of StorageClasses.
const Name = "fuse.kubelith.io"

// Version of the driver, for the operator.
const Version = "1.0.0"

// mode is where the client of a volume runs.
type mode string

const (
	process  mode = "process"  // beside the plugin
	mountPod mode = "mountpod" // in its own pod
	inPod    mode = "sidecar"  // in the pod that uses the volume
)

// Parameters of a StorageClass, and attributes of a volume.
const (
	parameterMode = "mode"
	// attributePath is the prefix of a static volume's objects; with it a volume needs no record.
	attributePath = "path"
	// attributeCapacity is the capacity of a static volume.
	attributeCapacity = "capacity"
)

func modeOf(attributes map[string]string) (mode, error) {
	switch m := mode(attributes[parameterMode]); m {
	case "":
		return mountPod, nil
	case process, mountPod, inPod:
		return m, nil
	default:
		return "", fmt.Errorf("unknown mode %q: use mountpod, process or sidecar", m)
	}
}

// IsSidecar reports whether the parameters of a StorageClass, or the attributes of a volume, have the mode sidecar.
func IsSidecar(attributes map[string]string) bool { return attributes[parameterMode] == string(inPod) }

// defaultClients is the directory of the clients' directories.
const defaultClients = "/var/lib/kubelith-fuse"

// Config is the plugin's `config:`.
type Config struct {
	// Store of volumes whose StorageClass has no Secret.
	Store *store.Config `json:"store,omitempty"`
	// Image of client pods. It has the plugin's program as /fuse.
	Image string `json:"image,omitempty"`
	// Namespace of client pods.
	Namespace string `json:"namespace,omitempty"`
	// Clients is the directory of the clients' directories, the same on all nodes.
	Clients string `json:"clients,omitempty"`
}

// Driver serves csi.v1. It answers UNAVAILABLE until Open.
type Driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer

	opened  atomic.Pointer[node]
	opening sync.Mutex
}

var (
	_ csi.IdentityServer   = (*Driver)(nil)
	_ csi.ControllerServer = (*Driver)(nil)
	_ csi.NodeServer       = (*Driver)(nil)
)

// node is an opened driver.
type node struct {
	name    string
	config  Config
	dir     string // of mounts
	pods    *pods  // nil: this node cannot create any
	log     hclog.Logger
	program []string // that is the client

	volumes sync.Mutex // held while volumes of the store change

	mu       sync.Mutex
	attached map[[2]string]bool // volume and node: read-only
	mounts   map[string]*mount
	sidecars map[string]*sidecar // by pod
	shares   map[string]*share   // by volume
	locks    map[string]chan struct{}
}

// New returns a driver. Open opens it.
func New() *Driver { return &Driver{} }

// Options of Open. Name, Dir and Log are required.
type Options struct {
	Name string // of the node
	Dir  string // of the plugin
	Config
	// Pods creates client pods; nil: this node cannot.
	Pods PodClient
	// Program is the command that is a client, in the mode process; nil: this executable.
	Program []string
	Log     hclog.Logger
}

// Open makes the driver serve, and continues with the mounts that are there. A second call changes nothing.
func (d *Driver) Open(o Options) error {
	d.opening.Lock()
	defer d.opening.Unlock()
	if d.opened.Load() != nil {
		return nil
	}
	if o.Name == "" {
		return errors.New("the node has no name")
	}
	if o.Clients == "" {
		o.Clients = defaultClients
	}
	if o.Namespace == "" {
		o.Namespace = defaultNamespace
	}
	if o.Image == "" {
		o.Image = Image
	}
	if !filepath.IsAbs(o.Clients) {
		return fmt.Errorf("config: clients %q is not absolute", o.Clients)
	}
	if o.Store != nil {
		if err := o.Store.Validate(); err != nil {
			return fmt.Errorf("config: %w", err)
		}
	}
	if o.Program == nil {
		o.Program = []string{"/proc/self/exe"}
	}
	n := &node{name: o.Name, config: o.Config, dir: filepath.Join(o.Dir, "mounts"), log: o.Log, program: o.Program,
		attached: map[[2]string]bool{}, mounts: map[string]*mount{}, sidecars: map[string]*sidecar{}, shares: map[string]*share{}, locks: map[string]chan struct{}{}}
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		return err
	}
	if err := n.resume(); err != nil {
		return err
	}
	if err := n.resumeSidecars(); err != nil {
		return err
	}
	if o.Pods != nil {
		n.pods = newPods(o.Pods, o.Config, o.Log)
		go n.pods.run(context.Background()) // as long as the process
	}
	d.opened.Store(n)
	return nil
}

// Close ends what Open has started, for tests. Mounts stay, without clients of the mode process.
func (d *Driver) Close() {
	n := d.opened.Swap(nil)
	if n == nil {
		return
	}
	n.mu.Lock()
	all := make([]*mount, 0, len(n.mounts))
	for _, m := range n.mounts {
		all = append(all, m)
	}
	var sidecars []*sidecar
	for _, s := range n.sidecars {
		sidecars = append(sidecars, s)
	}
	n.mu.Unlock()
	for _, s := range sidecars {
		s.end()
	}
	for _, m := range all {
		m.end()
	}
}

// node returns the opened driver; the error is UNAVAILABLE before Open.
func (d *Driver) node() (*node, error) {
	if n := d.opened.Load(); n != nil {
		return n, nil
	}
	return nil, status.Error(codes.Unavailable, "not configured yet")
}

// lock a name, against other calls, until unlock.
func (n *node) lock(ctx context.Context, name string) (unlock func(), err error) {
	n.mu.Lock()
	if n.locks[name] == nil {
		n.locks[name] = make(chan struct{}, 1)
	}
	l := n.locks[name]
	n.mu.Unlock()
	select {
	case l <- struct{}{}:
		return func() { <-l }, nil
	case <-ctx.Done():
		return nil, status.Errorf(codes.Aborted, "another call works on %s", name)
	}
}

// storeOf returns the store of a call: its Secret's, or the plugin's.
func (n *node) storeOf(secrets map[string]string) (store.Config, error) {
	if len(secrets) > 0 {
		c, err := store.FromSecret(secrets)
		if err != nil {
			return store.Config{}, invalid("%s", err)
		}
		return c, nil
	}
	if n.config.Store == nil {
		return store.Config{}, status.Error(codes.FailedPrecondition,
			"no store: name a Secret in the StorageClass (csi.storage.k8s.io/...-secret-name), or a store in config: of the plugin")
	}
	return *n.config.Store, nil
}

// GetPluginInfo implements csi.IdentityServer.
func (d *Driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: Name, VendorVersion: Version}, nil
}

// GetPluginCapabilities implements csi.IdentityServer.
func (d *Driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}}},
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{
			Type: csi.PluginCapability_VolumeExpansion_ONLINE,
		}}},
	}}, nil
}

// Probe implements csi.IdentityServer.
func (d *Driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(d.opened.Load() != nil)}, nil
}

// CSIDriver tells Kubernetes how to treat the driver.
func CSIDriver() *storagev1.CSIDriver {
	// Attaching creates the client pod. The kubelet does not change the owner of files: in a store that is a copy of
	// each. The inline volume of a sidecar needs to know its pod.
	attach, podInfo, policy := true, true, storagev1.NoneFSGroupPolicy
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: Name},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired: &attach, PodInfoOnMount: &podInfo, FSGroupPolicy: &policy,
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral},
		},
	}
}

// retryLater is how long a call waits for what another process does before it returns the reason; Kubernetes calls
// again.
const retryLater = 20 * time.Second
