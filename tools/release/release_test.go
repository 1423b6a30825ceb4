package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"aead.dev/minisign"
)

// distribution is a directory with what `make dist` builds, and one with embedded programs: this test's own program
// stands for all.
func distribution(t *testing.T) (dist, payload string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	dist, payload = t.TempDir(), t.TempDir()
	for _, arch := range architectures() {
		put(t, filepath.Join(dist, "kubelith-"+arch), content)
		for _, name := range inGo() {
			put(t, filepath.Join(payload, arch, name), content)
		}
		for _, name := range inC() {
			put(t, filepath.Join(payload, arch, name), []byte("\x7fELF"))
		}
	}
	return dist, payload
}

func put(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, content, 0o600)); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, parts ...string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func architectures() []string { return []string{"amd64", "arm64"} }

var created = time.Date(2026, 11, 24, 9, 0, 0, 0, time.UTC)

func TestMakeTwice(t *testing.T) {
	dist, payload := distribution(t)
	if err := build(dist, payload, "v1", created, architectures()); err != nil {
		t.Fatal(err)
	}
	first := map[string][]byte{}
	for _, name := range []string{"kubelith-amd64.cdx.json", "kubelith-arm64.cdx.json", "kubelith-oci.tar", sums} {
		first[name] = read(t, dist, name)
	}
	if err := build(dist, payload, "v1", created, architectures()); err != nil {
		t.Fatal(err)
	}
	for name, content := range first {
		if !bytes.Equal(content, read(t, dist, name)) {
			t.Errorf("%s is another one the second time", name)
		}
		if name != sums && !strings.Contains(string(first[sums]), "  "+name+"\n") {
			t.Errorf("%s is not in %s", name, sums)
		}
	}
}

func TestBillOfMaterials(t *testing.T) {
	dist, payload := distribution(t)
	bill, err := billOfMaterials(filepath.Join(dist, "kubelith-amd64"), filepath.Join(payload, "amd64"), "v1", created)
	if err != nil {
		t.Fatal(err)
	}
	var bom struct {
		Components []struct {
			Name, Version, Purl string
			Hashes              []struct{ Content string }
			Components          []struct{ Name string }
		}
	}
	if err := json.Unmarshal(bill, &bom); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, c := range bom.Components {
		seen[c.Name] = true
		if c.Name == "aead.dev/minisign" && (c.Version == "" || c.Purl != "pkg:golang/aead.dev/minisign@"+c.Version) {
			t.Errorf("a module: %+v", c)
		}
		if c.Name == "runc" && (len(c.Hashes) != 1 || len(c.Components) == 0) {
			t.Errorf("an embedded program: %+v", c)
		}
	}
	for _, name := range slices.Concat([]string{"go", "aead.dev/minisign"}, inGo(), inC()) {
		if !seen[name] {
			t.Errorf("%s is missing", name)
		}
	}
	put(t, filepath.Join(payload, "amd64", "runc"), []byte("no program"))
	if _, err := billOfMaterials(filepath.Join(dist, "kubelith-amd64"), filepath.Join(payload, "amd64"), "v1", created); err == nil {
		t.Error("a program of Go without modules was accepted")
	}
}

func TestImage(t *testing.T) {
	dist, payload := distribution(t)
	if err := build(dist, payload, "v1", created, architectures()); err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(read(t, dist, "kubelith-oci.tar"))); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	type descriptor struct {
		Digest      string
		Annotations map[string]string
		Platform    struct{ Architecture string }
	}
	var top, index struct{ Manifests []descriptor }
	blob := func(digest string, into any) {
		t.Helper()
		if err := json.Unmarshal(files["blobs/sha256/"+strings.TrimPrefix(digest, "sha256:")], into); err != nil {
			t.Fatal(err)
		}
	}
	if err := json.Unmarshal(files["index.json"], &top); err != nil || len(top.Manifests) != 1 || top.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "kubelith.io/kubelith:v1" {
		t.Fatalf("%v: %s", err, files["index.json"])
	}
	blob(top.Manifests[0].Digest, &index)
	for i, arch := range architectures() {
		if len(index.Manifests) != len(architectures()) || index.Manifests[i].Platform.Architecture != arch {
			t.Fatalf("index: %+v", index)
		}
		var manifest struct{ Config descriptor }
		blob(index.Manifests[i].Digest, &manifest)
		var config struct {
			Architecture string
			Config       struct{ Entrypoint []string }
		}
		blob(manifest.Config.Digest, &config)
		if config.Architecture != arch || len(config.Config.Entrypoint) != 1 || config.Config.Entrypoint[0] != "/usr/local/bin/kubelith" {
			t.Errorf("config: %+v", config)
		}
	}
}

func TestSign(t *testing.T) {
	public, secret, err := minisign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	encrypted, err := minisign.EncryptKey("pw", secret)
	if err != nil {
		t.Fatal(err)
	}
	dist, payload := distribution(t)
	key := filepath.Join(t.TempDir(), "key")
	put(t, key, encrypted)
	if err := sign(dist, key, ""); err == nil || !strings.Contains(err.Error(), "MINISIGN_PASSWORD") {
		t.Errorf("without a password: %v", err)
	}
	plain, err := secret.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	put(t, key, plain)
	if err := sign(dist, key, ""); err == nil || !strings.Contains(err.Error(), "make release") {
		t.Errorf("without checksums: %v", err)
	}
	if err := build(dist, payload, "v1", created, architectures()); err != nil {
		t.Fatal(err)
	}
	if err := sign(dist, key, ""); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kubelith-amd64", "kubelith-arm64", sums} {
		r := minisign.NewReader(bytes.NewReader(read(t, dist, name)))
		if _, err := io.Copy(io.Discard, r); err != nil {
			t.Fatal(err)
		}
		if !r.Verify(public, read(t, dist, name+signature)) {
			t.Errorf("the signature of %s does not fit", name)
		}
		if err := os.Remove(filepath.Join(dist, name+signature)); err != nil {
			t.Fatal(err)
		}
	}
	put(t, filepath.Join(dist, "kubelith-arm64"), []byte("another"))
	if err := sign(dist, key, ""); err == nil || !strings.Contains(err.Error(), "nothing was signed") {
		t.Errorf("a file that was changed: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dist, "*"+signature)); len(left) > 0 {
		t.Errorf("signed all the same: %v", left)
	}
}
