package manifests

import (
	"os"
	"path/filepath"
	"testing"
)

// TestOtherDirectory: what another server applied, or this one before its disk was lost, is not deleted for want of its
// file.
func TestOtherDirectory(t *testing.T) {
	b := newBench(t)
	b.keeper.directory = "first"
	b.pass(true, []file{of("a", "ConfigMap a"), of("b", "ConfigMap b")}, "apply ConfigMap a", "apply ConfigMap b")
	b.restart()
	b.keeper.directory = "second"
	b.pass(true, nil)
	b.pass(true, []file{of("b", "ConfigMap b")}, "apply ConfigMap b") // taken over
	b.pass(true, nil, "remove ConfigMap b", "drop manifest-b")
	b.restart()
	b.keeper.directory = "first"
	b.pass(true, nil, "remove ConfigMap a", "drop manifest-a")
}

// TestEarlierRelease: what was applied before directories had an identity belongs to the one that has files when it
// gets one.
func TestEarlierRelease(t *testing.T) {
	b := newBench(t)
	b.pass(true, []file{of("a", "ConfigMap a"), of("b", "ConfigMap b")}, "apply ConfigMap a", "apply ConfigMap b")
	b.restart()
	b.keeper.directory = "empty"
	b.pass(true, nil)
	b.restart()
	b.keeper.directory, b.keeper.adopts = "with files", true
	b.pass(true, []file{of("b", "ConfigMap b")}, "apply ConfigMap b", "remove ConfigMap a", "drop manifest-a")
}

// TestEmbeddedManifestRemoved: an embedded manifest that a release no longer has is deleted whichever server leads.
func TestEmbeddedManifestRemoved(t *testing.T) {
	b := newBench(t)
	ours := of("a", "ConfigMap a")
	ours.parent, ours.yields = "embedded-a", true
	b.pass(true, []file{ours}, "apply ConfigMap a")
	b.restart()
	b.keeper.directory = "another"
	b.pass(true, nil, "remove ConfigMap a", "drop embedded-a")
}

func TestDirectoryID(t *testing.T) {
	dir := t.TempDir()
	id, made := directoryID(dir)
	if id == "" || !made {
		t.Fatalf("a new directory: %q, %t", id, made)
	}
	if again, made := directoryID(dir); again != id || made {
		t.Errorf("it became %q, %t", again, made)
	}
	if other, _ := directoryID(t.TempDir()); other == id {
		t.Error("two directories are one")
	}
	if err := os.WriteFile(filepath.Join(dir, idFile), nil, 0o600); err != nil { // cut off by a power failure
		t.Fatal(err)
	}
	if again, made := directoryID(dir); again == "" || again == id || !made {
		t.Errorf("without its identity: %q, %t", again, made)
	}
	if id, made := directoryID(filepath.Join(dir, idFile, "no directory")); id != "" || made {
		t.Errorf("what cannot be written: %q, %t", id, made)
	}
}
