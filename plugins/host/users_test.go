package host

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"kubelith.io/kubelith/plugins/process"
)

func autoSpec(name string) *Spec {
	uid := int64(AutoUID)
	return &Spec{Spec: process.Spec{Name: name, Limits: process.Limits{UID: &uid}}}
}

// chooseAll gives plugins users until the range is used up, and returns these with the plugins' names.
func chooseAll(t *testing.T, u *users) map[int64]string {
	t.Helper()
	chosen := map[int64]string{}
	for {
		spec := autoSpec(strconv.Itoa(len(chosen)))
		if err := u.choose(spec); err != nil {
			return chosen
		}
		uid := *spec.Limits.UID
		if uid < FirstAutoUID || uid > LastAutoUID || chosen[uid] != "" {
			t.Fatalf("%s has the user %d, as %q does", spec.Name, uid, chosen[uid])
		}
		chosen[uid] = spec.Name
	}
}

// Each plugin has a user of its own and keeps it, until the range is used up.
func TestUsers(t *testing.T) {
	var u users
	chosen := chooseAll(t, &u)
	for uid, name := range chosen {
		if again := autoSpec(name); u.choose(again) != nil || *again.Limits.UID != uid {
			t.Errorf("%s had the user %d, and has %d now", name, uid, *again.Limits.UID)
		}
	}
	// Other tests' plugins may have some.
	if all := LastAutoUID - FirstAutoUID + 1; len(chosen) > all || len(chosen) < all-50 {
		t.Errorf("%d plugins have a user, of %d", len(chosen), all)
	}
}

// A plugin gets no user that a process of the host has, such as another server's plugin.
func TestUsersOfOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may start a process as another user")
	}
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: LastAutoUID, Gid: LastAutoUID}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var u users
	if name, ok := chooseAll(t, &u)[LastAutoUID]; ok {
		t.Errorf("%s has the user of process %d", name, cmd.Process.Pid)
	}
}
