package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubelith.io/kubelith/plugins/examples/fuse/client"
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
	return &csi.NodeGetInfoResponse{NodeId: n.name}, nil
}

// NodeStageVolume implements csi.NodeServer. It mounts the volume for all pods of the node, once its client is ready.
func (d *Driver) NodeStageVolume(ctx context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	n, err := d.node()
	if err == nil {
		err = missing("volume id", r.GetVolumeId(), "staging target path", r.GetStagingTargetPath())
	}
	if err == nil {
		err = capable(r.GetVolumeCapability())
	}
	if err != nil {
		return nil, err
	}
	if err := n.stage(ctx, r); err != nil {
		return nil, answer(fmt.Errorf("stage volume %s: %w", r.GetVolumeId(), err))
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

func (n *node) stage(ctx context.Context, r *csi.NodeStageVolumeRequest) error {
	id := r.GetVolumeId()
	md, err := modeOf(r.GetVolumeContext())
	if err != nil {
		return invalid("%s", err)
	}
	if !idPattern.MatchString(id) {
		return invalid("volume id %q: use at most 63 lower case letters, digits, - and dots", id)
	}
	unlock, err := n.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if m := n.mount(id); m != nil && m.isMounted() {
		return m.attachedWithin(ctx)
	}
	if md == inPod { // each pod has its own mount
		dir := filepath.Join(n.config.Clients, id)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		return n.configure(ctx, dir, id, r.GetSecrets(), r.GetVolumeContext())
	}
	staging, err := resolve(r.GetStagingTargetPath())
	if err != nil {
		return err
	}
	o, err := optionsOf(r.GetVolumeCapability().GetMount().GetMountFlags())
	if err != nil {
		return invalid("%s", err)
	}
	dir := filepath.Join(n.config.Clients, id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if md == process {
		if err := n.configure(ctx, dir, id, r.GetSecrets(), r.GetVolumeContext()); err != nil {
			return err
		}
	}
	if err := os.Mkdir(staging, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	m := n.mount(id)
	if m == nil {
		m = n.newMount(id, record{Volume: id, Mode: md, Path: staging, Client: dir, Options: o.Options})
		m.start()
	}
	if err := m.wait(ctx, func(m *mount) bool { return m.ready }); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	if err := m.mountNow(); err != nil {
		return err
	}
	if err := m.attachedWithin(ctx); err != nil { // programs would wait for answers
		m.mu.Lock()
		defer m.mu.Unlock()
		return errors.Join(err, m.unmountLocked())
	}
	return nil
}

func (m *mount) isMounted() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mounted
}

func (m *mount) attachedWithin(ctx context.Context) error {
	if err := m.wait(ctx, func(m *mount) bool { return m.attached }); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	return nil
}

// configure writes the configuration of a client into its directory.
func (n *node) configure(ctx context.Context, dir, id string, secrets, attributes map[string]string) error {
	c, err := n.storeOf(secrets)
	if err != nil {
		return err
	}
	config, _, err := configOf(ctx, c, id, attributes)
	if err != nil {
		return err
	}
	return writeConfig(dir, config)
}

// unconfigure removes what configure has written: it has the credentials of the store.
func (n *node) unconfigure(id string) error {
	if !idPattern.MatchString(id) {
		return nil
	}
	n.mu.Lock()
	delete(n.shares, id)
	n.mu.Unlock()
	dir := filepath.Join(n.config.Clients, id)
	if err := os.Remove(filepath.Join(dir, configFile)); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	_ = os.Remove(dir) // unless something is in it
	return nil
}

func readConfig(dir string) (config client.Config, err error) {
	text, err := os.ReadFile(filepath.Join(dir, configFile))
	if err != nil {
		return config, err
	}
	return config, json.Unmarshal(text, &config)
}

func writeConfig(dir string, config client.Config) error {
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, configFile)
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// NodeUnstageVolume implements csi.NodeServer. It fails as long as something of the volume is not uploaded.
func (d *Driver) NodeUnstageVolume(ctx context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	n, err := d.node()
	if err == nil {
		err = missing("volume id", r.GetVolumeId(), "staging target path", r.GetStagingTargetPath())
	}
	if err != nil {
		return nil, err
	}
	unlock, err := n.lock(ctx, r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer unlock()
	if m := n.mount(r.GetVolumeId()); m != nil {
		if err := n.remove(ctx, m); err != nil {
			return nil, answer(fmt.Errorf("unstage volume %s: %w", r.GetVolumeId(), err))
		}
	} else if path, err := resolve(r.GetStagingTargetPath()); err == nil {
		if err := unmount(path); err != nil {
			return nil, answer(err)
		}
	}
	if err := n.unconfigure(r.GetVolumeId()); err != nil {
		return nil, answer(err)
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// remove unmounts a volume and forgets it, after all is uploaded.
func (n *node) remove(ctx context.Context, m *mount) error {
	if m.isMounted() && m.Mode != inPod { // a pod's client has ended with the pod
		if _, err := m.do(ctx, client.Request{Op: "sync"}); err != nil {
			return status.Errorf(codes.Unavailable, "not everything is uploaded: %s", err)
		}
	}
	m.mu.Lock()
	err := m.unmountLocked()
	m.mu.Unlock()
	if err != nil {
		return err
	}
	m.end()
	n.forget(m)
	return nil
}

func (n *node) forget(m *mount) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.mounts, m.key)
}

// NodePublishVolume implements csi.NodeServer. It bind-mounts the volume at the target path.
func (d *Driver) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	n, err := d.node()
	if err == nil {
		err = missing("volume id", r.GetVolumeId(), "target path", r.GetTargetPath())
	}
	if err == nil {
		err = capable(r.GetVolumeCapability())
	}
	ephemeral := r.GetVolumeContext()[attributeEphemeral] == "true"
	if err == nil && !ephemeral && r.GetStagingTargetPath() == "" {
		err = status.Error(codes.FailedPrecondition, "staging target path is missing: the volume is not staged")
	}
	if err != nil {
		return nil, err
	}
	publish := n.publish
	if ephemeral {
		publish = n.publishSidecar
	} else if md, err := modeOf(r.GetVolumeContext()); err == nil && md == inPod {
		publish = n.publishInPod
	}
	if err := publish(ctx, r); err != nil {
		return nil, answer(fmt.Errorf("publish volume %s: %w", r.GetVolumeId(), err))
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (n *node) publish(ctx context.Context, r *csi.NodePublishVolumeRequest) error {
	unlock, err := n.lock(ctx, r.GetVolumeId())
	if err != nil {
		return err
	}
	defer unlock()
	target, err := resolve(r.GetTargetPath())
	if err != nil {
		return err
	}
	o, err := optionsOf(r.GetVolumeCapability().GetMount().GetMountFlags())
	if err != nil {
		return invalid("%s", err)
	}
	if r.GetReadonly() {
		o.flags |= unix.MS_RDONLY
	}
	m := n.mount(r.GetVolumeId())
	if m == nil || !m.isMounted() {
		return status.Error(codes.NotFound, "the volume is not staged")
	}
	if err := m.attachedWithin(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if flags, published := m.Targets[target]; published {
		if count, _, err := mountsAt(target); err != nil || count > 0 {
			if err == nil && flags != o.flags {
				err = status.Errorf(codes.AlreadyExists, "it is mounted with other options at %s", target)
			}
			return err
		}
	}
	if singleWriter(r.GetVolumeCapability()) && len(m.Targets) > 0 {
		for other := range m.Targets {
			if other != target {
				return status.Errorf(codes.FailedPrecondition, "ReadWriteOncePod, and mounted at %s", other)
			}
		}
	}
	if err := os.Mkdir(target, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	m.Targets[target] = o.flags
	if err := m.save(); err != nil {
		return err
	}
	if err := bind(m.Path, target, o.flags); err != nil {
		delete(m.Targets, target)
		return errors.Join(err, unmount(target), m.save())
	}
	return nil
}

// singleWriter reports whether only one pod may use the volume.
func singleWriter(c *csi.VolumeCapability) bool {
	return c.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
}

// NodeUnpublishVolume implements csi.NodeServer. It works without a client, so that a pod can always end.
func (d *Driver) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	n, err := d.node()
	if err == nil {
		err = missing("volume id", r.GetVolumeId(), "target path", r.GetTargetPath())
	}
	if err != nil {
		return nil, err
	}
	if err := n.unpublish(ctx, r); err != nil {
		return nil, answer(fmt.Errorf("unpublish volume %s: %w", r.GetVolumeId(), err))
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (n *node) unpublish(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) error {
	unlock, err := n.lock(ctx, r.GetVolumeId())
	if err != nil {
		return err
	}
	defer unlock()
	target, err := resolve(r.GetTargetPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if done, err := n.unpublishSidecar(ctx, r.GetVolumeId(), target); done {
		return err
	}
	for _, m := range n.mountsOf(func(m *mount) bool { return m.Mode == inPod && m.Path == target }) {
		if err := n.remove(ctx, m); err != nil {
			return err
		}
	}
	if err := unmount(target); err != nil {
		return err
	}
	if m := n.mount(r.GetVolumeId()); m != nil {
		m.mu.Lock()
		_, published := m.Targets[target]
		delete(m.Targets, target)
		if published {
			err = m.save()
		}
		m.mu.Unlock()
	}
	// Not RemoveAll: if anything were still mounted there, that would delete the pod's data.
	if e := os.Remove(target); e != nil && !errors.Is(e, fs.ErrNotExist) {
		err = errors.Join(err, e)
	}
	return err
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
	unlock, err := n.lock(ctx, r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer unlock()
	all := n.mountsOf(func(m *mount) bool { return m.Volume == r.GetVolumeId() })
	if len(all) == 0 {
		return nil, status.Errorf(codes.NotFound, "volume %s is not mounted here", r.GetVolumeId())
	}
	size := r.GetCapacityRange().GetRequiredBytes()
	for _, m := range all {
		if size == 0 {
			break
		}
		if err := m.resize(ctx, size); err != nil {
			return nil, answer(fmt.Errorf("expand volume %s on the node: %w", r.GetVolumeId(), err))
		}
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: size}, nil
}

// resize sends the client the capacity, and the next one, too.
func (m *mount) resize(ctx context.Context, size int64) error {
	config, err := readConfig(m.Client)
	if err == nil {
		config.Capacity = size
		err = writeConfig(m.Client, config)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, err = m.do(ctx, client.Request{Op: "resize", Capacity: size})
	return err
}

// NodeGetVolumeStats implements csi.NodeServer.
func (d *Driver) NodeGetVolumeStats(ctx context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	n, err := d.node()
	if err == nil {
		err = missing("volume id", r.GetVolumeId(), "volume path", r.GetVolumePath())
	}
	if err != nil {
		return nil, err
	}
	path, err := resolve(r.GetVolumePath())
	if err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	if in := n.mountsOf(func(m *mount) bool { return m.Mode == inPod && m.Volume == r.GetVolumeId() && m.Path == path }); len(in) > 0 {
		return in[0].usage(ctx)
	}
	m := n.mount(r.GetVolumeId())
	count, ours, err := mountsAt(path)
	if m == nil || err != nil || count == 0 || !ours {
		return nil, status.Errorf(codes.NotFound, "volume %s is not mounted at %s", r.GetVolumeId(), path)
	}
	m.mu.Lock()
	attached, reason := m.attached, m.reason
	m.mu.Unlock()
	if !attached { // the kernel would wait for the client
		return nil, status.Error(codes.Unavailable, reason)
	}
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return nil, answer(err)
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: int64(s.Blocks) * s.Bsize, Used: int64(s.Blocks-s.Bfree) * s.Bsize, Available: int64(s.Bavail) * s.Bsize},
		{Unit: csi.VolumeUsage_INODES, Total: int64(s.Files), Used: int64(s.Files - s.Ffree), Available: int64(s.Ffree)},
	}}, nil
}

// usage queries the client in a pod, not the file system: nothing forces that client to answer the kernel.
func (m *mount) usage(ctx context.Context) (*csi.NodeGetVolumeStatsResponse, error) {
	a, err := m.do(ctx, client.Request{Op: "usage"})
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	u := a.Usage
	if u == nil || min(u.Bytes, u.BytesFree, u.Files, u.FilesFree) < 0 || u.BytesFree > u.Bytes || u.FilesFree > u.Files {
		return nil, status.Error(codes.Unavailable, m.explain(nil))
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: u.Bytes, Used: u.Bytes - u.BytesFree, Available: u.BytesFree},
		{Unit: csi.VolumeUsage_INODES, Total: u.Files, Used: u.Files - u.FilesFree, Available: u.FilesFree},
	}}, nil
}
