package local

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// enforcement is what holds a volume's file system to its size. A block device always is.
type enforcement string

const (
	auto  enforcement = "auto"  // asked for only: the best that the node has
	quota enforcement = "quota" // a directory under a project quota of the file system that it is on
	file  enforcement = "file"  // a file system of its own, in a file behind a loop device
	none  enforcement = "none"  // a directory that may grow as long as the disk has space
)

var enforcements = []enforcement{auto, quota, file, none}

// errUnenforced says that this node cannot hold a volume to its size as its StorageClass wants it.
var errUnenforced = errors.New("this node cannot hold a volume to its size")

// enforcementOf the parameter of a StorageClass.
func enforcementOf(parameter string) (enforcement, error) {
	e := enforcement(parameter)
	switch {
	case parameter == "":
		return auto, nil
	case !slices.Contains(enforcements, e):
		return "", fmt.Errorf("parameter %s of the StorageClass is %q: it takes auto, quota, file and none", parameterEnforcement, parameter)
	}
	return e, nil
}

// way to enforce sizes, and why this node has it not; nil: it has.
type way struct {
	enforcement
	can func() error
}

// ways that auto tries, the best first. A quota costs nothing, but it holds programs and not attackers: outside of a user namespace
// the owner of a file may give it to another project (ADR 026). So it is first only where that cannot fill etcd's disk.
func (s *store) ways() []way {
	ways := []way{{quota, func() error { return s.projects.enforced(s.dir) }}, {file, s.images.usable}}
	if s.shared {
		slices.Reverse(ways)
	}
	return ways
}

// enforcement that this node has for a new volume. A size that nothing would enforce is not promised unless the StorageClass
// says so: one pod could take the whole disk from the others, and from etcd.
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
	return "", fmt.Errorf("%w (%s); or use a StorageClass with the parameter %s: none", errUnenforced, oneLine(why), parameterEnforcement)
}

func oneLine(errs []error) (text string) {
	for i, err := range errs {
		if i > 0 {
			text += "; "
		}
		text += err.Error()
	}
	return text
}

// fill gives a volume that is prepared what its pods will see, in the directory that will get its name.
func (s *store) fill(ctx context.Context, v *volume, dir string) error {
	switch {
	case v.Mode == block:
		return resizeImage(imageIn(dir), v.Size)
	case v.Enforcement == file:
		return s.images.format(ctx, imageIn(dir), v.Size)
	}
	return makeDataDir(dir)
}

// enforce the size of a volume that is prepared. The caller holds the store's lock, so that no other volume gets the same project.
func (s *store) enforce(v *volume, dir string) (err error) {
	if v.Enforcement != quota {
		return nil
	}
	if v.Project, err = s.freeProject(); err != nil {
		return err
	}
	// Noted before it is used: whoever removes this directory after a kill takes the limit away by it.
	if err := v.write(dir); err != nil {
		return err
	}
	if err := s.projects.limit(s.dir, v.Project, v.Size); err != nil {
		return err
	}
	return s.projects.assign(dataIn(dir), v.Project)
}

// footprint is how much of the disk a volume of that size may take, in bytes.
func (v *volume) footprint(size int64) int64 {
	if v.Enforcement == file {
		return imageSize(size)
	}
	return size
}

// grow what holds a volume to its size, before the larger one is promised.
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
