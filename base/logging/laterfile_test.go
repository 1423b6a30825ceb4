package logging

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The file is not touched before it is opened, and then has what was logged meanwhile; the one before is kept.
func TestLaterFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "server.log")
	if err := os.WriteFile(name, []byte("old\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		text, _ := os.ReadFile(name)
		return string(text)
	}
	var l LaterFile
	io.WriteString(&l, "early\n")
	if read(name) != "old\n" {
		t.Errorf("touched too early: %q", read(name))
	}
	if err := l.Open(name); err != nil {
		t.Fatal(err)
	}
	io.WriteString(&l, "late\n")
	if read(name) != "early\nlate\n" || read(name+".1") != "old\n" {
		t.Errorf("%q, before it %q", read(name), read(name+".1"))
	}
	if err := (&LaterFile{}).Open(filepath.Join(name, "x")); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
}
