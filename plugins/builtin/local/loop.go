package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// attachLoop makes a block device of an image, or finds the one that it has.
// The caller holds the volume's lock, so that an image never gets two.
func attachLoop(image, label string) (device string, err error) {
	if device, err = findLoop(image); err != nil {
		return "", err
	}
	if device != "" {
		return device, staysAttached(device)
	}
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", fmt.Errorf("block volumes need loop devices, `modprobe loop` may help: %w", err)
	}
	defer control.Close()
	// Another program may take the device that the kernel names free, so ask again.
	for range 64 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", fmt.Errorf("a free loop device: %w", err)
		}
		device = fmt.Sprintf("/dev/loop%d", n)
		if err = configureLoop(device, f, label); err == nil || !errors.Is(err, unix.EBUSY) {
			return device, err
		}
	}
	return "", errors.New("no free loop device: other programs take them faster")
}

// configureLoop puts an image behind a free device.
func configureLoop(device string, image *os.File, label string) error {
	d, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	c := unix.LoopConfig{Fd: uint32(image.Fd())}
	copy(c.Info.File_name[:len(c.Info.File_name)-1], label) // what losetup -l shows
	// Direct: without it every page is cached twice. Some file systems cannot.
	c.Info.Flags = unix.LO_FLAGS_DIRECT_IO
	err = unix.IoctlLoopConfigure(int(d.Fd()), &c)
	if errors.Is(err, unix.EINVAL) {
		c.Info.Flags = 0
		err = unix.IoctlLoopConfigure(int(d.Fd()), &c)
	}
	if err != nil {
		return &os.PathError{Op: "configure", Path: device, Err: err}
	}
	return nil
}

// findLoop returns the device of an image, "" when it has none. It compares inodes: the kernel's path of the file
// is another one in each mount namespace.
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
			return "", err // not: detached meanwhile
		}
	}
	return "", nil
}

// staysAttached refuses a device that was detached while a program had it open: the kernel takes it away at any moment.
func staysAttached(device string) error {
	info, err := loopInfo(device)
	if err != nil {
		return err
	}
	if info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0 {
		return fmt.Errorf("%w: %s is being detached, and a program still has it open", errInUse, device)
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

// detachLoop frees the device of an image. If a program still has it open, the kernel does it when that ends.
func detachLoop(image string) error {
	return withLoop(image, unix.LOOP_CLR_FD, unix.ENXIO)
}

// growLoop lets the device of an image see that the image has grown.
func growLoop(image string) error {
	return withLoop(image, unix.LOOP_SET_CAPACITY, nil)
}

// withLoop makes a request to the device of an image, if it has one.
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
