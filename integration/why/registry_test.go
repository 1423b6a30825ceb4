package why

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"kubelith.io/kubelith/integration/harness"
)

// registryAddress is where the server's node finds the tests' registry. containerd speaks HTTP to localhost.
const registryAddress = "127.0.0.1:5000"

// serveRegistry serves a registry inside the sandbox, as localhost:5000. It has two images: private/web:1, for the user
// puller with the password secret, and elsewhere/web:1, for an architecture that no node has. Every pull below
// limited/ is refused with 429.
func serveRegistry(t *testing.T, s *harness.Server) {
	t.Helper()
	l, err := s.Listen(registryAddress)
	if err != nil {
		t.Fatal(err)
	}
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		switch {
		case strings.HasPrefix(r.URL.Path, "/v2/private/") && (user != "puller" || password != "secret"):
			w.Header().Set("WWW-Authenticate", `Basic realm="tests"`)
			w.WriteHeader(http.StatusUnauthorized)
		case strings.HasPrefix(r.URL.Path, "/v2/limited/"):
			w.WriteHeader(http.StatusTooManyRequests)
		default:
			images.ServeHTTP(w, r)
		}
	}))
	server.Listener.Close()
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)

	// The kubelet knows images by their configuration: with the same one, it would want the password for the test image
	// that is on the node as well.
	image, err := mutate.Config(harness.TestImage(t, s), v1.Config{Cmd: []string{"/bin/probe", "sleep"}, Labels: map[string]string{"for": "integration/why"}})
	if err != nil {
		t.Fatal(err)
	}
	harness.PushImage(t, images, "private/web", image)
	harness.PushImage(t, images, "elsewhere/web", image)
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}})
	harness.PutManifest(t, images, "/v2/elsewhere/web/manifests/1", index)
}
