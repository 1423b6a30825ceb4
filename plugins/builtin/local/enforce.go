package local

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"kubelith.io/kubelith/base/oneline"
)

// enforcement is how the size of a volume's file system is enforced. A block device has a fixed size.
type enforcement string

const (
	auto  enforcement = "auto"  // in a StorageClass only: the best that the node supports
	quota enforcement = "quota" // a directory under a project quota
	file  enforcement = "file"  // a file system in a file behind a loop device
	none  enforcement = "none"  // a directory without a limit
)

var enforcements = []enforcement{auto, quota, file, none}

// errUnenforced reports that this node cannot enforce the size as the StorageClass requires.
var errUnenforced = errors.New("this node cannot enforce the size of volumes")

// enforcementOf parses the parameter of a StorageClass.
func enforcementOf(parameter string) (enforcement, error) {
	e := enforcement(parameter)
	switch {
	case parameter == "":
		return auto, nil
	case !slices.Contains(enforcements, e):
		return "", fmt.Errorf("parameter %s of the StorageClass is %q: use auto, quota, file or none", parameterEnforcement, parameter)
	}
	return e, nil
}

// way is a way to enforce sizes. why is the reason why this node does not support it; nil: it does.
type way struct {
	enforcement
	can func() error
}

// ways returns what auto tries, best first. A quota costs nothing, but stops programs, not attackers: outside of a user
// namespace the owner of a file may move it to another project (ADR 026). So it comes first only where volumes cannot
// fill etcd's disk.
func (s *store) ways() []way {
	ways := []way{{quota, func() error { return s.projects.enforced(s.dir) }}, {file, s.images.usable}}
	if s.shared {
		slices.Reverse(ways)
	}
	return ways
}

// enforcement returns how this node enforces the size of a new volume. Volumes without enforcement need a StorageClass
// that requests this: one pod could fill the disk for all others, and for etcd.
func (s *store) enforcement(asked enforcement, m mode) (enforcement, error) {
	if m == block {
		return "", nil
	}
	var why []error
	for _, w := range s.ways() {
		if asked != auto && asked != w.enforcement {
			continue
		}
		err := w.can()
		if err == nil {
			return w.enforcement, nil
		}
		why = append(why, fmt.Errorf("%s: %w", w.enforcement, err))
	}
	if len(why) == 0 {
		return asked, nil
	}
	return "", fmt.Errorf("%w (%s); or use a StorageClass with the parameter %s: none", errUnenforced, oneline.Join(why), parameterEnforcement)
}

// fill creates the contents of a new volume, in the directory that will get its name.
func (s *store) fill(ctx context.Context, v *volume, dir string) error {
	switch {
	case v.Mode == block:
		return resizeImage(imageIn(dir), v.Size)
	case v.Enforcement == file:
		return s.images.format(ctx, imageIn(dir), v.Size)
	}
	return makeDataDir(dir)
}

// enforce sets the quota of a new volume. The caller holds the store's lock, so that no other volume gets the same
// project.
func (s *store) enforce(v *volume, dir string) (err error) {
	if v.Enforcement != quota {
		return nil
	}
	if v.Project, err = s.freeProject(); err != nil {
		return err
	}
	// Written before it is used: after a kill, removing this directory also removes the limit.
	if err := v.write(dir); err != nil {
		return err
	}
	if err := s.projects.limit(s.dir, v.Project, v.Size); err != nil {
		return err
	}
	return s.projects.assign(dataIn(dir), v.Project)
}

// footprint returns how much of the disk a volume of that size may use, in bytes.
func (v *volume) footprint(size int64) int64 {
	if v.Enforcement == file {
		return imageSize(size)
	}
	return size
}

// grow raises the limit of a volume, before its new size is recorded.
func (s *store) grow(v *volume, size int64) error {
	switch {
	case v.Mode == block:
		return resizeImage(s.file(v, imageFile), size)
	case v.Enforcement == file:
		return resizeImage(s.file(v, imageFile), imageSize(size))
	case v.Enforcement == quota:
		return s.projects.limit(s.dir, v.Project, size)
	}
	return nil
}
