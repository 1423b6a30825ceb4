package process

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Threads that dropped privileges run nothing else, and end.
func TestOwnThreads(t *testing.T) {
	threads := map[int]bool{}
	for range 50 {
		tid := make(chan int)
		onOwnThread(func() {
			if err := dropPrivileges(nil); err != nil {
				t.Error(err)
			}
			tid <- unix.Gettid()
		})
		id := <-tid
		if id == unix.Getpid() {
			t.Error("it ran on the main thread, which never ends")
		}
		threads[id] = true
		runtime.Gosched()
		if n, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err != nil || n != 0 {
			t.Fatalf("this thread has no_new_privs: %d, %v", n, err)
		}
	}
	eventually(t, "the threads have ended", func() bool {
		left, _ := filepath.Glob("/proc/self/task/*")
		for _, task := range left {
			status, _ := os.ReadFile(task + "/status")
			if strings.Contains(string(status), "\nNoNewPrivs:\t1\n") {
				return false
			}
		}
		return true
	})
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	const within = time.Minute
	for end := time.Now().Add(within); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in %v: %s", within, what)
		}
	}
}
