package host

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"

	"github.com/containerd/containerd/v2/pkg/cap"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/plugins"
)

// storageCapabilities are those of a storage plugin whose settings name none: what mounting, making and growing file systems takes.
// The directories of plugins have no settings, and a CSI driver without them does nothing.
var storageCapabilities = [...]string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "MKNOD", "SYS_ADMIN", "SYS_RESOURCE"}

// capabilities are the numbers of those that a plugin's processes may have.
func (s *Spec) capabilities() ([]uintptr, error) {
	names := s.Limits.Capabilities
	if names == nil && s.Kind == plugins.Storage {
		names = storageCapabilities[:]
	}
	var out []uintptr
	for _, name := range names {
		n := slices.Index(cap.Known(), "CAP_"+name)
		if n < 0 {
			return nil, fmt.Errorf("there is no capability %q", name)
		}
		out = append(out, uintptr(n))
	}
	return out, nil
}

// onOwnThread runs f on an OS thread that ends with it: what f changes of the thread, nobody else meets.
func onOwnThread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread never ends, and is what /proc shows of us. While we hold it, f gets another one.
			defer runtime.UnlockOSThread()
			running := make(chan struct{})
			onOwnThread(func() { close(running); f() })
			<-running
			return
		}
		f() // never unlocked, so that the thread ends
	}()
}

// giveUp takes from the calling thread, and so from all that it starts, the ways to more rights than these capabilities: set-user-ID
// programs and file capabilities mean nothing any more, and a program that root executes has these and no others. What
// the thread itself may do now stays.
func giveUp(except []uintptr) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	if os.Geteuid() != 0 {
		return nil // it has nothing to give up, and may not
	}
	for n := uintptr(0); ; n++ {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, n, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) { // the kernel has no more
			return dropInheritable()
		}
		if err == nil && has == 1 && !slices.Contains(except, n) {
			err = unix.Prctl(unix.PR_CAPBSET_DROP, n, 0, 0, 0)
		}
		if err != nil {
			return fmt.Errorf("drop the capability %s: %w", cap.FromNumber(int(n)), err)
		}
	}
}

// dropInheritable: what is inheritable, a program of root gets beside what is in the bounding set.
func dropInheritable() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read the capabilities: %w", err)
	}
	data[0].Inheritable, data[1].Inheritable = 0, 0
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("drop inheritable capabilities: %w", err)
	}
	return nil
}
