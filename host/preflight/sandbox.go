package preflight

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/names"
)

// isolated runs work on a thread with its own network and mount namespaces. The thread ends with the work, and the
// namespaces and their content with the thread. It is never the main thread, which cannot end: /proc/self (net, mounts)
// and other processes' nsenter show its namespaces as those of the whole process.
func isolated(work func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- isolated(work) // on another thread: this one is blocked meanwhile
			return
		}
		// Never unlocked: the runtime discards the thread.
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
			done <- fmt.Errorf("new namespaces: %w", err)
			return
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			done <- fmt.Errorf("private mounts: %w", err)
			return
		}
		done <- work()
	}()
	return <-done
}

// addLink creates an interface in the thread's network namespace.
func addLink(kind string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "check0"
	var link netlink.Link
	switch kind {
	case "bridge":
		link = &netlink.Bridge{LinkAttrs: attrs}
	case "veth":
		link = &netlink.Veth{LinkAttrs: attrs, PeerName: "check1"}
	case "vxlan":
		link = &netlink.Vxlan{LinkAttrs: attrs, VxlanId: 1, Port: names.VXLANPort}
	case "wireguard":
		link = &netlink.Wireguard{LinkAttrs: attrs}
	default:
		return fmt.Errorf("unknown kind %s", kind)
	}
	// netlink.LinkAdd uses a socket of the calling thread's namespace.
	return netlink.LinkAdd(link)
}

// overlayOn mounts an overlay with all its parts in dir.
func overlayOn(dir string) error {
	temp, err := os.MkdirTemp(dir, ".kubelith-check-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(temp, name), 0o700); err != nil {
			return err
		}
	}
	merged := filepath.Join(temp, "merged")
	options := fmt.Sprintf("lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work", temp, temp, temp)
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		return err
	}
	return unix.Unmount(merged, unix.MNT_DETACH)
}
