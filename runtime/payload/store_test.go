package payload

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// archiveOf creates a payload of the programs given by name and content.
func archiveOf(t *testing.T, programs map[string]string) ([]byte, *list) {
	t.Helper()
	var buf bytes.Buffer
	zw, err := zstd.NewWriter(&buf)
	if err != nil {
		t.Fatal(err)
	}
	tw := tar.NewWriter(zw)
	l := &list{}
	for _, name := range slices.Sorted(maps.Keys(programs)) { // the same programs are the same archive
		content := programs[name]
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
		l.files = append(l.files, file{name: name, size: int64(len(content))})
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(buf.Bytes())
	l.digest = hex.EncodeToString(sum[:])
	return buf.Bytes(), l
}

// newStore creates a store whose /proc has one process, executing exe.
func newStore(t *testing.T, exe string) store {
	t.Helper()
	s := store{dir: filepath.Join(t.TempDir(), "data"), proc: t.TempDir()}
	if err := os.Mkdir(filepath.Join(s.proc, "7"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(strings.ReplaceAll(exe, "STORE", s.dir), filepath.Join(s.proc, "7", "exe")); err != nil {
		t.Fatal(err)
	}
	return s
}

func install(t *testing.T, s store, programs map[string]string) (binDir, hash string) {
	t.Helper()
	archive, l := archiveOf(t, programs)
	binDir, err := s.install(bytes.NewReader(archive), l)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range programs {
		got, err := os.ReadFile(filepath.Join(binDir, name))
		if err != nil || string(got) != want {
			t.Fatalf("%s holds %q (%v), want %q", name, got, err, want)
		}
		info, err := os.Stat(filepath.Join(binDir, name))
		if err != nil || info.Mode().Perm() != 0o755 {
			t.Fatalf("%s: mode %v (%v), want 0755", name, info.Mode(), err)
		}
	}
	return binDir, l.hash()
}

func entries(t *testing.T, s store) []string {
	t.Helper()
	found, err := os.ReadDir(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range found {
		names = append(names, e.Name())
	}
	return names
}

func TestInstallKeepsWhatIsComplete(t *testing.T) {
	s := newStore(t, "/bin/sh")
	binDir, _ := install(t, s, map[string]string{"runc": "one"})
	before, err := os.Stat(filepath.Join(binDir, "runc"))
	if err != nil {
		t.Fatal(err)
	}
	again, _ := install(t, s, map[string]string{"runc": "one"})
	after, err := os.Stat(filepath.Join(again, "runc"))
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(before, after) {
		t.Error("a complete version was unpacked again")
	}
}

func TestInstallRepairs(t *testing.T) {
	for name, damage := range map[string]func(runc string) error{
		"missing": os.Remove,
		"cut":     func(runc string) error { return os.Truncate(runc, 1) },
		"mode":    func(runc string) error { return os.Chmod(runc, 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, "/bin/sh")
			binDir, hash := install(t, s, map[string]string{"runc": "one", "shim": "two"})
			if err := damage(filepath.Join(binDir, "runc")); err != nil {
				t.Fatal(err)
			}
			install(t, s, map[string]string{"runc": "one", "shim": "two"})
			if got := entries(t, s); len(got) != 2 || !slices.Contains(got, hash) || !slices.Contains(got, "current") {
				t.Errorf("the store holds %v, want %s and current", got, hash)
			}
		})
	}
}

func TestInstallAfterInterruption(t *testing.T) {
	s := newStore(t, "/bin/sh")
	for _, left := range []string{".unpack-123/bin/runc", ".damaged-4/old/bin/runc"} {
		path := filepath.Join(s.dir, left)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("half"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("nowhere", filepath.Join(s.dir, ".current")); err != nil {
		t.Fatal(err)
	}
	_, hash := install(t, s, map[string]string{"runc": "one"})
	if got := entries(t, s); len(got) != 2 || !slices.Contains(got, hash) || !slices.Contains(got, "current") {
		t.Errorf("the store holds %v, want %s and current", got, hash)
	}
}

func TestUpgradeKeepsVersionsInUse(t *testing.T) {
	_, old := archiveOf(t, map[string]string{"runc": "one"})
	for name, tc := range map[string]struct {
		exe  string
		kept bool
	}{
		"unused":  {"/bin/sh", false},
		"running": {"STORE/" + old.hash() + "/bin/runc", true},
		"deleted": {"STORE/" + old.hash() + "/bin/runc (deleted)", true},
		"similar": {"STORE-2/" + old.hash() + "/bin/runc", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, tc.exe)
			first, _ := install(t, s, map[string]string{"runc": "one"})
			second, _ := install(t, s, map[string]string{"runc": "changed"})
			if first != second {
				t.Errorf("the directory moved from %s to %s", first, second)
			}
			_, err := os.Stat(filepath.Join(s.dir, old.hash()))
			if kept := err == nil; kept != tc.kept {
				t.Errorf("old version kept: %v, want %v", kept, tc.kept)
			}
		})
	}
}

func TestDamagedArchive(t *testing.T) {
	archive, l := archiveOf(t, map[string]string{"runc": "one"})
	other, _ := archiveOf(t, map[string]string{"runc": "two"})
	escape, escapeList := archiveOf(t, map[string]string{"../runc": "one"})
	for name, tc := range map[string]struct {
		archive []byte
		list    *list
	}{
		"cut":          {archive[:len(archive)/2], l},
		"exchanged":    {other, l},
		"outside":      {escape, escapeList},
		"file missing": {archive, &list{digest: l.digest, files: append([]file{{"shim", 1, ""}}, l.files...)}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, "/bin/sh")
			if _, err := s.install(bytes.NewReader(tc.archive), tc.list); err == nil {
				t.Fatal("a damaged archive was installed")
			}
			if got := entries(t, s); len(got) != 0 {
				t.Errorf("the store holds %v after a failure", got)
			}
		})
	}
}

func TestParseList(t *testing.T) {
	digest := strings.Repeat("0a", 32)
	for text, ok := range map[string]bool{
		"sha256 " + digest + "\n12 runc\n3 nft\n": true,
		"sha256 " + digest + "\n":                 false,
		"sha256 " + digest + "\n12 ../runc\n":     false,
		"sha256 " + digest + "\nx runc\n":         false,
		"sha256 " + digest[1:] + "\n12 runc\n":    false,
		digest + "\n12 runc\n":                    false,
		"":                                        false,
	} {
		if _, err := parseList(text); (err == nil) != ok {
			t.Errorf("parseList(%q): %v", text, err)
		}
	}
	l, err := parseList("sha256 " + digest + "\n12 runc example.com/runc v1.2.3\n3 nft\n")
	if want := []file{{"runc", 12, "example.com/runc v1.2.3"}, {"nft", 3, ""}}; err != nil || !slices.Equal(l.files, want) {
		t.Errorf("%v, %v; want %v", l, err, want)
	}
}
