package sandbox

import (
	"os"
	"path/filepath"
	"testing"
)

// TestOwnDir: what others could have laid out does not become a sandbox's /etc.
func TestOwnDir(t *testing.T) {
	own := filepath.Join(t.TempDir(), "own")
	for range 2 {
		if err := ownDir(own); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(own, link); err != nil {
		t.Fatal(err)
	}
	writable := filepath.Join(t.TempDir(), "writable")
	if err := os.Mkdir(writable, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(writable, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{link, writable} {
		if err := ownDir(dir); err == nil {
			t.Errorf("%s is accepted", dir)
		}
	}
}
