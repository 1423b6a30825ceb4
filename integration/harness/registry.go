package harness

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// TestImage returns the image in the archive that a server imports.
func TestImage(t testing.TB, s *Server) v1.Image {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("tar", "-C", dir, "-xf", s.Path(TestImageArchive)).CombinedOutput(); err != nil {
		t.Fatalf("unpack the test image: %v: %s", err, out)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	list, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	image, err := index.Image(list.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// PushImage puts an image with the tag 1 into a registry. go-containerregistry's own client would need the one of
// Docker.
func PushImage(t testing.TB, registry http.Handler, repository string, image v1.Image) {
	t.Helper()
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	config, err := partial.ConfigLayer(image)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range append(layers, config) {
		digest, err := l.Digest()
		if err != nil {
			t.Fatal(err)
		}
		content, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		send(t, registry, http.MethodPost, "/v2/"+repository+"/blobs/uploads/?digest="+digest.String(), "application/octet-stream", content)
		content.Close()
	}
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	PutManifest(t, registry, "/v2/"+repository+"/manifests/"+digest.String(), image)
	PutManifest(t, registry, "/v2/"+repository+"/manifests/1", image)
}

// PutManifest puts the manifest of an image or an index.
func PutManifest(t testing.TB, registry http.Handler, path string, of partial.WithRawManifest) {
	t.Helper()
	content, err := of.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	mediaType, err := of.(interface {
		MediaType() (types.MediaType, error)
	}).MediaType()
	if err != nil {
		t.Fatal(err)
	}
	send(t, registry, http.MethodPut, path, string(mediaType), bytes.NewReader(content))
}

func send(t testing.TB, registry http.Handler, method, path, mediaType string, body io.Reader) {
	t.Helper()
	r := httptest.NewRequest(method, path, body)
	r.Header.Set("Content-Type", mediaType)
	w := httptest.NewRecorder()
	registry.ServeHTTP(w, r)
	if w.Code != http.StatusCreated {
		t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
	}
}
