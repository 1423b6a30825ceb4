// Command suite builds upstream's e2e.test of the version in go.mod, with what running it needs, and prints the
// directory that has them:
//
//	e2e.test    upstream's tests
//	ginkgo      runs them, several at once
//	images.tar  the images of their pods, for <data-dir>/agent/images
//
// It needs the Go module proxy, Debian's busybox-static, curl, bind9-dnsutils and netcat-openbsd, and no registry. The
// directory is in the user's cache, so that every clone of the same versions has it. With --where it builds nothing and
// fails when there is none.
//
// The images do for the tests of integration/conformance/sample.txt: upstream's agnhost with a shell and the tools that
// tests call in it. Others of the suite want more (a real nginx, etcd, set-user-id programs): see docs/conformance.md.
package main

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"kubelith.io/kubelith/integration/suite"
	"kubelith.io/kubelith/integration/testimage"
)

//go:embed main.go
var source []byte

func main() { suite.Main("conformance", inputs, build) }

// inputs are what a suite depends on.
func inputs() ([]byte, error) {
	all := source
	for _, name := range []string{"go.mod", "go.sum"} {
		content, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("%w: run it at the root of the repository", err)
		}
		all = append(all, content...)
	}
	return all, nil
}

func build(dir string) error {
	if err := programs(dir); err != nil {
		return err
	}
	return images(dir)
}

// programs builds in the module graph of go.mod: what the product is made of is compiled already. A copy of go.mod and
// go.sum gets the checksums of what only the tests import.
func programs(dir string) error {
	mod := filepath.Join(dir, "suite.mod")
	for from, to := range map[string]string{"go.mod": mod, "go.sum": filepath.Join(dir, "suite.sum")} {
		content, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := os.WriteFile(to, content, 0o644); err != nil {
			return err
		}
	}
	for _, p := range []struct{ name, verb, pkg string }{
		{"e2e.test", "test -c", "k8s.io/kubernetes/test/e2e"},
		{"ginkgo", "build", "github.com/onsi/ginkgo/v2/ginkgo"},
		{"agnhost", "build", "k8s.io/kubernetes/test/images/agnhost"},
	} {
		args := append(strings.Fields(p.verb), "-modfile="+mod, "-mod=mod", "-ldflags=-s -w", "-o", filepath.Join(dir, p.name), p.pkg)
		cmd := exec.Command("go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("build %s: %w", p.pkg, err)
		}
	}
	return nil
}

// images writes one file system under each name that the tests may ask for.
func images(dir string) error {
	list, err := exec.Command(filepath.Join(dir, "e2e.test"), "--list-images").Output()
	if err != nil {
		return fmt.Errorf("e2e.test --list-images: %w", err)
	}
	var made []testimage.Image
	for _, name := range strings.Fields(string(list)) {
		config := v1.Config{Env: []string{"PATH=/usr/bin:/bin"}, WorkingDir: "/"}
		base := name[strings.LastIndex(name, "/")+1:]
		switch kind, _, _ := strings.Cut(base, ":"); {
		case strings.Contains(name, "k8s-authenticated-test"), strings.HasPrefix(name, "invalid."):
			continue // tests want them to be missing
		case kind == "agnhost", kind == "pause":
			config.Entrypoint, config.Cmd = []string{"/agnhost"}, []string{"pause"}
		case kind == "nginx":
			config.Entrypoint, config.Cmd = []string{"/agnhost"}, []string{"test-webserver"}
		case kind == "busybox", kind == "glibc-dns-testing":
			config.Cmd = []string{"sh"}
		default:
			continue
		}
		made = append(made, testimage.Image{Name: name, Config: config})
	}
	layer, err := rootfs(filepath.Join(dir, "agnhost"))
	if err != nil {
		return err
	}
	if err := testimage.Write(filepath.Join(dir, "images.tar"), layer, made...); err != nil {
		return err
	}
	return os.Remove(filepath.Join(dir, "agnhost"))
}

// rootfs is agnhost, busybox, and programs of this machine with their libraries: busybox' shell prefers its own nc,
// which knows other options than the one that tests call.
func rootfs(agnhost string) ([]byte, error) {
	content, err := os.ReadFile(agnhost)
	if err != nil {
		return nil, err
	}
	l := testimage.NewLayer()
	l.File("agnhost", 0o755, content)
	l.Link("agnhost-2", "agnhost") // for who wants another command than the image's
	upstream, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		return nil, fmt.Errorf("go list -m k8s.io/kubernetes: %w", err)
	}
	for _, name := range []string{"localhost.crt", "localhost.key"} { // what agnhost serves
		if err := l.Copy(filepath.Join(strings.TrimSpace(string(upstream)), "test/images/agnhost/porter", name), name); err != nil {
			return nil, err
		}
	}
	l.File("etc/nsswitch.conf", 0o644, []byte("hosts: files dns\n"))
	if err := l.Busybox("sh", "bash", "nc"); err != nil {
		return nil, err
	}
	l.Link("bin/sh", "/usr/bin/bash")
	for _, p := range []struct{ name, debian string }{{"bash", "bash"}, {"curl", "curl"}, {"dig", "bind9-dnsutils"}, {"nc.openbsd", "netcat-openbsd"}} {
		path, err := exec.LookPath(p.name)
		if err != nil {
			return nil, fmt.Errorf("%w: install the package %s", err, p.debian)
		}
		if err := l.Program(path, "usr/bin/"+strings.TrimSuffix(p.name, ".openbsd")); err != nil {
			return nil, err
		}
	}
	return l.Bytes()
}
