package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubelith.io/kubelith/plugins/examples/fuse/store"
)

// defaultSize of a volume without one.
const defaultSize = 1 << 30

// ControllerGetCapabilities implements csi.ControllerServer.
func (d *Driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	r := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		r.Capabilities = append(r.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}},
		})
	}
	return r, nil
}

// capable returns an error if a volume cannot be used as the capabilities say. All access modes are possible.
func capable(all ...*csi.VolumeCapability) error {
	if len(all) == 0 {
		return invalid("volume capabilities are missing")
	}
	for _, c := range all {
		if c == nil || c.GetMount() == nil && c.GetBlock() == nil {
			return invalid("volume capability is missing")
		}
		if c.GetBlock() != nil {
			return invalid("volumeMode: Block is not possible: the volume is files")
		}
		if _, err := optionsOf(c.GetMount().GetMountFlags()); err != nil {
			return invalid("%s", err)
		}
	}
	return nil
}

// CreateVolume implements csi.ControllerServer.
func (d *Driver) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	n, err := d.node()
	if err == nil {
		err = missing("name", r.GetName())
	}
	if err == nil {
		err = capable(r.GetVolumeCapabilities()...)
	}
	if err == nil && r.GetVolumeContentSource() != nil {
		err = invalid("snapshots and clones are not possible")
	}
	if err != nil {
		return nil, err
	}
	for key := range r.GetParameters() {
		if key != parameterMode && !strings.HasPrefix(key, "csi.storage.k8s.io/") {
			return nil, invalid("unknown parameter %q of the StorageClass: there is mode", key)
		}
	}
	m, err := modeOf(r.GetParameters())
	if err != nil {
		return nil, invalid("%s", err)
	}
	size := r.GetCapacityRange().GetRequiredBytes()
	limit := r.GetCapacityRange().GetLimitBytes()
	if size == 0 {
		if size = defaultSize; limit > 0 {
			size = min(size, limit)
		}
	}
	if size < 0 || limit < 0 || limit > 0 && size > limit {
		return nil, status.Errorf(codes.OutOfRange, "the size %d is not possible", size)
	}
	c, err := n.storeOf(r.GetSecrets())
	if err != nil {
		return nil, err
	}
	n.volumes.Lock()
	defer n.volumes.Unlock()
	id := idOf(r.GetName())
	v, err := readVolume(ctx, c, id)
	switch {
	case err == nil && (v.Size < size || limit > 0 && v.Size > limit || v.Mode != m || v.Name != r.GetName()):
		return nil, status.Errorf(codes.AlreadyExists, "volume %s exists with %d bytes and mode %s", id, v.Size, v.Mode)
	case errors.Is(err, store.ErrNotExist):
		v = &volume{Name: r.GetName(), Size: size, Mode: m}
		err = n.check(ctx, c)
		if err == nil {
			err = writeVolume(ctx, c, id, v)
		}
	}
	if err != nil {
		return nil, answer(fmt.Errorf("create volume %s: %w", id, err))
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId: id, CapacityBytes: v.Size, VolumeContext: map[string]string{parameterMode: string(v.Mode)},
	}}, nil
}

// check returns the reason if a store cannot be used.
func (n *node) check(ctx context.Context, c store.Config) error {
	s, err := store.Open(c)
	if err != nil {
		return err
	}
	return s.Check(ctx)
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
	c, err := n.storeOf(r.GetSecrets())
	if err != nil {
		return nil, err
	}
	n.volumes.Lock()
	defer n.volumes.Unlock()
	_, err = readVolume(ctx, c, r.GetVolumeId())
	if errors.Is(err, store.ErrNotExist) {
		return &csi.DeleteVolumeResponse{}, nil
	}
	if err == nil {
		err = deleteVolume(ctx, c, r.GetVolumeId())
	}
	if err != nil {
		return nil, answer(fmt.Errorf("delete volume %s: %w", r.GetVolumeId(), err))
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// ValidateVolumeCapabilities implements csi.ControllerServer.
func (d *Driver) ValidateVolumeCapabilities(ctx context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
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
	c, err := n.storeOf(r.GetSecrets())
	if err != nil {
		return nil, err
	}
	if _, _, err := configOf(ctx, c, r.GetVolumeId(), r.GetVolumeContext()); err != nil {
		return nil, answer(err)
	}
	if err := capable(r.GetVolumeCapabilities()...); err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: err.Error()}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(), Parameters: r.GetParameters(),
	}}, nil
}

// ControllerExpandVolume implements csi.ControllerServer.
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
	c, err := n.storeOf(r.GetSecrets())
	if err != nil {
		return nil, err
	}
	n.volumes.Lock()
	defer n.volumes.Unlock()
	v, err := readVolume(ctx, c, r.GetVolumeId())
	if err != nil {
		return nil, answer(err)
	}
	size := r.GetCapacityRange().GetRequiredBytes()
	if limit := r.GetCapacityRange().GetLimitBytes(); limit > 0 && max(size, v.Size) > limit {
		return nil, status.Errorf(codes.OutOfRange, "volume %s has %d bytes", r.GetVolumeId(), v.Size)
	}
	if size > v.Size {
		v.Size = size
		if err := writeVolume(ctx, c, r.GetVolumeId(), v); err != nil {
			return nil, answer(fmt.Errorf("expand volume %s: %w", r.GetVolumeId(), err))
		}
	}
	if n.pods != nil && v.Mode == mountPod {
		if err := n.pods.resize(ctx, r.GetVolumeId(), v.Size); err != nil {
			return nil, answer(err)
		}
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.Size, NodeExpansionRequired: true}, nil
}

// ControllerPublishVolume implements csi.ControllerServer. In the mode mountpod it creates the client pod.
func (d *Driver) ControllerPublishVolume(ctx context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	n, err := d.node()
	if err == nil {
		err = missing("volume id", r.GetVolumeId(), "node id", r.GetNodeId())
	}
	if err == nil {
		err = capable(r.GetVolumeCapability())
	}
	if err != nil {
		return nil, err
	}
	c, err := n.storeOf(r.GetSecrets())
	if err != nil {
		return nil, err
	}
	config, m, err := configOf(ctx, c, r.GetVolumeId(), r.GetVolumeContext())
	if err != nil {
		return nil, answer(err)
	}
	if err := n.knows(ctx, r.GetNodeId()); err != nil {
		return nil, answer(err)
	}
	key := [2]string{r.GetVolumeId(), r.GetNodeId()}
	n.mu.Lock()
	readonly, known := n.attached[key]
	if !known {
		n.attached[key] = r.GetReadonly()
	}
	n.mu.Unlock()
	if known && readonly != r.GetReadonly() {
		return nil, status.Errorf(codes.AlreadyExists, "volume %s is attached to %s with another readonly", key[0], key[1])
	}
	if m == mountPod {
		if n.pods == nil {
			return nil, status.Error(codes.FailedPrecondition, "no client pods: the plugin cannot reach the API; use mode: process")
		}
		if err := n.pods.want(ctx, r.GetVolumeId(), r.GetNodeId(), config); err != nil {
			return nil, answer(err)
		}
	}
	return &csi.ControllerPublishVolumeResponse{}, nil
}

// knows returns NotFound for a node that is not in the cluster.
func (n *node) knows(ctx context.Context, name string) error {
	if name == n.name {
		return nil
	}
	if n.pods == nil {
		return status.Errorf(codes.NotFound, "there is no node %s", name)
	}
	return n.pods.nodeExists(ctx, name)
}

// ControllerUnpublishVolume implements csi.ControllerServer.
func (d *Driver) ControllerUnpublishVolume(ctx context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	n, err := d.node()
	if err == nil {
		err = missing("volume id", r.GetVolumeId())
	}
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	for key := range n.attached {
		if key[0] == r.GetVolumeId() && (r.GetNodeId() == "" || key[1] == r.GetNodeId()) {
			delete(n.attached, key)
		}
	}
	n.mu.Unlock()
	if n.pods != nil {
		if err := n.pods.unwant(ctx, r.GetVolumeId(), r.GetNodeId()); err != nil {
			return nil, answer(err)
		}
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}
