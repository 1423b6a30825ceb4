package process

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"kubelith.io/kubelith/integration/harness"
)

// TestRegistries pulls through /etc/kubelith/registries.d: from the server that a host's own file names, and from the
// mirror that _default names for all others. Neither host exists.
func TestRegistries(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	own, mirror := serveRegistry(t, s, "own"), serveRegistry(t, s, "mirror")
	dir := s.Path("/etc/kubelith/registries.d")
	for host, text := range map[string]string{
		"registry.test": fmt.Sprintf("server = %q\n", own.url),
		"_default":      fmt.Sprintf("[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", mirror.url),
	} {
		if err := os.MkdirAll(filepath.Join(dir, host), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, host, "hosts.toml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	defer os.RemoveAll(dir)
	for host, from := range map[string]*registry{"registry.test": own, "elsewhere.test": mirror} {
		pod := harness.Pod(ns, strings.TrimSuffix(host, ".test"), "/bin/probe", "sleep")
		pod.Spec.Containers[0].Image = host + "/team/app:1"
		pod = s.Run(t, pod)
		if name := s.PodExec(t, pod, "main", "cat", "/etc/registry"); name != from.name {
			t.Errorf("the image of %s comes from %q", host, name)
		}
		if got := from.hosts(); len(got) != 1 || !got[host] {
			t.Errorf("the registry %s was asked for the hosts %v", from.name, got)
		}
	}
}

// registry is one image, served as an OCI registry over HTTP under any name.
type registry struct {
	name, url string
	manifest  []byte
	mediaType string
	digest    string
	blobs     map[string][]byte

	mu    sync.Mutex
	asked map[string]bool
}

// serveRegistry serves the test image with the name in the file /etc/registry, at an address of the host.
func serveRegistry(t *testing.T, s *harness.Server, name string) *registry {
	t.Helper()
	r := &registry{name: name, blobs: map[string][]byte{}, asked: map[string]bool{}}
	if err := r.fill(harness.TestImage(t, s)); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", s.HostIP+":0")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(r)
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

func (r *registry) fill(base v1.Image) error {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	if err := w.WriteHeader(&tar.Header{Name: "etc/registry", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(r.name))}); err != nil {
		return err
	}
	if _, err := w.Write([]byte(r.name)); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	added, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(layer.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return err
	}
	image, err := mutate.AppendLayers(base, added)
	if err != nil {
		return err
	}
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	for _, l := range layers {
		digest, err := l.Digest()
		if err != nil {
			return err
		}
		content, err := l.Compressed()
		if err != nil {
			return err
		}
		if r.blobs[digest.String()], err = io.ReadAll(content); err != nil {
			return err
		}
	}
	config, err := image.ConfigName()
	if err != nil {
		return err
	}
	if r.blobs[config.String()], err = image.RawConfigFile(); err != nil {
		return err
	}
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	r.digest = digest.String()
	mediaType, err := image.MediaType()
	if err != nil {
		return err
	}
	r.mediaType = string(mediaType)
	r.manifest, err = image.RawManifest()
	return err
}

// ServeHTTP is the pulling half of the distribution specification. containerd names the host that it asks for as ns.
func (r *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if ns := req.FormValue("ns"); ns != "" {
		r.mu.Lock()
		r.asked[ns] = true
		r.mu.Unlock()
	}
	_, ref, isManifest := strings.Cut(req.URL.Path, "/v2/team/app/manifests/")
	_, digest, _ := strings.Cut(req.URL.Path, "/v2/team/app/blobs/")
	blob, isBlob := r.blobs[digest]
	switch {
	case isManifest && (ref == "1" || ref == r.digest):
		w.Header().Set("Content-Type", r.mediaType)
		w.Header().Set("Docker-Content-Digest", r.digest)
		w.Header().Set("Content-Length", fmt.Sprint(len(r.manifest)))
		w.Write(r.manifest)
	case isBlob:
		w.Header().Set("Content-Length", fmt.Sprint(len(blob)))
		w.Write(blob)
	default:
		http.NotFound(w, req)
	}
}

// hosts are the names of registries that this one was asked for.
func (r *registry) hosts() map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := map[string]bool{}
	for h := range r.asked {
		found[h] = true
	}
	return found
}
