// Package testimage builds the container image that the integration tests run: Debian's static busybox
// and the program probe (in the subfolder of that name), as an OCI archive. It needs no registry and no
// container tool. Only the harness uses it.
package testimage

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Ref is the image's name in pods.
const Ref = "docker.io/kubelith/test:1"

// busybox is where Debian's package busybox-static puts its program.
const busybox = "/bin/busybox"

// Archive returns an OCI archive of the image, built from the module at repoRoot and kept in cacheDir
// under the hash of its content: packages that test at the same time share it.
func Archive(repoRoot, cacheDir string) (string, error) {
	if err := os.MkdirAll(cacheDir, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(cacheDir, "image.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	probe, err := buildProbe(repoRoot)
	if err != nil {
		return "", err
	}
	box, err := staticBusybox()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	sum.Write(probe)
	sum.Write(box)
	path := filepath.Join(cacheDir, "image-"+hex.EncodeToString(sum.Sum(nil))[:16]+".tar")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	layer, err := rootfs(probe, box)
	if err != nil {
		return "", err
	}
	if err := writeOCI(path+".tmp", layer); err != nil {
		return "", err
	}
	return path, os.Rename(path+".tmp", path)
}

// buildProbe compiles the probe; the go command's cache makes it quick the second time.
func buildProbe(repoRoot string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "kubelith-probe-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "probe")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", out, "./integration/testimage/probe")
	cmd.Dir = repoRoot
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build probe: %w: %s", err, text)
	}
	return os.ReadFile(out)
}

// staticBusybox reads busybox and refuses one that needs shared libraries: the image has none.
func staticBusybox() ([]byte, error) {
	content, err := os.ReadFile(busybox)
	if err != nil {
		return nil, fmt.Errorf("%w: install the package busybox-static (make deps)", err)
	}
	if bytes.Contains(content[:min(4096, len(content))], []byte("/ld-linux")) {
		return nil, fmt.Errorf("%s is not static: install the package busybox-static (make deps)", busybox)
	}
	return content, nil
}

// rootfs is the image's only layer, as a tar.
func rootfs(probe, box []byte) ([]byte, error) {
	list, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list: %w", busybox, err)
	}
	var buf bytes.Buffer
	w := &tarWriter{w: tar.NewWriter(&buf)}
	for _, dir := range []string{"bin/", "etc/", "home/", "root/", "var/", "mnt/"} {
		w.add(&tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	}
	w.add(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, nil)
	w.file("etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"))
	w.file("etc/group", 0o644, []byte("root:x:0:\nnogroup:x:65534:\n"))
	w.file("bin/probe", 0o755, probe)
	w.file("bin/busybox", 0o755, box)
	for _, applet := range strings.Fields(string(list)) {
		if applet != "busybox" {
			w.add(&tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox", Mode: 0o777}, nil)
		}
	}
	if w.err == nil {
		w.err = w.w.Close()
	}
	return buf.Bytes(), w.err
}

// tarWriter keeps the first error.
type tarWriter struct {
	w   *tar.Writer
	err error
}

func (t *tarWriter) file(name string, mode int64, content []byte) {
	t.add(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(content))}, bytes.NewReader(content))
}

func (t *tarWriter) add(h *tar.Header, content io.Reader) {
	if t.err == nil {
		t.err = t.w.WriteHeader(h)
	}
	if t.err == nil && content != nil {
		_, t.err = io.Copy(t.w, content)
	}
}
