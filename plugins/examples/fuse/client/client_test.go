package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/plugins/examples/fuse/store"
	"kubelith.io/kubelith/plugins/examples/fuse/store/storetest"
)

// clientVariable makes the test's executable a client.
const clientVariable = "KUBELITH_FUSE_TEST_CLIENT"

func TestMain(m *testing.M) {
	if os.Getenv(clientVariable) != "" {
		if err := Run(context.Background(), os.Args[1], os.Args[2], func(s string) { fmt.Fprintln(os.Stderr, s) }); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// rig is a mounted volume with a store, as the driver creates it.
type rig struct {
	t      *testing.T
	store  *storetest.Server
	dir    string // of the client
	path   string // where it is mounted
	mount  string
	fd     int
	client *exec.Cmd
	conn   *Conn
}

func newRig(t *testing.T, capacity int64) *rig {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no /dev/fuse: ", err)
	}
	r := &rig{t: t, store: &storetest.Server{}, dir: t.TempDir(), path: t.TempDir()}
	server := httptest.NewServer(r.store)
	t.Cleanup(server.Close)
	config := Config{Store: store.Config{Endpoint: server.URL, Bucket: storetest.Bucket, AccessKey: "a", SecretKey: "b", Prefix: "v"}, Capacity: capacity}
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.dir, "config.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	r.newMount("first")
	// A process that waits for a hanging client cannot be killed, and blocks each process that reads about it in /proc.
	// A forced unmount ends the connection.
	hang := time.AfterFunc(2*time.Minute, func() { unix.Unmount(r.path, unix.MNT_FORCE) })
	t.Cleanup(func() {
		hang.Stop()
		unix.Unmount(r.path, unix.MNT_FORCE)
		unix.Unmount(r.path, unix.MNT_DETACH)
		r.kill()
		unix.Close(r.fd)
	})
	r.start()
	r.attach()
	return r
}

func (r *rig) newMount(name string) {
	r.t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions,max_read=%d", fd, maxWrite)
	if err := unix.Mount("test", r.path, "fuse.kubelith", unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		r.t.Skip("FUSE cannot be mounted here: ", err)
	}
	r.fd, r.mount = fd, name
}

// start a client.
func (r *rig) start() {
	r.t.Helper()
	r.client = exec.Command(os.Args[0], r.dir, filepath.Join(r.dir, "config.json"))
	r.client.Env = append(os.Environ(), clientVariable+"=1")
	r.client.Stderr = os.Stderr
	if err := r.client.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.eventually("the client", func() (err error) {
		if r.conn, err = Dial(r.dir); err != nil {
			return err
		}
		a, _, err := r.conn.Do(r.t.Context(), Request{Op: "status"}, -1)
		if err == nil && !a.Ready {
			r.conn.Close()
			err = errors.New(a.Reason)
		}
		return err
	})
}

func (r *rig) attach() {
	r.t.Helper()
	r.do(Request{Op: "attach", Mount: r.mount}, r.fd)
}

func (r *rig) do(request Request, fd int) {
	r.t.Helper()
	if _, _, err := r.conn.Do(r.t.Context(), request, fd); err != nil {
		r.t.Fatalf("%s: %v", request.Op, err)
	}
}

// kill the client. The test holds the connection to the kernel.
func (r *rig) kill() {
	r.client.Process.Kill()
	r.client.Wait()
	r.conn.Close()
}

func (r *rig) eventually(what string, ok func() error) {
	r.t.Helper()
	var err error
	for range 200 {
		if err = ok(); err == nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	r.t.Fatalf("%s: %v", what, err)
}

func (r *rig) file(name string) string { return filepath.Join(r.path, name) }

func (r *rig) write(name, content string) {
	r.t.Helper()
	if err := os.WriteFile(r.file(name), []byte(content), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) wantFile(name, content string) {
	r.t.Helper()
	if got, err := os.ReadFile(r.file(name)); err != nil || string(got) != content {
		r.t.Errorf("%s has %.60q, %v; want %.60q", name, got, err, content)
	}
}

func (r *rig) wantObject(key, content string) {
	r.t.Helper()
	if got, found := r.store.Get(key); !found || got != content {
		r.t.Errorf("object %s has %.60q, %v; want %.60q", key, got, found, content)
	}
}

// TestFiles: what programs do with files, and what is then in the store.
func TestFiles(t *testing.T) {
	r := newRig(t, 0)
	r.write("a", "hello")
	r.wantFile("a", "hello")
	r.wantObject("v/a", "hello")

	if err := os.MkdirAll(r.file("dir/sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	r.write("dir/sub/b", strings.Repeat("0123456789", 100_000))
	r.wantFile("dir/sub/b", strings.Repeat("0123456789", 100_000))

	// In the middle, at the end, and shorter.
	f, err := os.OpenFile(r.file("a"), os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(" world"); err != nil {
		t.Error(err)
	}
	if err := f.Sync(); err != nil {
		t.Error(err)
	}
	r.wantObject("v/a", "hello world")
	if err := errors.Join(f.Truncate(3), f.Close()); err != nil {
		t.Error(err)
	}
	r.wantObject("v/a", "hel")
	if err := os.Truncate(r.file("a"), 5); err != nil {
		t.Error(err)
	}
	r.wantObject("v/a", "hel\x00\x00")

	// Attributes.
	at := time.Unix(1600000000, 0)
	if err := errors.Join(os.Chmod(r.file("a"), 0o600), os.Chown(r.file("a"), 7, 8), os.Chtimes(r.file("a"), at, at)); err != nil {
		t.Error(err)
	}
	time.Sleep(1100 * time.Millisecond) // what the kernel believes
	info, err := os.Stat(r.file("a"))
	if err != nil || info.Mode() != 0o600 || info.Sys().(*syscall.Stat_t).Uid != 7 || info.Size() != 5 || !info.ModTime().Equal(at) {
		t.Errorf("%v, %v", info, err)
	}

	// Names.
	names := func(dir string) (names []string) {
		entries, err := os.ReadDir(r.file(dir))
		if err != nil {
			t.Error(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	if got := names("."); !slices.Equal(got, []string{"a", "dir"}) {
		t.Errorf("the root has %q", got)
	}
	if err := os.Remove(r.file("dir")); !errors.Is(err, syscall.ENOTEMPTY) {
		t.Errorf("remove a directory that is not empty: %v", err)
	}
	if err := errors.Join(os.Rename(r.file("a"), r.file("dir/c")), os.Rename(r.file("dir"), r.file("moved"))); err != nil {
		t.Fatal(err)
	}
	r.wantFile("moved/c", "hel\x00\x00")
	r.wantFile("moved/sub/b", strings.Repeat("0123456789", 100_000))
	if got := r.store.Keys("v/"); !slices.Equal(got, []string{"v/moved/", "v/moved/c", "v/moved/sub/", "v/moved/sub/b"}) {
		t.Errorf("the store has %q", got)
	}
	r.write("moved/d", "replaced")
	if err := os.Rename(r.file("moved/d"), r.file("moved/c")); err != nil {
		t.Error(err)
	}
	r.wantFile("moved/c", "replaced")

	// Deleted, and open.
	if f, err = os.Open(r.file("moved/c")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(r.file("moved/c")); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(f); err != nil || string(got) != "replaced" {
		t.Errorf("a deleted file has %q, %v", got, err)
	}
	f.Close()
	if err := os.RemoveAll(r.file("moved")); err != nil {
		t.Error(err)
	}
	if got := r.store.Keys("v/"); len(got) != 0 {
		t.Errorf("left: %q", got)
	}
	if _, err := os.Stat(r.file("moved")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what is deleted: %v", err)
	}
}

// TestOtherNode: what another node writes is here a moment later.
func TestOtherNode(t *testing.T) {
	r := newRig(t, 0)
	r.store.Set("v/there", "first")
	r.store.Set("v/in/a/directory", "deep")
	r.wantFile("there", "first")
	r.wantFile("in/a/directory", "deep")
	if info, err := os.Stat(r.file("there")); err != nil || info.Mode() != 0o666 {
		t.Errorf("a file without metadata: %v, %v", info, err)
	}
	r.store.Set("v/there", "second one")
	time.Sleep(1100 * time.Millisecond)
	r.wantFile("there", "second one")
}

// TestLargeFile: a file is fetched in parts, as they are read.
func TestLargeFile(t *testing.T) {
	r := newRig(t, 0)
	content := bytes.Repeat([]byte("kubelith"), 10<<20/8)
	r.store.Set("v/large", string(content))
	f, err := os.Open(r.file("large"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := make([]byte, 8)
	if _, err := f.ReadAt(p, 9<<20); err != nil || string(p) != "kubelith" {
		t.Errorf("read %q, %v", p, err)
	}
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes are read, %v", len(got), err)
	}
}

// TestCapacity: a full volume reports that it is full, and has room again when a file is deleted or the volume is
// expanded.
func TestCapacity(t *testing.T) {
	const mib = 1 << 20
	r := newRig(t, 2*mib)
	free := func() int64 {
		var s unix.Statfs_t
		if err := unix.Statfs(r.path, &s); err != nil {
			t.Fatal(err)
		}
		return int64(s.Bavail) * s.Bsize
	}
	if got := free(); got != 2*mib {
		t.Errorf("%d bytes are free", got)
	}
	r.write("one", strings.Repeat("x", mib))
	if got := free(); got != mib {
		t.Errorf("%d bytes are free", got)
	}
	if err := os.WriteFile(r.file("two"), bytes.Repeat([]byte("x"), mib+1), 0o644); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a full volume: %v", err)
	}
	if err := os.Remove(r.file("two")); err != nil {
		t.Error(err)
	}
	r.do(Request{Op: "resize", Capacity: 4 * mib}, -1)
	r.write("two", strings.Repeat("x", mib+1))
	if err := errors.Join(os.Remove(r.file("one")), os.Remove(r.file("two"))); err != nil {
		t.Error(err)
	}
	if got := free(); got != 4*mib {
		t.Errorf("%d bytes are free", got)
	}
}

// writeAway writes a file whose store goes away before the file is closed.
func writeAway(t *testing.T, r *rig, name, content string) {
	t.Helper()
	f, err := os.Create(r.file(name))
	if err != nil {
		t.Fatal(err)
	}
	r.store.Away(true)
	if _, err := f.WriteString(content); err != nil {
		t.Error(err)
	}
	if err := f.Sync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("sync while the store is away: %v", err)
	}
	if err := f.Close(); !errors.Is(err, syscall.EIO) {
		t.Errorf("close while the store is away: %v", err)
	}
}

// TestStoreAway: programs get errors, and nothing that was written is lost.
func TestStoreAway(t *testing.T) {
	r := newRig(t, 0)
	r.write("before", "kept")
	writeAway(t, r, "new", "later")
	if _, err := os.ReadDir(r.path); !errors.Is(err, syscall.EIO) {
		t.Errorf("list while the store is away: %v", err)
	}
	if _, _, err := r.conn.Do(t.Context(), Request{Op: "sync"}, -1); err == nil {
		t.Error("a sync while the store is away succeeds")
	}
	r.kill() // what is not uploaded survives
	r.store.Away(false)
	r.start()
	r.attach()
	r.do(Request{Op: "sync"}, -1)
	r.wantObject("v/new", "later")
	r.wantFile("before", "kept")

	r.store.Limit(20)
	if err := os.WriteFile(r.file("big"), bytes.Repeat([]byte("x"), 100), 0o644); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("write into a full store: %v", err)
	}
}

// TestClientKilled: programs that work with files while clients are killed notice nothing, not even those that have
// files open.
func TestClientKilled(t *testing.T) {
	r := newRig(t, 0)
	// Another process works with the files. This one must have none open: to start a client it would have to close them
	// in the new process, which waits for a client.
	const script = `exec 3>open 4<>deleted; echo still here >&4; rm deleted
i=0
while [ $i -lt 100 ]; do
	mkdir d$i && echo $i >d$i/f && mv d$i/f d$i/g && [ "$(cat d$i/g)" = $i ] && echo $i >>log || exit 1
	rm -r d$i || exit 2
	i=$((i+1))
done
echo written after all >&3 || exit 3
[ "$(cat /proc/self/fd/4)" = "still here" ] || exit 4`
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Dir = r.path
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var failed error
	ended := make(chan struct{})
	go func() { defer close(ended); failed = cmd.Wait() }()
	kills := 0
	for running := true; running; {
		select {
		case <-ended:
			running = false
		case <-time.After(time.Duration(1+kills) * 150 * time.Millisecond): // the program must get on between two kills
			r.kill()
			r.start()
			r.attach()
			kills++
		}
	}
	if failed != nil {
		t.Errorf("after %d kills: %v: %s", kills, failed, output.String())
	}
	if kills == 0 {
		t.Error("no client was killed meanwhile")
	}
	t.Log("clients killed: ", kills)
	log, err := os.ReadFile(r.file("log"))
	if lines := strings.Count(string(log), "\n"); err != nil || lines != 100 {
		t.Errorf("%d lines, %v", lines, err)
	}
	r.wantObject("v/open", "written after all\n")
	if got := r.store.Keys("v/"); !slices.Equal(got, []string{"v/log", "v/open"}) {
		t.Errorf("the store has %q", got)
	}
}

// TestDriverKilled: the driver gets the connection back from the client.
func TestDriverKilled(t *testing.T) {
	r := newRig(t, 0)
	r.write("a", "1")
	unix.Close(r.fd)
	a, fd, err := r.conn.Do(t.Context(), Request{Op: "device"}, -1)
	if err != nil || a.Mount != r.mount || fd < 0 {
		t.Fatalf("%+v, %d, %v", a, fd, err)
	}
	r.fd = fd
	r.kill()
	r.start()
	r.attach()
	r.wantFile("a", "1")
}

// TestNewMount: after a restart of the node there is a new mount, and it has what the old one had not uploaded.
func TestNewMount(t *testing.T) {
	r := newRig(t, 0)
	writeAway(t, r, "late", "content")
	r.kill()
	if err := unix.Unmount(r.path, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	unix.Close(r.fd)
	r.store.Away(false)
	r.newMount("second")
	r.start()
	r.attach()
	r.wantFile("late", "content")
	if left, _ := os.ReadDir(filepath.Join(r.dir, mountsDir)); len(left) != 1 {
		t.Errorf("%d mounts are left", len(left))
	}
}

// TestUnmount: a client that serves nothing any more is ready for the next mount.
func TestUnmount(t *testing.T) {
	r := newRig(t, 0)
	r.write("a", "1")
	if err := unix.Unmount(r.path, 0); err != nil {
		t.Fatal(err)
	}
	unix.Close(r.fd)
	r.eventually("the end of the mount", func() error {
		a, _, err := r.conn.Do(t.Context(), Request{Op: "status"}, -1)
		if err == nil && a.Mount != "" {
			err = errors.New("it serves " + a.Mount)
		}
		return err
	})
	r.newMount("second")
	r.attach()
	r.wantFile("a", "1")
}

// TestStoreAwayAtStart: the client reports why it is not ready.
func TestStoreAwayAtStart(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.json")
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := Run(ctx, dir, config, func(string) {}); err != nil {
			t.Error(err)
		}
	})
	defer ended.Wait()
	defer cancel()
	r := &rig{t: t, dir: dir}
	reason := func(want string) {
		t.Helper()
		r.eventually("the reason "+want, func() error {
			conn, err := Dial(dir)
			if err != nil {
				return err
			}
			defer conn.Close()
			a, _, err := conn.Do(t.Context(), Request{Op: "status"}, -1)
			if err == nil && (a.Ready || !strings.Contains(a.Reason, want)) {
				err = fmt.Errorf("it is %+v", a)
			}
			return err
		})
	}
	reason("it waits for " + config)
	for content, want := range map[string]string{
		`{"store": {"endpoint": "http://127.0.0.1:1", "bucket": "bucket"}}`: "connection refused",
		`{"store": `: "unexpected end of JSON input",
	} {
		if err := os.WriteFile(config, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		reason(want)
	}
}
