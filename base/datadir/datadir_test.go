package datadir

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func mustOpen(t *testing.T, dir, release string) *Dir {
	t.Helper()
	d, err := Open(dir, release)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func version(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "version"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	d := mustOpen(t, dir, "v1")
	if info, _ := os.Stat(dir); info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v", info.Mode())
	}
	if got := version(t, dir); got != "1\nkubelith v1\n" {
		t.Errorf("version %q", got)
	}
	_, err := Open(dir, "v2")
	want := fmt.Sprintf("data directory %s is in use by process %d: stop it, or use another --data-dir", dir, os.Getpid())
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if got := version(t, dir); got != "1\nkubelith v1\n" {
		t.Errorf("a refused Open changed the version to %q", got)
	}
	if got := d.Former(); got != "" || d.Trial() {
		t.Errorf("a new directory was used by %q", got)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = mustOpen(t, dir, "v2")
	defer d.Close()
	if got := d.Former(); got != "v1" {
		t.Errorf("former release %q", got)
	}
	if got := version(t, dir); got != "1\nkubelith v1\n" {
		t.Errorf("version %q before the start is complete", got)
	}
	if !d.Trial() {
		t.Error("the release of before cannot come back before the start is complete")
	}
	if err := d.Adopt(); err != nil {
		t.Fatal(err)
	}
	if d.Trial() {
		t.Error("the release of before may come back after a complete start")
	}
	if got := version(t, dir); got != "1\nkubelith v2\n" {
		t.Errorf("version %q", got)
	}
}

func TestVersionRefused(t *testing.T) {
	for content, want := range map[string]string{
		"2\nkubelith v9\n": "has format 2 and was written by a newer kubelith (v9): this one knows formats up to 1",
		"2\n":              "has format 2 and was written by a newer kubelith",
		"":                 `version is damaged (its first line is "", not the number of a format): restore it`,
		"x\n":              `its first line is "x"`,
		"0\n":              `its first line is "0"`,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "version"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(dir, "v1")
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: error %v, want %q", content, err, want)
		}
		if got := version(t, dir); got != content {
			t.Errorf("%q became %q", content, got)
		}
		if d, err := open(dir, "v1", 0, nil); err == nil {
			d.Close()
			t.Error("opened the second time")
		} else if strings.Contains(err.Error(), "in use") {
			t.Error("the lock was kept after an error")
		}
	}
}

func TestUpgrade(t *testing.T) {
	dir := t.TempDir()
	if err := mustOpen(t, dir, "v1").Close(); err != nil {
		t.Fatal(err)
	}
	var ran []string
	failure := errors.New("power failed")
	upgrades := []step{
		func(string) error { ran = append(ran, "1to2"); return nil },
		func(string) error { ran = append(ran, "2to3"); return failure },
	}
	_, err := open(dir, "v3", 0, upgrades)
	if !errors.Is(err, failure) || !strings.Contains(err.Error(), "upgrade from format 2 to 3") {
		t.Errorf("error %v", err)
	}
	if got := version(t, dir); got != "2\nkubelith v3\n" {
		t.Errorf("version %q after an upgrade that stopped half way", got)
	}
	upgrades[1] = func(string) error { ran = append(ran, "2to3 again"); return nil }
	d, err := open(dir, "v3", 0, upgrades)
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	if got := version(t, dir); got != "3\nkubelith v3\n" {
		t.Errorf("version %q", got)
	}
	if got := strings.Join(ran, ","); got != "1to2,2to3,2to3 again" {
		t.Errorf("steps %s", got)
	}
	fresh := t.TempDir()
	d, err = open(fresh, "v3", 0, []step{func(string) error { return errors.New("a new directory was upgraded") }})
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
}

func TestUnusable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "x")} {
		if _, err := Open(dir, "v1"); err == nil || !strings.Contains(err.Error(), "a file is in the way") {
			t.Errorf("%s: error %v", dir, err)
		}
	}
	dir := t.TempDir()
	_, err := open(dir, "v1", 1<<62, nil)
	if err == nil || !strings.Contains(err.Error(), "is on a full disk (") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) > 0 {
		t.Errorf("%v was made on a full disk", entries)
	}
	for err, want := range map[error]string{
		syscall.EROFS:  "mounted read-only",
		syscall.ENOSPC: "its disk is full",
		syscall.EIO:    "use another --data-dir",
	} {
		got := unusable("/d", &os.PathError{Op: "open", Path: "/d/lock", Err: err})
		if !strings.HasPrefix(got.Error(), "data directory /d cannot be written (") || !strings.Contains(got.Error(), want) {
			t.Errorf("%v", got)
		}
	}
}

// TestLockOfDeadProcess: a program that a killed process was just starting keeps the lock for a moment.
func TestLockOfDeadProcess(t *testing.T) {
	dir := t.TempDir()
	dead := exec.Command("/bin/true")
	if err := dead.Run(); err != nil {
		t.Skip(err)
	}
	child, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(child, dead.Process.Pid)
	if err := unix.Flock(int(child.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(100*time.Millisecond, func() { child.Close() })
	defer timer.Stop()
	mustOpen(t, dir, "v1").Close()
}

func TestHold(t *testing.T) {
	base := t.TempDir()
	run, kubelet := filepath.Join(base, "run"), filepath.Join(base, "kubelet")
	if err := os.Mkdir(run, 0o700); err != nil { // as earlier versions created it
		t.Fatal(err)
	}
	first := mustOpen(t, filepath.Join(base, "first"), "v1")
	if err := first.Hold(run, kubelet); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(run); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("the run directory has %v, %v: pods with hostUsers: false cannot pass", info.Mode(), err)
	}
	if owner := ReadOwner(filepath.Join(run, RunMark)); owner.DataDir != base+"/first" {
		t.Errorf("owner of the run directory: %q", owner)
	}
	second := mustOpen(t, filepath.Join(base, "second"), "v1")
	defer second.Close()
	for _, dirs := range [][2]string{{run, base + "/k2"}, {base + "/run2", kubelet}} {
		if err := second.Hold(dirs[0], dirs[1]); err == nil || !strings.Contains(err.Error(), "in use by another server") {
			t.Errorf("%q: error %v", dirs, err)
		}
	}
	if owner := ReadOwner(filepath.Join(run, RunMark)); owner.DataDir != base+"/first" {
		t.Errorf("a refused Hold changed the owner to %q", owner)
	}
	// All processes share the network namespace, and reset sees that it is in use.
	net, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer net.Close()
	if err := unix.Flock(int(net.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("the network namespace is not locked: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	// Any user may take that lock, for as long as they like: no server waits for it.
	if err := unix.Flock(int(net.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	if err := second.Hold(run, ""); err != nil {
		t.Errorf("after Close: %v", err)
	}
}

// A new directory on a full disk is refused; one with a cluster is opened, and its ballast is removed.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	const all = 1 << 62
	if _, err := open(dir, "v1", all, nil); err == nil || !strings.Contains(err.Error(), "full disk") {
		t.Errorf("a new directory: %v", err)
	}
	mustOpen(t, dir, "v1").Close()
	d, err := open(dir, "v1", all, nil)
	if err != nil {
		t.Fatalf("a directory with a cluster: %v", err)
	}
	d.Close()

	ballast := filepath.Join(dir, ballastFile)
	for _, step := range []struct {
		what string
		do   func() error
		want int64
	}{
		{"no room", func() error { return keepBallast(dir, 1<<20, all) }, -1},
		{"room", func() error { return keepBallast(dir, 1<<20, 0) }, 1 << 20},
		{"it is there", func() error { return keepBallast(dir, 1<<20, all) }, 1 << 20},
		{"space is left", func() error { dropBallast(dir, 0); return nil }, 1 << 20},
		{"the disk is full", func() error { dropBallast(dir, all); return nil }, -1},
		{"it is gone already", func() error { dropBallast(dir, all); return nil }, -1},
	} {
		if err := step.do(); err != nil {
			if errors.Is(err, unix.EOPNOTSUPP) {
				t.Skip("no fallocate on this file system")
			}
			t.Errorf("%s: %v", step.what, err)
		}
		var st unix.Stat_t
		size := int64(-1)
		if unix.Stat(ballast, &st) == nil {
			size = st.Size
			if st.Blocks*512 < step.want {
				t.Errorf("%s: only %d blocks are taken", step.what, st.Blocks)
			}
		}
		if size != step.want {
			t.Errorf("%s: it has %d bytes, want %d", step.what, size, step.want)
		}
	}
}
