package upgrader

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"kubelith.io/kubelith/base/names"
)

// TestHandler: only files that are named by a checksum are served, and none beside them.
func TestHandler(t *testing.T) {
	dir, sum := t.TempDir(), strings.Repeat("0a", 32)
	if err := os.Mkdir(Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{File(dir, sum): "program", Dir(dir) + "/result.json": "{}"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h := Handler(dir, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	for _, c := range []struct {
		method, path string
		code         int
		body         string
	}{
		{http.MethodGet, names.UpgradesPath + sum, http.StatusOK, "program"},
		{http.MethodGet, names.UpgradesPath + strings.Repeat("0b", 32), http.StatusNotFound, ""},
		{http.MethodGet, names.UpgradesPath + strings.ToUpper(sum), http.StatusNotFound, ""},
		{http.MethodGet, names.UpgradesPath + "result.json", http.StatusNotFound, ""},
		{http.MethodGet, names.UpgradesPath + "../upgrades/" + sum, http.StatusNotFound, ""},
		{http.MethodGet, names.UpgradesPath, http.StatusNotFound, ""},
		{http.MethodPost, names.UpgradesPath + sum, http.StatusMethodNotAllowed, ""},
		{http.MethodGet, "/api", http.StatusTeapot, ""},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(c.method, "/", nil)
		r.URL.Path = c.path
		h.ServeHTTP(w, r)
		if w.Code != c.code || c.body != "" && w.Body.String() != c.body {
			t.Errorf("%s %s: %d %q, want %d %q", c.method, c.path, w.Code, w.Body, c.code, c.body)
		}
	}
}

// TestRequest: what is no checksum is no request, so that it cannot name another file.
func TestRequest(t *testing.T) {
	sum := strings.Repeat("0a", 32)
	for text, want := range map[string]bool{
		`{"id":"1","sha256":"` + sum + `","within":"5m"}`:    true,
		`{"sha256":"` + sum + `"}`:                           false,
		`{"id":"1","sha256":"../../etc"}`:                    false,
		`{"id":"1","sha256":"` + strings.ToUpper(sum) + `"}`: false,
		`{"id":"1","sha256":"` + sum + `/../` + sum + `"}`:   false,
		"":  false,
		sum: false,
	} {
		if got := requestOf(map[string]string{RequestAnnotation: text}); (got != nil) != want {
			t.Errorf("%q is the request %v", text, got)
		}
	}
	if _, found := StatusOf(nil); found {
		t.Error("a Node without the annotation has a status")
	}
}
