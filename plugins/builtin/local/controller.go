package local

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Parameters that the provisioner adds to those of the StorageClass, for information.
const (
	parameterPrefix    = "csi.storage.k8s.io/"
	parameterNamespace = parameterPrefix + "pvc/namespace"
	parameterClaim     = parameterPrefix + "pvc/name"
	parameterVolume    = parameterPrefix + "pv/name"
)

// parameterEnforcement is the only parameter of a StorageClass: how the size of a volume is enforced.
const parameterEnforcement = "enforcement"

// ControllerGetCapabilities implements csi.ControllerServer.
func (d *Driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	r := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		r.Capabilities = append(r.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}},
		})
	}
	return r, nil
}

// CreateVolume implements csi.ControllerServer.
func (d *Driver) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	n, err := d.node()
	if err != nil {
		return nil, err
	}
	want, err := wanted(r)
	if err != nil {
		return nil, invalid("%s", err)
	}
	if !n.reachable(r.GetAccessibilityRequirements()) {
		return nil, status.Errorf(codes.ResourceExhausted, "the volume is requested on other nodes than %s", n.name)
	}
	v, err := n.store.create(ctx, want, sizesOf(r.GetCapacityRange()))
	if err != nil {
		return nil, answer(fmt.Errorf("create volume %s: %w", r.GetName(), err))
	}
	return &csi.CreateVolumeResponse{Volume: n.describe(v)}, nil
}

// wanted returns the volume that a request describes, without its size.
func wanted(r *csi.CreateVolumeRequest) (*volume, error) {
	name := r.GetName()
	switch {
	case name == "":
		return nil, fmt.Errorf("name is missing")
	case len(name) > maxNameSize:
		return nil, fmt.Errorf("name has %d bytes, at most %d are allowed", len(name), maxNameSize)
	case r.GetVolumeContentSource() != nil:
		return nil, fmt.Errorf("a local volume cannot be created from a snapshot or another volume: leave out dataSource")
	case len(r.GetMutableParameters()) > 0:
		return nil, fmt.Errorf("local volumes have no attributes: leave out the VolumeAttributesClass")
	}
	for p := range r.GetParameters() {
		if !strings.HasPrefix(p, parameterPrefix) && p != parameterEnforcement {
			return nil, fmt.Errorf("parameter %q of the StorageClass: local volumes have only %s", p, parameterEnforcement)
		}
	}
	enforcement, err := enforcementOf(r.GetParameters()[parameterEnforcement])
	if err != nil {
		return nil, err
	}
	m, err := modeOf(r.GetVolumeCapabilities())
	if err != nil {
		return nil, err
	}
	v := &volume{ID: idOf(name), Name: name, Mode: m, Enforcement: enforcement, Created: time.Now().UTC().Truncate(time.Second)}
	if claim := r.GetParameters()[parameterClaim]; claim != "" {
		v.Claim = r.GetParameters()[parameterNamespace] + "/" + claim
	}
	v.Volume = r.GetParameters()[parameterVolume]
	return v, nil
}

func sizesOf(r *csi.CapacityRange) sizes {
	return sizes{min: r.GetRequiredBytes(), max: r.GetLimitBytes()}
}

// reachable reports whether a volume on this node fulfils the requirement.
func (n *node) reachable(r *csi.TopologyRequirement) bool {
	for _, t := range r.GetRequisite() {
		if n.is(t) {
			return true
		}
	}
	return len(r.GetRequisite()) == 0
}

func (n *node) is(t *csi.Topology) bool {
	name, ok := t.GetSegments()[topologyKey]
	return !ok || name == n.name
}

func (n *node) topology() *csi.Topology {
	return &csi.Topology{Segments: map[string]string{topologyKey: n.name}}
}

func (n *node) describe(v *volume) *csi.Volume {
	return &csi.Volume{VolumeId: v.ID, CapacityBytes: v.Size, AccessibleTopology: []*csi.Topology{n.topology()}}
}

// DeleteVolume implements csi.ControllerServer.
func (d *Driver) DeleteVolume(ctx context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	n, err := d.node()
	if err == nil {
		err = missing("volume id", r.GetVolumeId())
	}
	if err != nil {
		return nil, err
	}
	if !safeID.MatchString(r.GetVolumeId()) { // no volume has such an id
		return &csi.DeleteVolumeResponse{}, nil
	}
	if err := n.store.remove(ctx, r.GetVolumeId()); err != nil {
		return nil, answer(fmt.Errorf("delete volume %s: %w", r.GetVolumeId(), err))
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// ControllerExpandVolume implements csi.ControllerServer. It does all the work except for images: NodeExpandVolume
// grows the loop device and the file system in it.
func (d *Driver) ControllerExpandVolume(ctx context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	n, err := d.node()
	if err == nil {
		err = missing("volume id", r.GetVolumeId())
	}
	if err == nil && r.GetCapacityRange() == nil {
		err = invalid("capacity range is missing")
	}
	if err != nil {
		return nil, err
	}
	v, err := n.store.expand(ctx, r.GetVolumeId(), sizesOf(r.GetCapacityRange()))
	if err != nil {
		return nil, answer(fmt.Errorf("expand volume %s: %w", r.GetVolumeId(), err))
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.Size, NodeExpansionRequired: v.Mode == block || v.Enforcement == file}, nil
}

// ValidateVolumeCapabilities implements csi.ControllerServer.
func (d *Driver) ValidateVolumeCapabilities(_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	n, err := d.node()
	if err == nil {
		err = missing("volume id", r.GetVolumeId())
	}
	if err == nil && len(r.GetVolumeCapabilities()) == 0 {
		err = invalid("volume capabilities are missing")
	}
	if err != nil {
		return nil, err
	}
	v, err := n.store.get(r.GetVolumeId())
	if err != nil {
		return nil, answer(fmt.Errorf("volume %s: %w", r.GetVolumeId(), err))
	}
	if m, err := modeOf(r.GetVolumeCapabilities()); err != nil || m != v.Mode {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: fmt.Sprintf("volume %s is a %s volume of one node", v.ID, v.Mode)}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(), Parameters: r.GetParameters(),
	}}, nil
}

// ListVolumes implements csi.ControllerServer.
func (d *Driver) ListVolumes(_ context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	n, err := d.node()
	if err != nil {
		return nil, err
	}
	if r.GetMaxEntries() < 0 {
		return nil, invalid("max entries is %d", r.GetMaxEntries())
	}
	all, err := n.store.list()
	if err != nil {
		return nil, answer(err)
	}
	all, next, err := page(all, r.GetStartingToken(), int(r.GetMaxEntries()))
	if err != nil {
		return nil, status.Error(codes.Aborted, err.Error())
	}
	list := &csi.ListVolumesResponse{NextToken: next}
	for _, v := range all {
		list.Entries = append(list.Entries, &csi.ListVolumesResponse_Entry{Volume: n.describe(v)})
	}
	return list, nil
}

// GetCapacity implements csi.ControllerServer.
func (d *Driver) GetCapacity(_ context.Context, r *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	n, err := d.node()
	if err != nil {
		return nil, err
	}
	m := filesystem
	if len(r.GetVolumeCapabilities()) > 0 {
		if m, err = modeOf(r.GetVolumeCapabilities()); err != nil {
			return &csi.GetCapacityResponse{}, nil // no capacity for volumes that it cannot create
		}
	}
	asked, err := enforcementOf(r.GetParameters()[parameterEnforcement])
	if err != nil {
		return nil, invalid("%s", err)
	}
	if t := r.GetAccessibleTopology(); t != nil && !n.is(t) {
		return &csi.GetCapacityResponse{}, nil
	}
	free, err := n.store.free()
	if err != nil {
		return nil, answer(err)
	}
	// A node that cannot enforce sizes reports that in CreateVolume. Without capacity, the scheduler would say "not
	// enough space", which hides the cause.
	e, _ := n.store.enforcement(asked, m)
	largest := free.largest(e)
	return &csi.GetCapacityResponse{AvailableCapacity: largest, MaximumVolumeSize: wrapperspb.Int64(largest)}, nil
}
