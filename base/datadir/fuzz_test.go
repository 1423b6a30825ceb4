package datadir

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// FuzzVersion reads an arbitrary version file: a refused file stays as it is, and an accepted one can be read again.
func FuzzVersion(f *testing.F) {
	f.Add([]byte("1\nkubelith v1\n"))
	f.Add([]byte("2\nkubelith v9\n"))
	f.Add([]byte("1"))
	f.Add([]byte("\n\n"))
	f.Add([]byte("99999999999999999999\n"))
	f.Add([]byte("+1\n\x00"))
	f.Fuzz(func(t *testing.T, content []byte) {
		dir := t.TempDir()
		path := filepath.Join(dir, "version")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		first, err := upgrade(dir, "v1", nil)
		after, readErr := os.ReadFile(path)
		switch {
		case readErr != nil:
			t.Fatal(readErr)
		case err != nil && !bytes.Equal(after, content):
			t.Errorf("a refused %q became %q", content, after)
		case err != nil:
			return
		}
		if former, err := upgrade(dir, "v1", nil); err != nil || former != first {
			t.Errorf("%q became %q: %q, %v, first %q", content, after, former, err, first)
		}
	})
}
