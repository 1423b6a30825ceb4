package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubelith.io/kubelith/plugins/examples/fuse/client"
	"kubelith.io/kubelith/plugins/examples/fuse/store"
)

// mountKey is the key of the mount of a volume in a pod. No id of a volume has an underscore.
func mountKey(volume, pod string) string { return volume + "_" + pod }

// mountsOf returns the mounts that f selects.
func (n *node) mountsOf(f func(*mount) bool) (all []*mount) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.mounts {
		if f(m) {
			all = append(all, m)
		}
	}
	return all
}

// volumesOf a pod, as its client has to know them.
func (n *node) volumesOf(pod string) (v client.Volumes) {
	for _, m := range n.mountsOf(func(m *mount) bool { return m.Pod == pod }) {
		if config, err := readConfig(m.Client); err == nil {
			v.Volumes = append(v.Volumes, client.Volume{ID: m.Volume, Capacity: config.Capacity})
		}
	}
	slices.SortFunc(v.Volumes, func(a, b client.Volume) int { return strings.Compare(a.ID, b.ID) })
	return v
}

// share is the store of a volume for the sidecars of a node.
type share struct {
	config store.Config
	store  store.Store
	usage  *store.Usage
}

// served returns a volume for the client of a pod.
func (n *node) served(pod, id string) (store.Volume, error) {
	m := n.mount(mountKey(id, pod))
	if m == nil || m.Pod != pod {
		return store.Volume{}, fmt.Errorf("this pod has no volume %.64q", id)
	}
	config, err := readConfig(m.Client)
	if err != nil {
		return store.Volume{}, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.shares[id]
	if s == nil || s.config != config.Store {
		opened, err := store.Open(config.Store)
		if err != nil {
			return store.Volume{}, err
		}
		s = &share{config: config.Store, store: opened, usage: &store.Usage{}}
		n.shares[id] = s
	}
	return store.Volume{Store: s.store, Capacity: config.Capacity, ReadOnly: m.Flags&unix.MS_RDONLY != 0, Usage: s.usage}, nil
}

// publishInPod mounts a volume for one pod, whose client serves it as soon as it runs.
func (n *node) publishInPod(ctx context.Context, r *csi.NodePublishVolumeRequest) error {
	id, pod := r.GetVolumeId(), r.GetVolumeContext()[attributePod]
	if !podPattern.MatchString(pod) || !idPattern.MatchString(id) {
		return invalid("the kubelet does not name the pod, or volume id %q is not possible: delete the CSIDriver %s to have it created again", id, Name)
	}
	if err := n.awaitSidecar(ctx, pod); err != nil {
		return err
	}
	unlock, err := n.lock(ctx, id)
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
	key, dir := mountKey(id, pod), filepath.Join(n.config.Clients, id)
	if m := n.mount(key); m != nil {
		count, _, err := mountsAt(target)
		if err != nil || count > 0 && m.Path == target {
			return err
		}
		if err := n.remove(ctx, m); err != nil {
			return err
		}
	}
	if _, err := readConfig(dir); err != nil {
		return status.Error(codes.NotFound, "the volume is not staged")
	}
	others := n.mountsOf(func(m *mount) bool { return m.Volume == id })
	if singleWriter(r.GetVolumeCapability()) && len(others) > 0 {
		return status.Errorf(codes.FailedPrecondition, "ReadWriteOncePod, and mounted at %s", others[0].Path)
	}
	if err := os.Mkdir(target, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	m := n.newMount(key, record{Volume: id, Mode: inPod, Path: target, Client: dir, Options: o.Options, Flags: o.flags, Pod: pod})
	if err := m.mountNow(); err != nil {
		n.forget(m)
		return err
	}
	m.start()
	return nil
}

// awaitSidecar waits until the inline volume of a pod is there.
func (n *node) awaitSidecar(ctx context.Context, pod string) error {
	ctx, cancel := context.WithTimeout(ctx, sidecarWait)
	defer cancel()
	for n.sidecar(pod) == nil {
		select {
		case <-ctx.Done():
			return status.Error(codes.FailedPrecondition,
				"the pod has no sidecar, which the plugin fuse-sidecar adds to new pods: "+
					"install it on the server, then delete the pod and create it again, after its claim")
		case <-time.After(pollEvery / 4):
		}
	}
	return nil
}
