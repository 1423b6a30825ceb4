package unixsocket

import (
	"os"
	"path/filepath"
	"testing"
)

// The socket replaces what a killed process left, and is its user's alone.
func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if info, err := os.Stat(path); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("the socket is %v, %v", info.Mode(), err)
	}
	if _, err := Listen(filepath.Join(path, "s")); err == nil {
		t.Error("a socket below a file")
	}
}
