package images

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestArchiveBase(t *testing.T) {
	for name, want := range map[string]string{
		"app.tar":           "app",
		"app-1.2.tar.gz":    "app-1.2",
		"app.tgz":           "app",
		"app.tar.zst":       "app",
		"app.tar.xz":        "",
		"README":            "",
		".tar":              "",
		".app.tar":          "",
		".imported.json":    "",
		"app.tar.gz.part":   "",
		"a.tar.b.tar":       "a.tar.b",
		".imported.json.gz": "",
	} {
		got, ok := archiveBase(name)
		if got != want || ok != (want != "") {
			t.Errorf("archiveBase(%q) = %q, %v; want %q", name, got, ok, want)
		}
	}
}

func TestFullName(t *testing.T) {
	for name, want := range map[string]string{
		"docker.io/kubelith/hello:1": "docker.io/kubelith/hello:1",
		"nginx:1.27":                 "docker.io/library/nginx:1.27",
		"localhost:5000/x":           "localhost:5000/x:latest",
		"quay.io/a/b":                "quay.io/a/b:latest",
		"1.0":                        "docker.io/library/myapp:1.0",
		"Not/Valid":                  "",
	} {
		if got := fullName("MyApp")(name); got != want {
			t.Errorf("fullName(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), recordName)
	if got := readRecord(path); len(got) != 0 {
		t.Errorf("no file gives %v", got)
	}
	when := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	want := stamp{Size: 7, ModTime: when, Images: map[string]string{"a:1": "sha256:00"}}
	if err := writeRecord(path, map[string]stamp{"a.tar": want}); err != nil {
		t.Fatal(err)
	}
	got := readRecord(path)["a.tar"]
	if got.Size != 7 || !got.ModTime.Equal(when) || !maps.Equal(got.Images, want.Images) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if err := os.WriteFile(path, []byte(`{"a.tar": {"size":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := readRecord(path); len(got) != 0 {
		t.Errorf("a damaged file gives %v", got)
	}
}
