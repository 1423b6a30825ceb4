package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// errOffline reports that a volume can only grow while no pod uses it.
var errOffline = errors.New("it grows when its pods start again: without CAP_SYS_RESOURCE the kernel grows no mounted file system")

// imageOptions are the mount options. errors=: writing on after an error would make the damage worse. discard: deleting
// files in a volume frees space of the disk. noinit_itable: the zeros of a new file need not be written.
const imageOptions = "errors=remount-ro,discard,noinit_itable"

// mountImage mounts the file system of a volume at the staging path, unless it is mounted. Pods see its directory data,
// not its lost+found. The caller holds the volume's lock.
func (s *store) mountImage(ctx context.Context, v *volume, staging string) error {
	all, err := s.mountsOf(v)
	if err != nil {
		return err
	}
	if mountAt(all, staging) == nil {
		if err := s.attachAndMount(ctx, v, staging); err != nil {
			return err
		}
	} else if err := s.growStaged(v); ignore(err, errOffline) != nil { // an earlier process may have ended before it grew
		return err
	}
	if err := makeDataDir(staging); err != nil {
		return err
	}
	return s.linkData(v, staging)
}

// linkData links data in the volume's directory to where its file system is mounted, for administrators.
func (s *store) linkData(v *volume, staging string) error {
	there, err := filepath.Rel(s.volumeDir(v.ID), dataIn(staging))
	if err != nil {
		return err
	}
	link := s.file(v, dataDir)
	if now, err := os.Readlink(link); err == nil && now == there {
		return nil
	}
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(there, link)
}

// attachAndMount also adapts the file system to its size, which may have changed while it was not mounted. If it fails,
// nothing is mounted.
func (s *store) attachAndMount(ctx context.Context, v *volume, staging string) error {
	image := s.file(v, imageFile)
	if device, err := findLoop(image); err != nil {
		return err
	} else if device == "" { // not while another mount namespace still has it mounted
		if err := repair(ctx, image); err != nil {
			return err
		}
	}
	device, err := mountLoop(image, v.ID, staging)
	if err != nil {
		return err
	}
	err = fit(staging, device, v.Size)
	if err == nil {
		return nil
	}
	if err := errors.Join(unbind(staging), ignore(err, unix.EPERM)); err != nil {
		return err
	}
	if device, err := findLoop(image); err != nil || device != "" {
		return errors.Join(err, errOffline)
	}
	if err := growUnmounted(ctx, image); err != nil {
		return err
	}
	if device, err = mountLoop(image, v.ID, staging); err != nil {
		return err
	}
	if err := fit(staging, device, v.Size); err != nil {
		return errors.Join(err, unbind(staging))
	}
	return nil
}

func ignore(err, fine error) error {
	if errors.Is(err, fine) {
		return nil
	}
	return err
}

// mountLoop mounts the file system in an image. The kernel detaches the device with its last mount.
func mountLoop(image, label, target string) (device string, err error) {
	d, err := openLoop(image, label, unix.LO_FLAGS_AUTOCLEAR)
	if err != nil {
		return "", err
	}
	defer d.Close()
	if err := unix.Mount(d.Name(), target, "ext4", 0, imageOptions); err != nil {
		return "", &os.PathError{Op: "mount the file system of the volume at", Path: target, Err: err}
	}
	return d.Name(), nil
}

// unmountImage undoes mountImage, unless pods use the volume. It is no error if nothing is mounted.
func (s *store) unmountImage(v *volume) error {
	all, err := s.mountsOf(v)
	if err != nil {
		return err
	}
	if p := published(all); len(p) > 0 {
		return fmt.Errorf("%w: mounted at %s", errInUse, p[0].Mountpoint)
	}
	for _, m := range all {
		if err := unbind(m.Mountpoint); err != nil {
			return err
		}
	}
	return ignore(os.Remove(s.file(v, dataDir)), fs.ErrNotExist)
}

// published returns the mounts for pods, without the staging mount, which has the whole file system.
func published(all []*mountinfo.Info) (found []*mountinfo.Info) {
	for _, m := range all {
		if m.Root != "/" {
			found = append(found, m)
		}
	}
	return found
}

// growStaged grows a mounted file system to its image. One that is not mounted grows at its next mount.
func (s *store) growStaged(v *volume) error {
	all, err := s.mountsOf(v)
	if err != nil || len(all) == 0 {
		return err
	}
	image := s.file(v, imageFile)
	device, err := findLoop(image)
	if err != nil {
		return err
	}
	if err := growLoop(image); err != nil {
		return err
	}
	at := all[0].Mountpoint
	if staged := slices.IndexFunc(all, func(m *mountinfo.Info) bool { return m.Root == "/" }); staged >= 0 {
		at = all[staged].Mountpoint // a pod's mount may be read-only
	}
	err = fit(at, device, v.Size)
	if errors.Is(err, unix.EPERM) {
		return errOffline
	}
	return err
}

func dataIn(dir string) string  { return filepath.Join(dir, dataDir) }
func imageIn(dir string) string { return filepath.Join(dir, imageFile) }

// makeDataDir creates the directory that pods see, if it is missing. Pods of any user may write to it, as to an
// emptyDir, whatever the umask. It is renamed into place at the end, as the process may be killed between the steps.
func makeDataDir(dir string) error {
	if _, err := os.Lstat(dataIn(dir)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	temp := dataIn(dir) + ".new"
	if err := os.Mkdir(temp, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Chmod(temp, 0o777); err != nil {
		return err
	}
	return os.Rename(temp, dataIn(dir))
}
