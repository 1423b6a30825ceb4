package kubelith

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"kubelith.io/kubelith/trace"
)

func TestServeOnLoopbackOnly(t *testing.T) {
	for address, ok := range map[string]bool{
		"127.0.0.1:0": true, "localhost:8090": true, "[::1]:0": true, "127.1.2.3:80": true,
		"0.0.0.0:80": false, ":80": false, "[::]:80": false, "192.0.2.1:80": false, "example.org:80": false, "127.0.0.1": false,
		"127.0.0.1:http": false, "127.0.0.1:70000": false, "": false, "[::ffff:192.0.2.1]:80": false,
	} {
		if err := loopback(address); (err == nil) != ok {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// Only requests with the secret path, under this address, from this page or none, are answered.
func TestTraceSite(t *testing.T) {
	site := newTraceSite(&fakeRecorder{timelines: []*trace.Timeline{timelineOf(t, "deletion")}}, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8090})
	path, ok := strings.CutPrefix(site.url(), "http://127.0.0.1:8090")
	if !ok || len(path) < 20 {
		t.Fatalf("the address is %s", site.url())
	}
	for _, c := range []struct {
		name, path string
		change     func(*http.Request)
		want       int
	}{
		{"the page", path, func(*http.Request) {}, 200},
		{"by the name localhost", path, func(r *http.Request) { r.Host = "localhost:8090" }, 200},
		{"the list", path + "recent?after=3", func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:8090") }, 200},
		{"the list, for its page", path + "recent", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-origin") }, 200},
		{"without the secret", "/", func(*http.Request) {}, 404},
		{"with another secret", "/AAAA/", func(*http.Request) {}, 404},
		{"another path", path + "secrets", func(*http.Request) {}, 404},
		{"a name that points here", path, func(r *http.Request) { r.Host = "rebind.example.org:8090" }, 421},
		{"another port", path, func(r *http.Request) { r.Host = "127.0.0.1:80" }, 421},
		{"from another site", path + "recent", func(r *http.Request) { r.Header.Set("Origin", "https://example.org") }, 403},
		{"from another port", path + "recent", func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:80") }, 403},
		{"a frame of another site", path, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, 403},
		{"a write", path + "recent", func(r *http.Request) { r.Method = http.MethodPost }, 405},
	} {
		req := httptest.NewRequest(http.MethodGet, c.path, nil)
		req.Host = "127.0.0.1:8090"
		c.change(req)
		answer := httptest.NewRecorder()
		site.ServeHTTP(answer, req)
		if answer.Code != c.want || answer.Header().Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: %d, want %d: %s", c.name, answer.Code, c.want, answer.Body)
		}
	}
}

// An error reaches the page as one line.
func TestTraceSiteTellsErrors(t *testing.T) {
	client := &fakeRecorder{err: apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "web")}
	site := newTraceSite(client, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8090})
	answer := httptest.NewRecorder()
	req := httptest.NewRequest(http.MethodGet, site.url()+"timeline?resource=pods&namespace=shop&name=web", nil)
	site.ServeHTTP(answer, req)
	if want := `{"error":"no record of pod/web in namespace shop:`; answer.Code != http.StatusBadGateway && answer.Code != 404 || !strings.HasPrefix(answer.Body.String(), want) {
		t.Errorf("%d: %s", answer.Code, answer.Body)
	}
}
