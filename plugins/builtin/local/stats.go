package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
)

// NodeGetVolumeStats implements csi.NodeServer. It returns the usage of the volume's files, and its size as the total.
func (d *Driver) NodeGetVolumeStats(ctx context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	n, err := d.node()
	if err == nil {
		err = missing("volume id", r.GetVolumeId(), "volume path", r.GetVolumePath())
	}
	if err != nil {
		return nil, err
	}
	v, err := n.store.get(r.GetVolumeId())
	if err == nil {
		_, err = os.Stat(r.GetVolumePath())
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = errNotFound
	}
	if err == nil && v.Mode == block {
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: v.Size}}}, nil
	}
	var usage []*csi.VolumeUsage
	if err == nil {
		usage, err = n.store.usage(ctx, v, r.GetVolumePath())
	}
	if err != nil {
		return nil, answer(fmt.Errorf("statistics of volume %s at %s: %w", r.GetVolumeId(), r.GetVolumePath(), err))
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: usage}, nil
}

// usage returns the usage of a volume with a file system, mounted at path. A volume that has lost its quota is measured
// like a directory.
func (s *store) usage(ctx context.Context, v *volume, path string) ([]*csi.VolumeUsage, error) {
	switch {
	case v.Enforcement == file:
		return s.imageUsage(v, path)
	case v.Enforcement == quota && s.projects.enforced(s.dir) == nil:
		return s.quotaUsage(v)
	}
	return s.directoryUsage(ctx, v)
}

// imageUsage returns the usage of a file system in a file, as df does. The reserve does not count.
func (s *store) imageUsage(v *volume, path string) ([]*csi.VolumeUsage, error) {
	all, err := s.mountsOf(v)
	if err != nil {
		return nil, err
	}
	real, err := resolve(path)
	if err != nil {
		return nil, err
	}
	if mountAt(all, real) == nil {
		return nil, errNotFound
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(real, &fs); err != nil {
		return nil, err
	}
	usedBytes, freeBytes := int64(fs.Blocks-fs.Bfree)*fs.Bsize, int64(fs.Bavail)*fs.Bsize
	return usageOf(usedBytes+freeBytes, usedBytes, freeBytes,
		int64(fs.Files), int64(fs.Files-fs.Ffree), int64(fs.Ffree)), nil
}

// quotaUsage returns the kernel's counts. The disk may have less space left than the quota.
func (s *store) quotaUsage(v *volume) ([]*csi.VolumeUsage, error) {
	u, err := s.projects.usage(s.dir, v.Project)
	if err != nil {
		return nil, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(s.dir, &fs); err != nil {
		return nil, err
	}
	return usageOf(v.Size, u.bytes, max(0, min(v.Size-u.bytes, int64(fs.Bavail)*fs.Bsize)),
		u.maxFiles, u.files, max(0, min(u.maxFiles-u.files, int64(fs.Ffree)))), nil
}

// directoryUsage measures a directory. One that has grown beyond its size has no space available, even if the disk has
// more.
func (s *store) directoryUsage(ctx context.Context, v *volume) ([]*csi.VolumeUsage, error) {
	m, err := s.used.measure(ctx, v.ID, s.file(v, dataDir))
	if err != nil {
		return nil, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(s.dir, &fs); err != nil {
		return nil, err
	}
	return usageOf(v.Size, m.bytes, max(0, min(v.Size-m.bytes, int64(fs.Bavail)*fs.Bsize)), int64(fs.Files), m.files, int64(fs.Ffree)), nil
}

func usageOf(bytes, usedBytes, freeBytes, files, usedFiles, freeFiles int64) []*csi.VolumeUsage {
	return []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: bytes, Used: usedBytes, Available: freeBytes},
		{Unit: csi.VolumeUsage_INODES, Total: files, Used: usedFiles, Available: freeFiles},
	}
}
