package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
)

// patience bounds every wait; longer means a hang.
const patience = 20 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quiet is a logger for tests that make handlers panic.
func quiet() *logrus.Logger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return l
}

// open returns an open InProcess and a client of the identity "tester".
func open(t *testing.T, h http.Handler) (*InProcess, *http.Client) {
	t.Helper()
	p := New("https://127.0.0.1:6443", quiet())
	p.Open(h)
	t.Cleanup(p.Close)
	return p, &http.Client{Transport: p.Config("tester").Transport}
}

// overBoth runs a test against the in-process transport and against a real HTTP/2 server, which defines the correct
// behaviour.
func overBoth(t *testing.T, h http.HandlerFunc, test func(t *testing.T, c *http.Client, url string)) {
	t.Run("in process", func(t *testing.T) {
		_, c := open(t, h)
		test(t, c, "https://127.0.0.1:6443")
	})
	t.Run("http2", func(t *testing.T) {
		s := httptest.NewUnstartedServer(h)
		s.EnableHTTP2 = true
		s.Config.ErrorLog = nullLog()
		s.StartTLS()
		t.Cleanup(s.Close)
		c := s.Client()
		t.Cleanup(c.CloseIdleConnections)
		test(t, c, s.URL)
	})
}

func do(t *testing.T, c *http.Client, ctx context.Context, method, url string, body io.Reader) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Body.Close() })
	return r
}

// await fails the test when c is not closed in time.
func await(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("%s: did not happen within %s", what, patience)
	}
}

func TestWhatTheHandlerSees(t *testing.T) {
	handler := func(w http.ResponseWriter, r *http.Request) {
		_, flusher := w.(http.Flusher)
		//lint:ignore SA1019 upstream asks for it
		_, notifier := w.(http.CloseNotifier)
		body, err := io.ReadAll(r.Body)
		for k, v := range map[string]any{
			"Proto": r.Proto, "Major": r.ProtoMajor, "Method": r.Method, "Path": r.URL.Path, "Query": r.URL.RawQuery,
			"Uri": r.RequestURI, "Url-Host": r.URL.Host, "Url-Scheme": r.URL.Scheme, "Length": r.ContentLength,
			"Flusher": flusher, "Notifier": notifier, "Body": string(body), "Err": err,
			"Agent": r.UserAgent(), "Has-Remote": r.RemoteAddr != "", "Custom": strings.Join(r.Header["X-Custom"], ","),
			"Deadline": hasDeadline(r.Context()), "Host-Is-Set": r.Host != "",
		} {
			w.Header().Set("Saw-"+k, strings.TrimSpace(strings.Trim(sprint(v), "\n")))
		}
	}
	for _, c := range []struct {
		name, method, path string
		body               io.Reader
		want               map[string]string
	}{
		{"get", "GET", "/api/v1/pods?watch=1&x=%2F", nil, map[string]string{"Path": "/api/v1/pods", "Query": "watch=1&x=%2F", "Uri": "/api/v1/pods?watch=1&x=%2F", "Length": "0"}},
		{"known length", "POST", "/p", strings.NewReader("hello"), map[string]string{"Body": "hello", "Length": "5"}},
		{"unknown length", "PUT", "/p", io.MultiReader(strings.NewReader("he"), strings.NewReader("llo")), map[string]string{"Body": "hello", "Length": "-1"}},
		{"escaped path", "GET", "/a%2Fb/c%20d", nil, map[string]string{"Path": "/a/b/c d", "Uri": "/a%2Fb/c%20d"}},
		{"delete without body", "DELETE", "/p", nil, map[string]string{"Body": "", "Length": "0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			overBoth(t, handler, func(t *testing.T, client *http.Client, url string) {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				if s, ok := c.body.(*strings.Reader); ok {
					s.Seek(0, io.SeekStart)
				}
				body := c.body
				if _, multi := c.body.(*strings.Reader); body != nil && !multi {
					body = io.MultiReader(strings.NewReader("he"), strings.NewReader("llo"))
				}
				req, err := http.NewRequestWithContext(ctx, c.method, url+c.path, body)
				if err != nil {
					t.Fatal(err)
				}
				req.Header["X-Custom"] = []string{"a", "b"}
				req.Header.Set("User-Agent", "tester")
				r, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				r.Body.Close()
				want := map[string]string{"Proto": "HTTP/2.0", "Major": "2", "Method": c.method, "Url-Host": "", "Url-Scheme": "", "Flusher": "true",
					"Notifier": "true", "Err": "<nil>", "Agent": "tester", "Has-Remote": "true", "Custom": "a,b", "Deadline": "false", "Host-Is-Set": "true"}
				for k, v := range c.want {
					want[k] = v
				}
				for k, v := range want {
					if got := r.Header.Get("Saw-" + k); got != v {
						t.Errorf("%s: handler saw %q, want %q", k, got, v)
					}
				}
			})
		})
	}
}

func TestWhatTheClientSees(t *testing.T) {
	big := strings.Repeat("x", 100<<10)
	for _, c := range []struct {
		name, method string
		handler      http.HandlerFunc
		code         int
		body         string
		length       int64 // -2: not compared
		header       map[string]string
	}{
		{"nothing written", "GET", func(http.ResponseWriter, *http.Request) {}, 200, "", -2, nil},
		{"code and body", "POST", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201); io.WriteString(w, "made") }, 201, "made", -2, nil},
		{"first code counts", "GET", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404); w.WriteHeader(500) }, 404, "", -2, nil},
		{"body sends the code", "GET", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "a"); w.WriteHeader(500) }, 200, "a", -2, nil},
		{"header after the code is too late", "GET", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Early", "1")
			w.WriteHeader(200)
			w.Header().Set("X-Late", "1")
		}, 200, "", -2, map[string]string{"X-Early": "1", "X-Late": ""}},
		{"informational", "GET", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(103); w.WriteHeader(202) }, 202, "", -2, nil},
		{"no content", "DELETE", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(204)
			if _, err := io.WriteString(w, "x"); !errors.Is(err, http.ErrBodyNotAllowed) {
				panic("a body was allowed")
			}
		}, 204, "", -2, nil},
		{"declared length", "GET", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(big)))
			io.WriteString(w, big)
		}, 200, big, int64(len(big)), nil},
		{"unknown length", "GET", func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			io.WriteString(w, big)
		}, 200, big, -1, nil},
		{"head", "HEAD", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "7")
			w.WriteHeader(200)
			io.WriteString(w, "not for")
		}, 200, "", 7, nil},
		{"head with a body beyond the window", "HEAD", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(20*len(big)))
			for range 20 {
				if _, err := io.WriteString(w, big); err != nil {
					panic(err)
				}
			}
		}, 200, "", int64(20 * len(big)), nil},
		{"type found out", "GET", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }, 200, "<html>", -2, map[string]string{"Content-Type": "text/html; charset=utf-8"}},
		{"type given", "GET", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, "<html>")
		}, 200, "<html>", -2, map[string]string{"Content-Type": "application/json"}},
		{"body of a request left unread", "POST", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusRequestEntityTooLarge) }, 413, "no\n", -2, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			overBoth(t, c.handler, func(t *testing.T, client *http.Client, url string) {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				var body io.Reader
				if c.method == "POST" {
					body = bytes.NewReader(make([]byte, 1000))
				}
				r := do(t, client, ctx, c.method, url, body)
				got, err := io.ReadAll(r.Body)
				if err != nil {
					t.Fatal(err)
				}
				if r.StatusCode != c.code || string(got) != c.body {
					t.Errorf("got %d with %d bytes, want %d with %d bytes", r.StatusCode, len(got), c.code, len(c.body))
				}
				if c.length != -2 && r.ContentLength != c.length {
					t.Errorf("ContentLength is %d, want %d", r.ContentLength, c.length)
				}
				if r.ProtoMajor != 2 {
					t.Errorf("protocol is %s", r.Proto)
				}
				for k, v := range c.header {
					if r.Header.Get(k) != v {
						t.Errorf("header %s is %q, want %q", k, r.Header.Get(k), v)
					}
				}
			})
		})
	}
}

func TestLargeList(t *testing.T) {
	chunk := bytes.Repeat([]byte("0123456789abcdef"), 1<<10)
	const chunks = 640 // 10 MiB
	want := sha256.New()
	for range chunks {
		want.Write(chunk)
	}
	for name, size := range map[string]int{"in one write": chunks, "in small writes": 1} {
		t.Run(name, func(t *testing.T) {
			overBoth(t, func(w http.ResponseWriter, _ *http.Request) {
				for range chunks / size {
					if _, err := w.Write(bytes.Repeat(chunk, size)); err != nil {
						panic(err)
					}
				}
			}, func(t *testing.T, c *http.Client, url string) {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				got := sha256.New()
				n, err := io.Copy(got, do(t, c, ctx, "GET", url, nil).Body)
				if err != nil || n != int64(chunks*len(chunk)) {
					t.Fatalf("read %d bytes: %v", n, err)
				}
				if !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
					t.Error("the bytes are not those that were written")
				}
			})
		})
	}
}

func TestStreamedRequestBody(t *testing.T) {
	overBoth(t, func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		b := make([]byte, 64)
		for {
			n, err := r.Body.Read(b)
			w.Write(bytes.ToUpper(b[:n]))
			w.(http.Flusher).Flush()
			if err != nil {
				return
			}
		}
	}, func(t *testing.T, c *http.Client, url string) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		pr, pw := io.Pipe()
		r := do(t, c, ctx, "POST", url, pr)
		for _, word := range []string{"one", "two"} {
			if _, err := io.WriteString(pw, word); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(word))
			if _, err := io.ReadFull(r.Body, got); err != nil || string(got) != strings.ToUpper(word) {
				t.Fatalf("sent %q, got %q back: %v", word, got, err)
			}
		}
		pw.Close()
		if rest, err := io.ReadAll(r.Body); err != nil || len(rest) > 0 {
			t.Fatalf("after the end: %q, %v", rest, err)
		}
	})
}

func TestPanic(t *testing.T) {
	for _, c := range []struct {
		name   string
		value  any
		before bool
	}{
		{"before the header", "boom", true},
		{"abort before the header", http.ErrAbortHandler, true},
		{"nil map before the header", errors.New("assignment to entry in nil map"), true},
		{"after the header", "boom", false},
		{"abort after the header", http.ErrAbortHandler, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			overBoth(t, func(w http.ResponseWriter, _ *http.Request) {
				if !c.before {
					io.WriteString(w, "part")
					w.(http.Flusher).Flush()
				}
				panic(c.value)
			}, func(t *testing.T, client *http.Client, url string) {
				r, err := client.Get(url)
				if c.before && err != nil {
					return // how HTTP/2 says it
				}
				if err != nil {
					t.Fatal(err)
				}
				defer r.Body.Close()
				body, err := io.ReadAll(r.Body)
				if c.before {
					if r.StatusCode != 500 || err != nil {
						t.Errorf("got %d, %v, want 500", r.StatusCode, err)
					}
					return
				}
				if r.StatusCode != 200 || string(body) != "part" || err == nil {
					t.Errorf("got %d %q with error %v, want 200, what was sent, and an error", r.StatusCode, body, err)
				}
			})
		})
	}
}

// TestBrokenProxy: a server behind the apiserver's proxy that disappears in mid-answer breaks the client's answer,
// which must not look complete.
func TestBrokenProxy(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "part")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer backend.Close()
	address, err := url.Parse(backend.URL)
	if err != nil {
		t.Fatal(err)
	}
	idle := &http.Transport{}
	defer idle.CloseIdleConnections()
	proxy := &httputil.ReverseProxy{Transport: idle, ErrorLog: nullLog(), Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(address) }}
	overBoth(t, proxy.ServeHTTP, func(t *testing.T, c *http.Client, url string) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		body, err := io.ReadAll(do(t, c, ctx, "GET", url, nil).Body)
		if err == nil || ctx.Err() != nil {
			t.Errorf("read %q without an error: %v", body, ctx.Err())
		}
	})
}
