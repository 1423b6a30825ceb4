package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

func newStore(t *testing.T, limit int64) *store {
	t.Helper()
	s, err := openStore(t.TempDir(), limit, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.deleting.Wait)
	return s
}

func named(name string, m mode) *volume {
	return &volume{ID: idOf(name), Name: name, Mode: m, Created: time.Unix(0, 0).UTC()}
}

func create(t *testing.T, s *store, name string, m mode, size int64) *volume {
	t.Helper()
	v, err := s.create(t.Context(), named(name, m), sizes{min: size})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestCreateTwice: the same request finds the volume, also by a store of another process; another one is refused.
func TestCreateTwice(t *testing.T) {
	s := newStore(t, 0)
	create(t, s, "pvc-1", filesystem, 4096)
	if err := os.WriteFile(filepath.Join(s.volumeDir("pvc-1"), dataDir, "file"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	other, err := openStore(s.dir, 0, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		want *volume
		r    sizes
		err  error
	}{
		{"the same", named("pvc-1", filesystem), sizes{min: 4096}, nil},
		{"less is enough", named("pvc-1", filesystem), sizes{min: 1}, nil},
		{"more", named("pvc-1", filesystem), sizes{min: 8192}, errExists},
		{"at most less", named("pvc-1", filesystem), sizes{max: 4095}, errExists},
		{"a device", named("pvc-1", block), sizes{min: 4096}, errExists},
	} {
		v, err := other.create(t.Context(), tc.want, tc.r)
		if !errors.Is(err, tc.err) || err == nil && v.Size != 4096 {
			t.Errorf("%s: %+v, %v", tc.name, v, err)
		}
	}
	if _, err := os.Stat(filepath.Join(s.volumeDir("pvc-1"), dataDir, "file")); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(s.path("new")); len(left) != 0 {
		t.Errorf("%d volumes without a name are left", len(left))
	}
}

// TestPromises: no more than the limit is promised, however many requests come at once; what is given back counts
// again.
func TestPromises(t *testing.T) {
	const size = 1 << 20
	s := newStore(t, 5*size)
	var wg sync.WaitGroup
	var mu sync.Mutex
	made, refused := 0, 0
	for i := range 20 {
		wg.Go(func() {
			_, err := s.create(t.Context(), named(fmt.Sprint("v", i), filesystem), sizes{min: size})
			var space *noSpaceError
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				made++
			case errors.As(err, &space):
				refused++
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if made != 5 || refused != 15 {
		t.Errorf("%d made, %d refused", made, refused)
	}
	all, err := s.list()
	if err != nil || len(all) != 5 {
		t.Fatalf("%d volumes, %v", len(all), err)
	}
	if err := s.remove(t.Context(), all[0].ID); err != nil {
		t.Fatal(err)
	}
	if free, err := s.free(); err != nil || free.promises != size {
		t.Errorf("%+v free, %v", free, err)
	}
	if _, err := s.expand(t.Context(), all[1].ID, sizes{min: 2*size + 1}); err == nil {
		t.Error("a volume grew over the limit")
	}
	if v, err := s.expand(t.Context(), all[1].ID, sizes{min: 2 * size}); err != nil || v.Size != 2*size {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestUsedOfPromise: what a directory holds was promised, and is not counted a second time.
func TestUsedOfPromise(t *testing.T) {
	s := newStore(t, 0)
	v := create(t, s, "v", filesystem, 64<<20)
	dir := s.file(v, dataDir)
	if err := os.WriteFile(filepath.Join(dir, "a"), make([]byte, 8<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	if s.usedBy(v) != 0 {
		t.Error("something is used before the first measurement")
	}
	m, err := s.used.measure(t.Context(), v.ID, dir)
	if err != nil || m.bytes < 8<<20 || m.bytes > 9<<20 {
		t.Errorf("%+v, %v", m, err)
	}
	if s.usedBy(v) != m.bytes {
		t.Errorf("%d of %d used", s.usedBy(v), m.bytes)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.used.forget(v.ID)
	if _, err := s.used.measure(ctx, v.ID, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("measured although no call waits: %v", err)
	}
}

func TestExpandImage(t *testing.T) {
	s := newStore(t, 0)
	v := create(t, s, "v", block, 1<<20-1)
	if v.Size != 1<<20 {
		t.Errorf("%d bytes, want whole blocks", v.Size)
	}
	// A process that ended between image and promise.
	if err := resizeImage(s.file(v, imageFile), 4<<20); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		r     sizes
		size  int64
		image int64
		err   error
	}{
		{sizes{min: 2 << 20}, 2 << 20, 4 << 20, nil}, // never cut
		{sizes{min: 8 << 20}, 8 << 20, 8 << 20, nil},
		{sizes{min: 1}, 8 << 20, 8 << 20, nil},
		{sizes{min: 1, max: 2 << 20}, 8 << 20, 8 << 20, errRange},
		{sizes{min: 9<<20 + 1, max: 9<<20 + 2}, 8 << 20, 8 << 20, errRange},
	} {
		_, err := s.expand(t.Context(), "v", tc.r)
		now, _ := s.get("v")
		info, _ := os.Stat(s.file(v, imageFile))
		if !errors.Is(err, tc.err) || now.Size != tc.size || info.Size() != tc.image {
			t.Errorf("%+v: promise %d, image %d, %v", tc.r, now.Size, info.Size(), err)
		}
	}
	if _, err := s.expand(t.Context(), "none", sizes{min: 1}); !errors.Is(err, errNotFound) {
		t.Error(err)
	}
}

// TestRemove: gone at once, twice is fine, and what a killed process left goes with the next start, but nothing that is
// under way.
func TestRemove(t *testing.T) {
	s := newStore(t, 0)
	create(t, s, "v", filesystem, 4096)
	for range 2 {
		if err := s.remove(t.Context(), "v"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.get("v"); !errors.Is(err, errNotFound) {
		t.Error(err)
	}
	for _, dir := range []string{"trash/x/data", "new/old", "new/young"} {
		if err := os.MkdirAll(s.path(dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(s.path("new/old"), time.Unix(0, 0), time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	s.sweep()
	left, _ := filepath.Glob(s.path("*/*"))
	if len(left) != 1 || left[0] != s.path("new/young") {
		t.Errorf("left: %q", left)
	}
}

// TestDamaged: one bad directory is left out, the others work, and its name is not given away.
func TestDamaged(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "cut": `{"version":1,"id":"bad"`, "newer": `{"version":3,"id":"bad","size":1,"mode":"block"}`,
		"of another": `{"version":1,"id":"good","size":1,"mode":"block"}`, "no project": `{"version":2,"id":"bad","size":1,"mode":"filesystem","enforcement":"quota"}`,
	} {
		s := newStore(t, 0)
		create(t, s, "bad", filesystem, 4096)
		create(t, s, "good", filesystem, 4096)
		if err := os.WriteFile(filepath.Join(s.volumeDir("bad"), metaFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		all, err := s.list()
		if err != nil || len(all) != 1 || all[0].ID != "good" {
			t.Errorf("%s: %v, %v", name, all, err)
		}
		if _, err := s.create(t.Context(), named("bad", filesystem), sizes{min: 4096}); err == nil || !strings.Contains(err.Error(), metaFile) {
			t.Errorf("%s: made again: %v", name, err)
		}
	}
}

// TestLock: a call waits for another one on the same volume until its deadline, and finds it gone when it was removed.
func TestLock(t *testing.T) {
	s := newStore(t, 0)
	create(t, s, "v", filesystem, 4096)
	_, unlock, err := s.lockVolume(t.Context(), "v")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.remove(ctx, "v"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("removed while it was locked: %v", err)
	}
	waiting := make(chan error)
	go func() {
		_, _, err := s.lockVolume(t.Context(), "v")
		waiting <- err
	}()
	if err := os.Rename(s.volumeDir("v"), s.path("trash/v")); err != nil {
		t.Fatal(err)
	}
	unlock()
	if err := <-waiting; !errors.Is(err, errNotFound) {
		t.Error(err)
	}
}

func TestID(t *testing.T) {
	for name, want := range map[string]string{
		"pvc-4a1c": "pvc-4a1c", "..": "sha256-", "a/b": "sha256-", "": "sha256-", ".x": "sha256-", "ü": "sha256-",
	} {
		if got := idOf(name); !strings.HasPrefix(got, want) || !safeID.MatchString(got) {
			t.Errorf("%q: %q", name, got)
		}
	}
	s := newStore(t, 0)
	for _, id := range []string{"..", "../volumes", "", "a/../b"} {
		if _, err := s.get(id); !errors.Is(err, errNotFound) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func TestPage(t *testing.T) {
	all := []*volume{{ID: "a"}, {ID: "b"}, {ID: "d"}}
	for _, tc := range []struct {
		token string
		n     int
		want  string
		next  string
	}{
		{"", 0, "abd", ""}, {"", 2, "ab", "after:b"}, {"after:b", 2, "d", ""}, {"after:c", 0, "d", ""}, {"", 3, "abd", ""}, {"after:d", 1, "", ""},
	} {
		got, next, err := page(all, tc.token, tc.n)
		ids := ""
		for _, v := range got {
			ids += v.ID
		}
		if ids != tc.want || next != tc.next || err != nil {
			t.Errorf("%q %d: %s, %q, %v", tc.token, tc.n, ids, next, err)
		}
	}
	if _, _, err := page(all, "b", 0); err == nil {
		t.Error("a token of another driver")
	}
}
