// Package testimage builds the container image that the integration tests run: Debian's static busybox
// and the program probe (in the subfolder of that name), as an OCI archive. It needs no registry and no
// container tool. The harness uses it, and integration/conformance/suite for the images of upstream's tests.
package testimage

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"kubelith.io/kubelith/integration/lockfile"
)

// Ref is the image's name in pods.
const Ref = "docker.io/kubelith/test:1"

// Archive returns an OCI archive of the image, built from the module at repoRoot and kept in cacheDir
// under the hash of its content: packages that test at the same time share it.
func Archive(repoRoot, cacheDir string) (string, error) {
	unlock, err := lockfile.Lock(filepath.Join(cacheDir, "image.lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	probe, err := buildProbe(repoRoot)
	if err != nil {
		return "", err
	}
	layer, err := rootfs(probe)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	sum.Write(layer)
	path := filepath.Join(cacheDir, "image-"+hex.EncodeToString(sum.Sum(nil))[:16]+".tar")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	image := Image{Ref, v1.Config{Cmd: []string{"/bin/probe", "sleep"}, Env: []string{"PATH=/bin"}, WorkingDir: "/"}}
	if err := Write(path+".tmp", layer, image); err != nil {
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

// rootfs is the image's only layer, as a tar.
func rootfs(probe []byte) ([]byte, error) {
	l := NewLayer()
	l.File("bin/probe", 0o755, probe)
	if err := l.Busybox(); err != nil {
		return nil, err
	}
	return l.Bytes()
}
