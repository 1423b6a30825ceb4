package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
	storagev1 "k8s.io/api/storage/v1"

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// Storage is a storage plugin: a CSI driver. The host forwards the kubelet's calls to it, and does the work of the CSI
// sidecars: provisioning, deletion, expansion, attaching and capacity, each if the driver has the capability.
type Storage struct {
	// Version of the plugin, shown to the operator.
	Version string
	// CSIDriver tells Kubernetes how to treat the driver; its name is the driver's.
	CSIDriver *storagev1.CSIDriver
	// StorageClasses are created if they are missing. Their provisioner is the driver.
	StorageClasses []*storagev1.StorageClass
	// NodeLocal declares that volumes stay on the node that created them, and that each node provisions its own.
	NodeLocal bool

	// The services of the driver. Identity may be nil: then it is derived from the fields above. Controller may be nil.
	Identity   csi.IdentityServer
	Controller csi.ControllerServer
	Node       csi.NodeServer

	// Configure is called before the first call of a service, possibly more than once. It may change the objects above
	// through their pointers; an error refuses the plugin. May be nil.
	Configure func(Config) error
	// Metrics writes the plugin's own metrics as Prometheus text; nil: it has none.
	Metrics func(io.Writer) error
}

// ServeStorage serves the plugin until the host stops it. It must be the last call of main.
func ServeStorage(s Storage) { serve(s.Metrics, s.describe, s.register) }

func (s *Storage) describe(r *pluginv1.DescribeRequest) (*pluginv1.Description, error) {
	if s.CSIDriver == nil || s.Node == nil {
		return nil, errors.New("a storage plugin needs a CSIDriver and a Node service")
	}
	if s.Configure != nil {
		if err := s.Configure(configOf(r)); err != nil {
			return nil, err
		}
	}
	driver, err := json.Marshal(s.CSIDriver)
	if err != nil {
		return nil, fmt.Errorf("CSIDriver %s: %w", s.CSIDriver.Name, err)
	}
	d := &pluginv1.StorageDescription{CsiDriver: driver, NodeLocal: s.NodeLocal}
	for _, class := range s.StorageClasses {
		text, err := json.Marshal(class)
		if err != nil {
			return nil, fmt.Errorf("StorageClass %s: %w", class.Name, err)
		}
		d.StorageClasses = append(d.StorageClasses, text)
	}
	return &pluginv1.Description{Version: s.Version, Kind: &pluginv1.Description_Storage{Storage: d}}, nil
}

func (s *Storage) register(server grpc.ServiceRegistrar) {
	identity := s.Identity
	if identity == nil {
		identity = &storageIdentity{plugin: s}
	}
	csi.RegisterIdentityServer(server, identity)
	csi.RegisterNodeServer(server, s.Node)
	if s.Controller != nil {
		csi.RegisterControllerServer(server, s.Controller)
	}
}

// storageIdentity is the Identity service of a plugin that does not have its own.
type storageIdentity struct {
	csi.UnimplementedIdentityServer
	plugin *Storage
}

// GetPluginInfo implements csi.IdentityServer.
func (i *storageIdentity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	version := i.plugin.Version
	if version == "" {
		version = "unknown" // the CSI specification requires one
	}
	return &csi.GetPluginInfoResponse{Name: i.plugin.CSIDriver.Name, VendorVersion: version}, nil
}

// GetPluginCapabilities implements csi.IdentityServer.
func (i *storageIdentity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	var types []csi.PluginCapability_Service_Type
	if i.plugin.Controller != nil {
		types = append(types, csi.PluginCapability_Service_CONTROLLER_SERVICE)
	}
	if i.plugin.NodeLocal {
		types = append(types, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
	}
	r := &csi.GetPluginCapabilitiesResponse{}
	for _, t := range types {
		r.Capabilities = append(r.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}}})
	}
	return r, nil
}

// Probe implements csi.IdentityServer.
func (i *storageIdentity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}
