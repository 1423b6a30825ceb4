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

// TestWriteOCI unpacks the archive again and looks for what containerd's import needs.
func TestWriteOCI(t *testing.T) {
	var layer bytes.Buffer
	w := &tarWriter{w: tar.NewWriter(&layer)}
	w.file("bin/x", 0o755, []byte("content"))
	if w.err != nil || w.w.Close() != nil {
		t.Fatal(w.err)
	}
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := writeOCI(path, layer.Bytes()); err != nil {
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
	if n := strings.Count(files["index.json"], Ref); n != 2 {
		t.Errorf("the index names %s %d times, not twice: %s", Ref, n, files["index.json"])
	}
	if len(files) < 5 { // oci-layout, index, manifest, config, layer
		t.Errorf("the archive has only %d entries", len(files))
	}
}
