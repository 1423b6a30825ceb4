package local

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// room is the space that is left for volumes, in bytes: on the disk, and of the configured capacity.
type room struct{ disk, promises int64 }

// free returns the space for new volumes: the available space of the file system without root's reserve, minus what
// existing volumes may still use. Images are sparse and quotas reserve nothing, so this prevents overcommitment.
func (s *store) free() (room, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(s.dir, &fs); err != nil {
		return room{}, &os.PathError{Op: "statfs", Path: s.dir, Err: err}
	}
	volumes, err := s.list()
	if err != nil {
		return room{}, err
	}
	free := room{disk: int64(fs.Bavail) * fs.Bsize, promises: math.MaxInt64}
	if s.limit > 0 {
		free.promises = s.limit
	}
	for _, v := range volumes {
		free.promises -= v.Size
		free.disk -= max(0, v.footprint(v.Size)-s.usedBy(v))
	}
	return room{disk: max(free.disk, 0), promises: max(free.promises, 0)}, nil
}

// largest returns the size of the largest volume that fits.
func (r room) largest(e enforcement) int64 {
	if e == file {
		return min(largestWithin(r.disk), r.promises)
	}
	return min(r.disk, r.promises)
}

// usedBy returns the space that a volume uses, in bytes. It is 0 for a directory that this process has not measured,
// which is the safe side.
func (s *store) usedBy(v *volume) int64 {
	switch {
	case v.Mode == block || v.Enforcement == file:
		return imageUse(s.file(v, imageFile))
	case v.Enforcement == quota:
		u, _ := s.projects.usage(s.dir, v.Project) // 0 on failure: the safe side too
		return u.bytes
	}
	return s.used.last(v.ID).bytes
}

// imageUse returns the disk space of a sparse image.
func imageUse(path string) int64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Blocks * 512
}

// used caches the measured usage of directories. The kubelet requests it once a minute for each mounted volume.
type used struct {
	mu sync.Mutex
	of map[string]measure
}

// measure is the measured usage of a directory.
type measure struct {
	bytes, files int64
	at           time.Time
	took         time.Duration
}

// fresh reports whether the measurement may be reused: walking large trees takes at most a twentieth of the time.
func (m measure) fresh(now time.Time) bool {
	return !m.at.IsZero() && now.Before(m.at.Add(20*m.took))
}

func (u *used) last(id string) measure {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.of[id]
}

func (u *used) forget(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.of, id)
}

// measure measures the directory of a volume.
func (u *used) measure(ctx context.Context, id, dir string) (measure, error) {
	start := time.Now()
	if m := u.last(id); m.fresh(start) {
		return m, nil
	}
	m, err := walk(ctx, dir)
	if err != nil {
		return m, err
	}
	m.at = time.Now()
	m.took = m.at.Sub(start)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.of == nil {
		u.of = map[string]measure{}
	}
	u.of[id] = m
	return m, nil
}

// walk adds up the disk usage of a tree. A file with several names counts once.
func walk(ctx context.Context, dir string) (m measure, err error) {
	linked := map[uint64]bool{}
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return gone(err) // pods may delete files at the same time
		}
		info, err := e.Info()
		if err != nil {
			return gone(err)
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok || !e.IsDir() && st.Nlink > 1 && linked[st.Ino] {
			return nil
		}
		if !e.IsDir() && st.Nlink > 1 {
			linked[st.Ino] = true
		}
		m.bytes += st.Blocks * 512
		m.files++
		return nil
	})
	return m, err
}

func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
