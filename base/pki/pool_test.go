package pki

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPool(t *testing.T) {
	dir := t.TempDir()
	if _, err := Ensure(Options{Dir: dir, NodeName: "n", ClusterDomain: "cluster.local"}); err != nil {
		t.Fatal(err)
	}
	one, err := Pool(filepath.Join(dir, ClusterCAFile))
	if err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if pool, err := Pool(empty); err == nil || !strings.Contains(err.Error(), "has no certificate") {
		t.Errorf("a file without certificates: %v, %v", pool, err)
	}
	if pool, err := Pool(filepath.Join(dir, "none")); !os.IsNotExist(err) {
		t.Errorf("no file: %v, %v", pool, err)
	}
	other := t.TempDir()
	if _, err := Ensure(Options{Dir: other, NodeName: "n", ClusterDomain: "cluster.local"}); err != nil {
		t.Fatal(err)
	}
	if two, err := Pool(filepath.Join(other, ClusterCAFile)); err != nil || one.Equal(two) {
		t.Errorf("two CAs are one pool, %v", err)
	}
}
