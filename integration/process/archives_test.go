package process

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/integration/testimage"
)

// TestArchives: archives of all compressions are imported, a damaged one costs itself only, and the kubelet runs pods
// while the import of the first one still takes its time.
func TestArchives(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{})
	dir := filepath.Dir(s.Path(harness.TestImageArchive))
	slow := filepath.Join(dir, "0-slow.tar")
	randomArchive(t, slow, "docker.io/library/slow:1", 1<<20, 1)
	plain := filepath.Join(t.TempDir(), "plain.tar")
	for ending, compressor := range map[string]func(io.Writer) io.WriteCloser{
		".tar.gz": func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
		".tgz":    func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
	} {
		base := strings.ReplaceAll(ending, ".", "")
		randomArchive(t, plain, "docker.io/library/"+base+":1", 1<<20, 1)
		compress(t, plain, filepath.Join(dir, "2-"+base+ending), compressor)
	}
	compress(t, s.Path(harness.TestImageArchive), filepath.Join(dir, "test.tar.zst"), func(w io.Writer) io.WriteCloser {
		z, err := zstd.NewWriter(w)
		if err != nil {
			t.Fatal(err)
		}
		return z
	})
	if err := os.Remove(s.Path(harness.TestImageArchive)); err != nil {
		t.Fatal(err)
	}
	damaged := filepath.Join(dir, "1-damaged.tar")
	randomArchive(t, damaged, "docker.io/library/damaged:1", 1<<20, 1)
	if err := os.Truncate(damaged, 700<<10); err != nil {
		t.Fatal(err)
	}

	release := hold(t, slow)
	s.Launch(t)
	waitNode(t, s, harness.AdminKubeconfig)
	images := func() string { return s.Exec(t, s.BinaryPath(), "ctr", "images", "list", "--quiet") }
	pod := harness.Pod("default", "early")
	pod.Spec.Containers[0].Image = "kubelith/hello:1"
	s.Run(t, pod)
	if list := images(); strings.Contains(list, "library/slow:1") {
		t.Fatalf("the archive was not held back:\n%s", list)
	}
	release()
	s.WaitReady(t) // with the test image, the last one
	list := images()
	for _, image := range []string{"docker.io/library/slow:1", "docker.io/library/targz:1", "docker.io/library/tgz:1"} {
		if !strings.Contains(list, image+"\n") {
			t.Errorf("%s was not imported", image)
		}
	}
	if strings.Contains(list, "damaged") {
		t.Errorf("a truncated archive was imported:\n%s", list)
	}
	if !strings.Contains(s.Logs(), "1-damaged.tar was not imported") {
		t.Error("the log has nothing about the truncated archive")
	}
	s.Run(t, harness.Pod("default", "late", "/bin/probe", "sleep")) // unpacked from .tar.zst: testimage.Ref
	if !strings.Contains(list, testimage.Ref+"\n") {
		t.Errorf("%s is not listed:\n%s", testimage.Ref, list)
	}
}

// hold makes each process that opens a file wait until release is called. It asks for fanotify's permission events,
// which wait for ever: the kernel breaks a lease after 45 s (fs.lease-break-time), and a busy machine takes longer.
func hold(t *testing.T, path string) (release func()) {
	t.Helper()
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC, unix.O_RDONLY)
	if err != nil {
		t.Fatalf("fanotify: %v", err)
	}
	release = sync.OnceFunc(func() { unix.Close(fd) }) // which allows what waits
	t.Cleanup(release)
	if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_OPEN_PERM, unix.AT_FDCWD, path); err != nil {
		t.Fatalf("hold back those who open %s: %v", path, err)
	}
	return release
}

// randomArchive writes an image whose layers cannot be compressed.
func randomArchive(t *testing.T, path, ref string, size, layers int64) {
	t.Helper()
	image, err := random.Image(size, layers)
	if err != nil {
		t.Fatal(err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	if image, err = mutate.ConfigFile(image, file); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(path, tag, image); err != nil {
		t.Fatal(err)
	}
}

// compress copies a file through a compressor.
func compress(t *testing.T, from, to string, compressor func(io.Writer) io.WriteCloser) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	z := compressor(out)
	if _, err := io.Copy(z, in); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
}

// waitNode waits, with kubectl and a kubeconfig, for a node that takes pods.
func waitNode(t *testing.T, s *harness.Server, kubeconfig string) {
	t.Helper()
	harness.Eventually(t, 60*time.Second, "the node", func() error {
		if err := alive(s); err != nil {
			return err
		}
		res := s.TryKubectl(t, "--kubeconfig="+kubeconfig, "get", "nodes", "-o=jsonpath={.items[*].status.conditions[?(@.type==\"Ready\")].status} {.items[*].spec.taints}")
		if strings.TrimSpace(res.Stdout) != "True" {
			return fmt.Errorf("%s%s", res.Stdout, res.Stderr)
		}
		res = s.TryKubectl(t, "--kubeconfig="+kubeconfig, "get", "serviceaccount", "default")
		if res.Code != 0 {
			return fmt.Errorf("%s", res.Stderr)
		}
		return nil
	})
}
