package testimage

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWrite unpacks the archive again and looks for what containerd's import needs.
func TestWrite(t *testing.T) {
	l := NewLayer()
	l.File("bin/x", 0o755, []byte("content"))
	layer, err := l.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := Write(path, layer, Image{Name: Ref}, Image{Name: "example.org/other:1"}); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files := map[string]string{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(content)
	}
	if !strings.Contains(files["oci-layout"], "imageLayoutVersion") {
		t.Errorf("no oci-layout: %v", files["oci-layout"])
	}
	for _, name := range []string{Ref, "example.org/other:1"} {
		if n := strings.Count(files["index.json"], name); n != 2 {
			t.Errorf("the index names %s %d times, not twice: %s", name, n, files["index.json"])
		}
	}
	if len(files) < 5 { // oci-layout, index, manifest, config, layer
		t.Errorf("the archive has only %d entries", len(files))
	}
}

// TestProgram: programs have their libraries beside them, each once.
func TestProgram(t *testing.T) {
	l := NewLayer()
	for _, name := range []string{"bash", "sh"} {
		if err := l.Program("/bin/"+name, "usr/bin/"+name); err != nil {
			t.Fatal(err)
		}
	}
	layer, err := l.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	times := map[string]int{}
	for r := tar.NewReader(bytes.NewReader(layer)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		times[filepath.Base(h.Name)]++
	}
	for _, name := range []string{"bash", "sh", "libc.so.6"} {
		if times[name] != 1 {
			t.Errorf("%s is there %d times, want once", name, times[name])
		}
	}
}
