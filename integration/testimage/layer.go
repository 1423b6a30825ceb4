package testimage

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// busybox is where Debian's package busybox-static puts its program.
const busybox = "/bin/busybox"

// Layer is the file system of an image: a tar that is written in memory. It keeps the first error.
type Layer struct {
	buf bytes.Buffer
	w   *tar.Writer
	err error
	// libraries that it has, by path.
	libraries map[string]bool
}

// NewLayer returns a layer with the directories and files that programs expect of any root file system.
func NewLayer() *Layer {
	l := &Layer{libraries: map[string]bool{}}
	l.w = tar.NewWriter(&l.buf)
	for _, dir := range []string{"bin/", "etc/", "home/", "root/", "var/", "mnt/"} {
		l.add(&tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	}
	l.add(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, nil)
	l.File("etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"))
	l.File("etc/group", 0o644, []byte("root:x:0:\nnogroup:x:65534:\n"))
	return l
}

// File adds a file; its name has no leading slash.
func (l *Layer) File(name string, mode int64, content []byte) {
	l.add(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(content))}, content)
}

// Link adds a symbolic link.
func (l *Layer) Link(name, target string) {
	l.add(&tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}, nil)
}

// Busybox adds /bin/busybox and a link for each of its applets, except those in except.
func (l *Layer) Busybox(except ...string) error {
	box, err := staticBusybox()
	if err != nil {
		return err
	}
	list, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return fmt.Errorf("%s --list: %w", busybox, err)
	}
	l.File("bin/busybox", 0o755, box)
	skip := map[string]bool{"busybox": true}
	for _, name := range except {
		skip[name] = true
	}
	for _, applet := range strings.Fields(string(list)) {
		if !skip[applet] {
			l.Link("bin/"+applet, "busybox")
		}
	}
	return nil
}

// Copy adds a file of this machine as an executable; as has no leading slash.
func (l *Layer) Copy(path, as string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	l.File(as, 0o755, content)
	return nil
}

// Program adds a program of this machine as Copy does, with the shared libraries that it needs.
func (l *Layer) Program(path, as string) error {
	needed, err := librariesOf(path)
	if err != nil {
		return err
	}
	for _, lib := range needed {
		if l.libraries[lib] {
			continue
		}
		l.libraries[lib] = true
		if err := l.Copy(lib, strings.TrimPrefix(lib, "/")); err != nil {
			return err
		}
	}
	return l.Copy(path, as)
}

// librariesOf are the shared libraries of a program, the loader included, as ldd prints them: "name => path (address)"
// or "path (address)".
func librariesOf(program string) ([]string, error) {
	out, err := exec.Command("ldd", program).Output()
	if err != nil {
		return nil, fmt.Errorf("ldd %s: %w", program, err)
	}
	if bytes.Contains(out, []byte("not found")) {
		return nil, errors.New(string(out))
	}
	var paths []string
	for line := range strings.Lines(string(out)) {
		for _, field := range strings.Fields(line) {
			if strings.HasPrefix(field, "/") {
				paths = append(paths, field)
			}
		}
	}
	return paths, nil
}

// Bytes ends the layer and returns it.
func (l *Layer) Bytes() ([]byte, error) {
	if l.err == nil {
		l.err = l.w.Close()
	}
	return l.buf.Bytes(), l.err
}

func (l *Layer) add(h *tar.Header, content []byte) {
	if l.err == nil {
		l.err = l.w.WriteHeader(h)
	}
	if l.err == nil {
		_, l.err = l.w.Write(content)
	}
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
