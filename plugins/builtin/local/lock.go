package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockFile locks an open file, against other calls in this process and in others. It waits until ctx ends.
func lockFile(ctx context.Context, f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		// The kernel would wait without a deadline, so poll: locks are held for milliseconds.
		select {
		case <-ctx.Done():
			return fmt.Errorf("another call holds %s: %w", f.Name(), ctx.Err())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// lock locks the set of volumes and their sizes.
func (s *store) lock(ctx context.Context) (unlock func(), err error) {
	f, err := os.OpenFile(s.path("lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lockFile(ctx, f); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// lockVolume locks one volume against being mounted, unmounted or removed by others. It is taken before the store's
// lock.
func (s *store) lockVolume(ctx context.Context, id string) (_ *volume, unlock func(), err error) {
	f, err := os.Open(s.volumeDir(id))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, errNotFound
	}
	if err != nil {
		return nil, nil, err
	}
	if err = lockFile(ctx, f); err != nil {
		f.Close()
		return nil, nil, err
	}
	v, err := s.get(id) // it may have been removed while this call waited
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return v, func() { f.Close() }, nil
}
