package atomicfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWrite: Write creates a file, and replaces it over what a crash has left; nothing else stays.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	group := os.Getegid()
	for text, opts := range map[string]Options{"one": {}, "two": {Passing: true}, "three": {Group: &group}} {
		if err := os.WriteFile(path+".tmp", []byte("half a fi"), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := WriteWith(path, []byte(text), opts); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		info, _ := os.Stat(path)
		mode := os.FileMode(0o600)
		if opts.Group != nil {
			mode = 0o640
		}
		if err != nil || string(got) != text || info.Mode() != mode {
			t.Errorf("%q, %v, %v", got, info.Mode(), err)
		}
		if all, _ := os.ReadDir(dir); len(all) != 1 {
			t.Errorf("left: %v", all)
		}
	}
}

// TestRefused: a file that cannot be replaced stays, without the new content beside it.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	if err := os.MkdirAll(filepath.Join(path, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, nil); err == nil || !strings.HasPrefix(err.Error(), "write "+path+": ") {
		t.Errorf("error: %v", err)
	}
	if all, _ := os.ReadDir(dir); len(all) != 1 {
		t.Errorf("left: %v", all)
	}
}
