package reset

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// loops returns the loop devices of files below our directories: of block volumes, and those that the kubelet puts on
// top of them. Unmounted files have no path any more, so call it before.
func (r *Reset) loops() []string {
	var out []string
	for _, name := range r.files.Names("/sys/block") {
		file := strings.TrimSuffix(r.files.Text(filepath.Join("/sys/block", name, "loop/backing_file")), " (deleted)")
		for _, dir := range r.dirs() {
			if strings.HasPrefix(file, dir+"/") {
				out = append(out, "/dev/"+name)
				break
			}
		}
	}
	return out
}

// detachLoops frees the devices. The kernel frees an open device when it is closed, for example by the device on top of
// it.
func (r *Reset) detachLoops(devices []string) (errs []error) {
	for _, device := range devices {
		if err := detachLoop(r.files.Path(device)); err != nil {
			errs = append(errs, fmt.Errorf("detach %s: %w: try `losetup --detach %s`", device, err, device))
			continue
		}
		r.printf("detached %s", device)
	}
	return errs
}

func detachLoop(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		return err
	}
	return nil
}
