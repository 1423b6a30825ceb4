package suite

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestCreate(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "suites")
	write := func(dir string) error { return os.WriteFile(filepath.Join(dir, "program"), nil, 0o755) }
	for i, name := range []string{"first", "second", "third", "fourth"} {
		dir := filepath.Join(parent, name)
		broken := errors.New("broken")
		if err := create(dir, func(string) error { return broken }); err != broken || exists(dir) {
			t.Fatalf("%s: %v, a suite that failed is there: %v", name, err, exists(dir))
		}
		if err := create(dir, write); err != nil || !exists(filepath.Join(dir, "program")) {
			t.Fatalf("%s: %v", name, err)
		}
		made := time.Now().Add(time.Duration(i-10) * time.Minute)
		if err := os.Chtimes(dir, made, made); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(parent)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{"fourth", "lock", "second", "third"}; err != nil || len(names) != len(want) || exists(filepath.Join(parent, "first")) {
		t.Errorf("got %q, %v, want %q", names, err, want)
	}
}
