package why

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"kubelith.io/kubelith/integration/harness"
)

// registryAddress is where the server's node finds the tests' registry. containerd speaks HTTP to localhost.
const registryAddress = "127.0.0.1:5000"

// serveRegistry serves a registry inside the sandbox, as localhost:5000. It has nothing in it.
func serveRegistry(t *testing.T, s *harness.Server) {
	t.Helper()
	l, err := s.Listen(registryAddress)
	if err != nil {
		t.Fatal(err)
	}
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		images.ServeHTTP(w, r)
	}))
	server.Listener.Close()
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
}
