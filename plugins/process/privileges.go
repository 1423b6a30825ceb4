package process

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"

	"github.com/containerd/containerd/v2/pkg/cap"
	"golang.org/x/sys/unix"
)

// onOwnThread runs f on an OS thread that ends with it, so that what f changes of the thread affects nothing else.
func onOwnThread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread never ends, and /proc shows it as the process. While it is locked here, f gets another
			// one.
			defer runtime.UnlockOSThread()
			running := make(chan struct{})
			onOwnThread(func() { close(running); f() })
			<-running
			return
		}
		f() // never unlocked, so that the thread ends
	}()
}

// dropPrivileges keeps what the calling thread starts from gaining more than these capabilities: set-user-ID programs
// and file capabilities have no effect, and programs that root executes have these capabilities only. The thread keeps
// its own privileges.
func dropPrivileges(except []uintptr) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	if os.Geteuid() != 0 {
		return nil // it has nothing to drop, and must not try
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

// dropInheritable clears the inheritable set, which root's programs get in addition to the bounding set.
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
