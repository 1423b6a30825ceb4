package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// loopControl is the kernel's control file of loop devices.
const loopControl = "/dev/loop-control"

// attachLoop returns the loop device of an image, and attaches one if there is none. It stays until detachLoop. The
// caller holds the volume's lock, so that an image never gets two.
func attachLoop(image, label string) (device string, err error) {
	d, err := openLoop(image, label, 0)
	if err != nil {
		return "", err
	}
	defer d.Close()
	return d.Name(), staysAttached(d)
}

// openLoop opens the loop device of an image, and attaches one if there is none. The kernel does not detach it while it
// is open. The caller holds the volume's lock.
func openLoop(image, label string, flags uint32) (*os.File, error) {
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	control, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("the volume needs a loop device, `modprobe loop` may help: %w", err)
	}
	defer control.Close()
	// Another program may take the free device first, or one may be detached in between, so try again.
	for range 64 {
		device, err := findLoop(image)
		if err != nil {
			return nil, err
		}
		if device != "" {
			if d, err := openAttached(device, f); d != nil || err != nil {
				return d, err
			}
			continue
		}
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("a free loop device: %w", err)
		}
		device = fmt.Sprintf("/dev/loop%d", n)
		if d, err := configureLoop(device, f, label, flags); err == nil || !errors.Is(err, unix.EBUSY) {
			return d, err
		}
	}
	return nil, errors.New("no free loop device: other programs take them faster")
}

// openAttached opens a device if the image is still attached to it; nil if not.
func openAttached(device string, image *os.File) (*os.File, error) {
	d, err := os.Open(device)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(image.Fd()), &st); err != nil {
		d.Close()
		return nil, err
	}
	info, err := unix.IoctlLoopGetStatus64(int(d.Fd()))
	if err == nil && info.Inode == st.Ino && info.Device == st.Dev {
		return d, nil
	}
	d.Close()
	return nil, ignore(err, unix.ENXIO)
}

// configureLoop attaches an image to a free device, and opens that for reading: one open for writing may keep a file
// system from being mounted.
func configureLoop(device string, image *os.File, label string, flags uint32) (_ *os.File, err error) {
	d, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	c := unix.LoopConfig{Fd: uint32(image.Fd())}
	copy(c.Info.File_name[:len(c.Info.File_name)-1], label) // what losetup -l shows
	// Direct I/O: without it every page is cached twice. Some file systems do not support it.
	c.Info.Flags = flags | unix.LO_FLAGS_DIRECT_IO
	err = unix.IoctlLoopConfigure(int(d.Fd()), &c)
	if errors.Is(err, unix.EINVAL) {
		c.Info.Flags = flags
		err = unix.IoctlLoopConfigure(int(d.Fd()), &c)
	}
	if err != nil {
		return nil, &os.PathError{Op: "configure", Path: device, Err: err}
	}
	return os.Open(device)
}

// findLoop returns the device of an image; empty: none. It compares inodes, as the path differs between mount
// namespaces.
func findLoop(image string) (device string, err error) {
	var st unix.Stat_t
	if err := unix.Stat(image, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: image, Err: err}
	}
	bound, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return "", err
	}
	for _, path := range bound {
		device := "/dev/" + filepath.Base(filepath.Dir(filepath.Dir(path)))
		info, err := loopInfo(device)
		if err == nil && info.Inode == st.Ino && info.Device == st.Dev {
			return device, nil
		}
		if err != nil && !errors.Is(err, unix.ENXIO) && !errors.Is(err, os.ErrNotExist) {
			return "", err // unless it was detached in between
		}
	}
	return "", nil
}

// staysAttached returns an error for a device that was detached while open: the kernel may remove it at any moment.
func staysAttached(device *os.File) error {
	info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
	if err != nil {
		return err
	}
	if info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0 {
		return fmt.Errorf("%w: %s is being detached, and a program still has it open", errInUse, device.Name())
	}
	return nil
}

func loopInfo(device string) (*unix.LoopInfo64, error) {
	d, err := os.Open(device)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return unix.IoctlLoopGetStatus64(int(d.Fd()))
}

// detachLoop detaches the device of an image. If a program still has it open, the kernel does it later.
func detachLoop(image string) error {
	return withLoop(image, unix.LOOP_CLR_FD, unix.ENXIO)
}

// growLoop makes the device of an image as large as the image.
func growLoop(image string) error {
	return withLoop(image, unix.LOOP_SET_CAPACITY, nil)
}

// withLoop sends a request to the device of an image, if it has one.
func withLoop(image string, request uint, fine error) error {
	device, err := findLoop(image)
	if err != nil || device == "" {
		return err
	}
	d, err := os.Open(device)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.IoctlSetInt(int(d.Fd()), request, 0); err != nil && !errors.Is(err, fine) {
		return &os.PathError{Op: "ioctl", Path: device, Err: err}
	}
	return nil
}
