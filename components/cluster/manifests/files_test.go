package manifests

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	repository "kubelith.io/kubelith/manifests"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestDirectory: which files are manifests, in which order, and what is watched for more.
func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b.yaml", "a.yml", "sub/deep/c.json", ".hidden.yaml", ".git/d.yaml", "README.md", "e.yaml~"} {
		write(t, filepath.Join(dir, name), "# "+name)
	}
	for link, to := range map[string]string{"linked.yaml": "b.yaml", "nowhere.yaml": "not-mounted/x.yaml"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "directory.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	var watched []string
	files, err := directory(dir, func(path string) { watched = append(watched, path) })
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range files {
		text := strings.TrimPrefix(f.name, dir+"/") + ": " + string(f.content)
		if f.err != nil { // not left out: its objects would be deleted
			text = strings.TrimPrefix(f.name, dir+"/") + " cannot be read"
		}
		got = append(got, text)
	}
	want := []string{"a.yml: # a.yml", "b.yaml: # b.yaml", "linked.yaml: # b.yaml", "nowhere.yaml cannot be read", "sub/deep/c.json: # sub/deep/c.json"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if want := []string{dir, dir + "/directory.yaml", dir + "/sub", dir + "/sub/deep"}; !reflect.DeepEqual(watched, want) {
		t.Errorf("watched %q, want %q", watched, want)
	}
	if _, err := directory(filepath.Join(dir, "missing"), func(string) {}); err == nil {
		t.Error("a directory that is not there is no error: all objects would be deleted")
	}
	if err := os.Truncate(filepath.Join(dir, "a.yml"), maxFile+1); err != nil {
		t.Fatal(err)
	}
	if files, err := directory(dir, func(string) {}); err != nil || files[0].err == nil || files[0].content != nil {
		t.Errorf("a huge file was read: %v", err)
	}
}

// TestParentName: names of objects, each path another one.
func TestParentName(t *testing.T) {
	if got := parentName("manifest-", "web.yaml"); got != "manifest-web.yaml" {
		t.Errorf("a plain file: %s", got)
	}
	seen := map[string]string{}
	for _, path := range []string{"a.yaml", "a.yml", "A.yaml", "sub/a.yaml", "sub-a.yaml", "a b.yaml", "a_b.yaml", "-.yaml", "a..yaml", "ä.yaml", "ö.yaml", strings.Repeat("x", 240) + ".yaml", strings.Repeat("x", 241) + ".yaml"} {
		name := parentName("manifest-", path)
		if errs := validation.IsDNS1123Subdomain(name); len(errs) > 0 {
			t.Errorf("%s: %s: %v", path, name, errs)
		}
		if other, twice := seen[name]; twice {
			t.Errorf("%s and %s are both %s", path, other, name)
		}
		seen[name] = path
	}
}

// TestEmbedded: what the executable has can be applied: a mistake would be in every cluster.
func TestEmbedded(t *testing.T) {
	files, err := embedded(repository.Cluster())
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, f := range files {
		documents, wrong := parse(f.content)
		if wrong != nil || len(documents) == 0 {
			t.Errorf("%s: %d objects, %+v", f.name, len(documents), wrong)
		}
		if !strings.HasPrefix(f.parent, "embedded-") {
			t.Errorf("%s: its parent is %s", f.name, f.parent)
		}
	}
}

// TestParent: id and annotations are as the specification wants them, and are read back.
func TestParent(t *testing.T) {
	p := newParent("manifest-a.yaml", "/x/a.yaml")
	// printf manifest-a.yaml.kube-system.ConfigMap. | sha256sum | xxd -r -p | basenc --base64url
	if want := "applyset-9CEVHaYdlzES0B7EOzATJnesNz320N0cU-ZOK6ilRE0-v1"; p.id() != want {
		t.Errorf("id %s, want %s", p.id(), want)
	}
	if errs := validation.IsValidLabelValue(p.id()); len(errs) > 0 {
		t.Error(errs)
	}
	p.kinds.Insert(namespaceKind, definitionKind)
	p.namespaces.Insert("b", "a", parentNamespace)
	want := map[string]string{
		"applyset.kubernetes.io/tooling":               "kubelith/v1",
		"applyset.kubernetes.io/contains-group-kinds":  "CustomResourceDefinition.apiextensions.k8s.io,Namespace",
		"applyset.kubernetes.io/additional-namespaces": "a,b",
		"kubelith.io/file":                             "/x/a.yaml",
	}
	if got := p.annotations(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	read := parentOf(metav1.ObjectMeta{Name: "manifest-a.yaml", Annotations: want})
	if !read.kinds.Equal(p.kinds) || !read.namespaces.Equal(p.namespaces) || read.file != p.file {
		t.Errorf("read back %+v, want %+v", read, p)
	}
	empty := parentOf(metav1.ObjectMeta{Name: "x", Annotations: newParent("x", "x").annotations()})
	if len(empty.kinds) != 0 || len(empty.namespaces) != 1 {
		t.Errorf("an empty set has %v in %v", empty.kinds, empty.namespaces)
	}
}
