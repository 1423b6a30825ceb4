package host

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"kubelith.io/kubelith/plugins/process"
)

func autoSpec(name string) *Spec {
	uid := int64(AutoUID)
	return &Spec{Spec: process.Spec{Name: name, Limits: process.Limits{UID: &uid}}}
}

// Each plugin has a user of its own and keeps it, until the range is used up.
func TestUsers(t *testing.T) {
	var u users
	seen := map[int64]string{}
	names := 0
	for {
		spec := autoSpec(string(rune('A' + names)))
		if err := u.choose(spec); err != nil {
			break
		}
		uid := *spec.Limits.UID
		if uid < FirstAutoUID || uid > LastAutoUID || seen[uid] != "" {
			t.Fatalf("%s has the user %d, as %q does", spec.Name, uid, seen[uid])
		}
		seen[uid] = spec.Name
		names++
		if again := autoSpec(spec.Name); u.choose(again) != nil || *again.Limits.UID != uid {
			t.Fatalf("%s had the user %d, and has %d now", spec.Name, uid, *again.Limits.UID)
		}
	}
	// Other tests' plugins may have some.
	if all := LastAutoUID - FirstAutoUID + 1; names > all || names < all-50 {
		t.Errorf("%d plugins have a user, of %d", names, all)
	}
}

// A plugin gets no user that a process of the host has, such as another server's plugin.
func TestUsersOfOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may start a process as another user")
	}
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: LastAutoUID, Gid: LastAutoUID}, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var u users
	for n := 0; ; n++ {
		spec := autoSpec(string(rune('A' + n)))
		if err := u.choose(spec); err != nil {
			break
		}
		if *spec.Limits.UID == LastAutoUID {
			t.Fatalf("%s has the user of process %d", spec.Name, cmd.Process.Pid)
		}
	}
}
