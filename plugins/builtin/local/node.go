package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NodeGetCapabilities implements csi.NodeServer.
func (d *Driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	r := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		r.Capabilities = append(r.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return r, nil
}

// NodeGetInfo implements csi.NodeServer.
func (d *Driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	n, err := d.node()
	if err != nil {
		return nil, err
	}
	return &csi.NodeGetInfoResponse{NodeId: n.name, AccessibleTopology: n.topology()}, nil
}

// NodeStageVolume implements csi.NodeServer. It attaches the device of a block volume and mounts a file system in a
// file; a directory needs nothing.
func (d *Driver) NodeStageVolume(ctx context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	n, err := d.node()
	if err == nil {
		err = missing("volume id", r.GetVolumeId(), "staging target path", r.GetStagingTargetPath())
	}
	if err != nil {
		return nil, err
	}
	err = n.withVolume(ctx, r.GetVolumeId(), r.GetVolumeCapability(), func(v *volume) error {
		_, err := n.source(ctx, v, r.GetStagingTargetPath())
		return err
	})
	if err != nil {
		return nil, answer(fmt.Errorf("stage volume %s: %w", r.GetVolumeId(), err))
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

// withVolume runs f for a volume that fits the capability, with its lock held.
func (n *node) withVolume(ctx context.Context, id string, c *csi.VolumeCapability, f func(*volume) error) error {
	if c == nil {
		return invalid("volume capability is missing")
	}
	m, err := modeOfOne(c)
	if err != nil {
		return invalid("%s", err)
	}
	v, unlock, err := n.store.lockVolume(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if m != v.Mode {
		return invalid("volume %s is a %s volume", v.ID, v.Mode)
	}
	return f(v)
}

// NodeUnstageVolume implements csi.NodeServer.
func (d *Driver) NodeUnstageVolume(ctx context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	n, err := d.node()
	if err == nil {
		err = missing("volume id", r.GetVolumeId(), "staging target path", r.GetStagingTargetPath())
	}
	if err != nil {
		return nil, err
	}
	v, unlock, err := n.store.lockVolume(ctx, r.GetVolumeId())
	if errors.Is(err, errNotFound) { // nothing is left to undo
		return &csi.NodeUnstageVolumeResponse{}, nil
	}
	if err == nil {
		defer unlock()
		err = n.store.release(v)
	}
	if err != nil {
		return nil, answer(fmt.Errorf("unstage volume %s: %w", r.GetVolumeId(), err))
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// NodePublishVolume implements csi.NodeServer. It bind-mounts the volume at the target path.
func (d *Driver) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	n, err := d.node()
	if err == nil {
		err = missing("volume id", r.GetVolumeId(), "target path", r.GetTargetPath())
	}
	if err == nil && r.GetVolumeCapability() != nil && r.GetStagingTargetPath() == "" {
		err = status.Error(codes.FailedPrecondition, "staging target path is missing: the volume is not staged")
	}
	if err != nil {
		return nil, err
	}
	err = n.withVolume(ctx, r.GetVolumeId(), r.GetVolumeCapability(), func(v *volume) error { return n.publish(ctx, v, r) })
	if err != nil {
		return nil, answer(fmt.Errorf("publish volume %s: %w", r.GetVolumeId(), err))
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (n *node) publish(ctx context.Context, v *volume, r *csi.NodePublishVolumeRequest) error {
	target, err := resolve(r.GetTargetPath())
	if err != nil {
		return err
	}
	flags, err := flagsOf(r.GetVolumeCapability().GetMount().GetMountFlags(), r.GetReadonly())
	if err != nil {
		return invalid("%s", err)
	}
	source, err := n.source(ctx, v, r.GetStagingTargetPath())
	if err != nil {
		return err
	}
	mounts, err := n.store.mountsOf(v)
	if err != nil {
		return err
	}
	mounts = published(mounts)
	here := mountAt(mounts, target)
	if singleWriter(r.GetVolumeCapability()) && here == nil && len(mounts) > 0 {
		return fmt.Errorf("%w: ReadWriteOncePod, and mounted at %s", errInUse, mounts[0].Mountpoint)
	}
	readonly := flags&unix.MS_RDONLY != 0
	if here != nil {
		if readOnly(here) && !readonly {
			return status.Errorf(codes.AlreadyExists, "it is mounted read-only at %s", target)
		}
		return rebind(target, flags) // an earlier process may have ended between mount and flags
	}
	if v.Mode == block {
		flags &^= unix.MS_RDONLY // would affect the device node only: the kubelet makes the device itself read-only for the pod
	}
	if err := makeTarget(target, v.Mode); err != nil {
		return err
	}
	if err := bind(source, target, flags); err != nil {
		return errors.Join(err, unbind(target))
	}
	return nil
}

// source returns what to mount for a pod. Staging has created it; after a reboot it is created again.
func (n *node) source(ctx context.Context, v *volume, staging string) (string, error) {
	switch {
	case v.Mode == block:
		return attachLoop(n.store.file(v, imageFile), v.ID)
	case v.Enforcement == file:
		staging, err := resolve(staging)
		if err != nil {
			return "", err
		}
		return dataIn(staging), n.store.mountImage(ctx, v, staging)
	}
	return n.store.file(v, dataDir), nil
}

// resolve resolves symbolic links in the path of a target, which need not exist: mountinfo has resolved paths.
func resolve(target string) (string, error) {
	if !filepath.IsAbs(target) {
		return "", invalid("target path %q is not absolute", target)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(filepath.Clean(target)))
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, filepath.Base(target)), nil
}

// makeTarget creates the mount point: a directory, or a file for a device.
func makeTarget(target string, m mode) error {
	if m == filesystem {
		if err := os.Mkdir(target, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o640)
	if err != nil {
		return err
	}
	return f.Close()
}

// NodeUnpublishVolume implements csi.NodeServer. It works without the volume, so that a pod can always end.
func (d *Driver) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	n, err := d.node()
	if err == nil {
		err = missing("volume id", r.GetVolumeId(), "target path", r.GetTargetPath())
	}
	if err != nil {
		return nil, err
	}
	_, unlock, err := n.store.lockVolume(ctx, r.GetVolumeId())
	if err == nil {
		defer unlock()
	} else if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return nil, answer(err)
	}
	if err := unpublish(r.GetTargetPath()); err != nil {
		return nil, answer(fmt.Errorf("unpublish volume %s: %w", r.GetVolumeId(), err))
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func unpublish(path string) error {
	target, err := resolve(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := unbind(target); err != nil {
		return err
	}
	// Not RemoveAll: if anything were still mounted there, that would delete the pod's data.
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// NodeExpandVolume implements csi.NodeServer.
func (d *Driver) NodeExpandVolume(ctx context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	n, err := d.node()
	if err == nil {
		err = missing("volume id", r.GetVolumeId(), "volume path", r.GetVolumePath())
	}
	if err != nil {
		return nil, err
	}
	v, unlock, err := n.store.lockVolume(ctx, r.GetVolumeId())
	if err == nil {
		defer unlock()
		if v.Mode == block {
			err = growLoop(n.store.file(v, imageFile))
		} else if v.Enforcement == file {
			err = n.store.growStaged(v)
		}
	}
	if err != nil {
		return nil, answer(fmt.Errorf("expand volume %s on the node: %w", r.GetVolumeId(), err))
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: v.Size}, nil
}
