package local

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// fakeProjects keeps quotas in memory.
type fakeProjects struct {
	mu       sync.Mutex
	off      error
	fails    error // of assign
	of       map[uint32]projectUsage
	assigned map[string]uint32 // by the name that the volume's directory had
}

func (f *fakeProjects) enforced(string) error { return f.off }

func (f *fakeProjects) limit(_ string, project uint32, size int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := f.of[project]
	u.maxBytes, u.maxFiles = size, 0
	if size > 0 {
		u.maxFiles = maxFiles(size)
	}
	f.of[project] = u
	return nil
}

func (f *fakeProjects) usage(_ string, project uint32) (projectUsage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.of[project], nil
}

func (f *fakeProjects) assign(dir string, project uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of[project].maxBytes == 0 {
		return errors.New("assigned before it is limited")
	}
	f.assigned[filepath.Base(filepath.Dir(dir))] = project
	return f.fails
}

// fakeImages creates empty ones.
type fakeImages struct{ off error }

func (f fakeImages) usable() error { return f.off }
func (f fakeImages) format(_ context.Context, path string, size int64) error {
	return resizeImage(path, imageSize(size))
}

func newFakeStore(t *testing.T) (*store, *fakeProjects) {
	t.Helper()
	s := newStore(t, 0)
	p := &fakeProjects{of: map[uint32]projectUsage{}, assigned: map[string]uint32{}}
	s.projects, s.images = p, fakeImages{}
	return s, p
}

func enforced(name string, e enforcement) *volume {
	v := named(name, filesystem)
	v.Enforcement = e
	return v
}

// TestEnforcement: auto takes the first that works; what a StorageClass requests and the node cannot do is refused,
// with the remedy.
func TestEnforcement(t *testing.T) {
	noQuota, noImage := errors.New("not mounted with prjquota"), errors.New("install e2fsprogs")
	for _, tc := range []struct {
		asked        enforcement
		shared       bool
		quota, image error
		want         enforcement
		says         []string
	}{
		{auto, false, nil, nil, quota, nil},
		{auto, false, noQuota, nil, file, nil},
		{auto, false, noQuota, noImage, "", []string{"prjquota", "e2fsprogs", "enforcement: none"}},
		{auto, true, nil, nil, file, nil}, // no tenant gets at etcd's disk
		{auto, true, nil, noImage, quota, nil},
		{quota, true, nil, nil, quota, nil},
		{quota, false, noQuota, nil, "", []string{"prjquota", "enforcement: none"}},
		{file, false, nil, nil, file, nil},
		{file, false, nil, noImage, "", []string{"e2fsprogs"}},
		{none, false, nil, nil, none, nil},
		{none, true, noQuota, noImage, none, nil},
	} {
		s, p := newFakeStore(t)
		p.off, s.images, s.shared = tc.quota, fakeImages{off: tc.image}, tc.shared
		v, err := s.create(t.Context(), enforced("v", tc.asked), sizes{min: 1 << 20})
		if len(tc.says) == 0 {
			if err != nil || v.Enforcement != tc.want {
				t.Errorf("%s: %+v, %v", tc.asked, v, err)
			}
			continue
		}
		if !errors.Is(err, errUnenforced) {
			t.Errorf("%s: %+v, %v", tc.asked, v, err)
			continue
		}
		for _, text := range tc.says {
			if !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %q does not say %q", tc.asked, err, text)
			}
		}
	}
}

// TestEnforcementLost: a volume that exists is found again by each request for it, whatever the node can do now.
func TestEnforcementLost(t *testing.T) {
	s, p := newFakeStore(t)
	if _, err := s.create(t.Context(), enforced("v", auto), sizes{min: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	p.off, s.images = errors.New("gone"), fakeImages{off: errors.New("gone")}
	if v, err := s.create(t.Context(), enforced("v", auto), sizes{min: 1 << 20}); err != nil || v.Enforcement != quota {
		t.Errorf("%+v, %v", v, err)
	}
	if _, err := s.create(t.Context(), enforced("v", auto), sizes{min: 2 << 20}); !errors.Is(err, errExists) {
		t.Error(err)
	}
}

// TestProjects: each volume has a project that nothing else uses, limited before anything is in it; the limit follows
// the size, and goes with the volume.
func TestProjects(t *testing.T) {
	s, p := newFakeStore(t)
	p.of[firstProject] = projectUsage{files: 1}         // files of another program
	p.of[firstProject+1] = projectUsage{maxBytes: 1024} // a limit of another program
	var wg sync.WaitGroup
	for _, name := range []string{"a", "b", "c", "d"} {
		wg.Go(func() {
			if _, err := s.create(t.Context(), enforced(name, quota), sizes{min: 10 << 20}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	volumes, err := s.list()
	if err != nil || len(volumes) != 4 {
		t.Fatalf("%d volumes, %v", len(volumes), err)
	}
	seen := map[uint32]bool{firstProject: true, firstProject + 1: true}
	for _, v := range volumes {
		if seen[v.Project] {
			t.Errorf("%s: project %d has another user", v.ID, v.Project)
		}
		seen[v.Project] = true
		if u := p.of[v.Project]; u.maxBytes != 10<<20 || u.maxFiles != minFiles {
			t.Errorf("%s: %+v", v.ID, u)
		}
		if !slices.Contains(slices.Collect(maps.Values(p.assigned)), v.Project) {
			t.Errorf("%s: its directory is not in project %d", v.ID, v.Project)
		}
	}
	v := volumes[0]
	if _, err := s.expand(t.Context(), v.ID, sizes{min: 64 << 20}); err != nil {
		t.Fatal(err)
	}
	if u := p.of[v.Project]; u.maxBytes != 64<<20 || u.maxFiles != 4096 {
		t.Errorf("expanded: %+v", u)
	}
	dir := s.volumeDir(v.ID)
	if err := s.destroy(dir); err != nil { // what follows a removal in the background
		t.Fatal(err)
	}
	if u := p.of[v.Project]; u != (projectUsage{}) {
		t.Errorf("the limit outlives its volume: %+v", u)
	}
}

// TestQuotaOfDead: a process that ended between quota and name leaves neither to the next one.
func TestQuotaOfDead(t *testing.T) {
	s, p := newFakeStore(t)
	v := enforced("v", quota)
	v.Size = 1 << 20
	dir, err := s.prepare(t.Context(), v)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.enforce(v, dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(dir, time.Unix(0, 0), time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	s.sweep()
	if u := p.of[v.Project]; v.Project == 0 || u != (projectUsage{}) {
		t.Errorf("project %d has %+v", v.Project, u)
	}
	p.fails = errors.New("no")
	if _, err := s.create(t.Context(), enforced("w", quota), sizes{min: 1 << 20}); !errors.Is(err, p.fails) {
		t.Error(err)
	}
	for project, u := range p.of {
		if u != (projectUsage{}) {
			t.Errorf("a volume that failed leaves project %d with %+v", project, u)
		}
	}
}

// TestFormatVersion: drivers that know no enforcement must not take such a volume for a directory, and may have all
// others.
func TestFormatVersion(t *testing.T) {
	s, _ := newFakeStore(t)
	for e, want := range map[enforcement]int{quota: 2, file: 2, none: 1, "": 1} {
		v, err := s.create(t.Context(), enforced("v-"+string(e), e), sizes{min: 1 << 20})
		if err != nil || v.Version != want {
			t.Errorf("%s: %+v, %v", e, v, err)
		}
	}
}

// TestImageSizes: the largest image that fits is found, and none ends in a group too small for ext4.
func TestImageSizes(t *testing.T) {
	for _, size := range []int64{1, 4096, 1 << 20, 10 << 20, 120 << 20, 1 << 30, 100 << 30, 16 << 40} {
		image := imageSize(size)
		if image <= size || image%imageBlock != 0 || float64(image) > 1.2*float64(size)+16<<20 {
			t.Errorf("%d: image of %d", size, image)
		}
		if last := image / imageBlock % groupBlocks; last > 0 && last < lastBlocks {
			t.Errorf("%d: the last group has %d blocks", size, last)
		}
		if got := largestWithin(image); got < size || imageSize(got) > image || imageSize(got+1) <= image {
			t.Errorf("%d: within %d there is room for %d", size, image, got)
		}
	}
	if got := largestWithin(1000); got != 0 {
		t.Errorf("room for %d bytes where no image fits", got)
	}
}

// TestImagePromise: what an image may take is promised, not only what its claim requests.
func TestImagePromise(t *testing.T) {
	s, _ := newFakeStore(t)
	before, err := s.free()
	if err != nil {
		t.Fatal(err)
	}
	size := before.disk / 4 // the larger the image's overhead, the less other programs' writes matter
	v, err := s.create(t.Context(), enforced("v", file), sizes{min: size})
	if err != nil {
		t.Fatal(err)
	}
	after, err := s.free()
	slack := (imageSize(size) - size) / 2
	if taken := before.disk - after.disk; err != nil || taken < imageSize(size)-slack || taken > imageSize(size)+slack {
		t.Errorf("%d bytes were taken for an image of %d, %v", taken, imageSize(size), err)
	}
	var space *noSpaceError
	if _, err := s.expand(t.Context(), v.ID, sizes{min: 1 << 50}); !errors.As(err, &space) {
		t.Error(err)
	}
	if _, err := s.expand(t.Context(), v.ID, sizes{min: 2 * size}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(s.file(v, imageFile)); err != nil || info.Size() != imageSize(2*size) {
		t.Errorf("%v, %v", info, err)
	}
}

// TestReportUnenforced: at each start the log names the volumes that may take more than they were promised.
func TestReportUnenforced(t *testing.T) {
	s, p := newFakeStore(t)
	for _, e := range []enforcement{quota, file, none, ""} {
		if _, err := s.create(t.Context(), enforced("v-"+string(e), e), sizes{min: 1 << 20}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		off       error
		says, not []string
	}{
		{nil, []string{"v-none", "v-]"}, []string{"v-file", "v-quota", "WARN"}},
		{errors.New("mounted otherwise"), []string{"v-none", "v-quota", "WARN", "prjquota"}, []string{"v-file"}},
	} {
		var log strings.Builder
		p.off, s.log = tc.off, hclog.New(&hclog.LoggerOptions{Output: &log})
		s.logUnenforced()
		text := strings.ReplaceAll(log.String(), `"`, "")
		for _, want := range tc.says {
			if !strings.Contains(text, want) && !strings.Contains(text, strings.ReplaceAll(want, "]", ",")) {
				t.Errorf("%v: the log does not name %s:\n%s", tc.off, want, text)
			}
		}
		for _, other := range tc.not {
			if strings.Contains(text, other) {
				t.Errorf("%v: the log names %s:\n%s", tc.off, other, text)
			}
		}
	}
}
