package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestRequestsWaitForOpen(t *testing.T) {
	p := New("https://x", quiet())
	defer p.Close()
	c := &http.Client{Transport: p.Config("tester").Transport}
	answers := make(chan string, 3)
	for range cap(answers) {
		go func() {
			r, err := c.Get("https://x")
			if err != nil {
				answers <- err.Error()
				return
			}
			defer r.Body.Close()
			b, _ := io.ReadAll(r.Body)
			answers <- string(b)
		}()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "GET", "https://x", nil)
	if _, err := c.Do(req); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("before Open: %v, want the request's own deadline", err)
	}
	select {
	case a := <-answers:
		t.Fatalf("answered before Open: %q", a)
	default:
	}
	p.Open(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "first") }))
	p.Open(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "second") }))
	for range cap(answers) {
		select {
		case a := <-answers:
			if a != "first" {
				t.Errorf("got %q, want the first handler's answer", a)
			}
		case <-time.After(patience):
			t.Fatal("a request still waits after Open")
		}
	}
}

func TestCloseBeforeOpen(t *testing.T) {
	p := New("https://x", quiet())
	c := &http.Client{Transport: p.Config("tester").Transport}
	failed := make(chan error, 1)
	body := &closeCounter{Reader: strings.NewReader("x"), closed: make(chan struct{})}
	go func() {
		_, err := c.Post("https://x", "text/plain", body)
		failed <- err
	}()
	p.Close()
	if err := <-failed; !errors.Is(err, errClosed) {
		t.Errorf("got %v, want %v", err, errClosed)
	}
	await(t, body.closed, "close of the request's body")
}

func TestCloseEndsStreamsAndRefusesRequests(t *testing.T) {
	ended := make(chan struct{})
	header := make(chan struct{})
	p, c := open(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/silent" {
			close(header)
			<-r.Context().Done()
			return
		}
		stream(ended)(w, r)
	}))
	r := do(t, c, t.Context(), "GET", "https://x/", nil)
	readFirst(t, r)
	silent := make(chan error, 1)
	go func() {
		_, err := c.Get("https://x/silent")
		silent <- err
	}()
	<-header
	p.Close()
	p.Close()
	await(t, ended, "end of the stream's handler")
	if _, err := io.ReadAll(r.Body); err != io.ErrUnexpectedEOF {
		t.Errorf("the stream ended with %v, want that of a broken connection", err)
	}
	if err := <-silent; !errors.Is(err, errClosed) {
		t.Errorf("a request without answer: %v, want %v", err, errClosed)
	}
	if _, err := c.Get("https://x/"); !errors.Is(err, errClosed) {
		t.Errorf("a new request: %v, want %v", err, errClosed)
	}
}

func TestPanicIsA500OrABrokenBody(t *testing.T) {
	_, c := open(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/before":
			panic("boom")
		case "/abort":
			panic(http.ErrAbortHandler)
		case "/goexit":
			runtime.Goexit()
		}
		io.WriteString(w, "part")
		switch r.URL.Path {
		case "/after":
			panic("boom")
		case "/abort-after":
			panic(http.ErrAbortHandler)
		case "/goexit-after":
			runtime.Goexit()
		}
	}))
	for path, code := range map[string]int{"/before": 500, "/abort": 500, "/goexit": 500, "/after": 200, "/abort-after": 200, "/goexit-after": 200, "/fine": 200} {
		r := do(t, c, t.Context(), "GET", "https://x"+path, nil)
		b, err := io.ReadAll(r.Body)
		if r.StatusCode != code {
			t.Errorf("%s: got %d, want %d", path, r.StatusCode, code)
		}
		if broken := code == 200 && path != "/fine"; broken && (err != io.ErrUnexpectedEOF || string(b) != "part") {
			t.Errorf("%s: body %q ended with %v, want io.ErrUnexpectedEOF", path, b, err)
		} else if !broken && err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestUpgradeIsRefused(t *testing.T) {
	_, c := open(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("it was let through") }))
	req, _ := http.NewRequest("POST", "https://x/api/v1/namespaces/a/pods/b/exec", nil)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "SPDY/3.1")
	if _, err := c.Do(req); err == nil || !strings.Contains(err.Error(), "TLS port") {
		t.Errorf("got %v, want an error that says what to use", err)
	}
}

// A thousand watches, each with its own events; then all are cancelled and no goroutine is left.
func TestThousandWatches(t *testing.T) {
	const watches, events = 1000, 5
	before := runtime.NumGoroutine()
	var running atomic.Int32
	tick := make([]chan struct{}, events) // closed when all watches may get event i
	for i := range tick {
		tick[i] = make(chan struct{})
	}
	p, c := open(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		running.Add(1)
		defer running.Add(-1)
		w.(http.Flusher).Flush()
		for i := range events {
			select {
			case <-tick[i]:
			case <-r.Context().Done():
				return
			}
			fmt.Fprintf(w, "%s %d\n", r.URL.Query().Get("id"), i)
		}
		<-r.Context().Done()
	}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	var got [events]atomic.Int32
	for id := range watches {
		wg.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("https://x/?watch=1&id=%d", id), nil)
			r, err := c.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer r.Body.Close()
			lines := bufio.NewScanner(r.Body)
			for i := range events {
				if want := fmt.Sprintf("%d %d", id, i); !lines.Scan() || lines.Text() != want {
					t.Errorf("got %q, want %q: %v", lines.Text(), want, lines.Err())
					return
				}
				got[i].Add(1)
			}
			lines.Scan()
			if !errors.Is(lines.Err(), context.Canceled) {
				t.Errorf("watch %d ended with %v, want context.Canceled", id, lines.Err())
			}
		})
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
			if t.Failed() || time.Now().After(deadline) {
				cancel()
				t.Fatalf("%s: not within %s", what, patience)
			}
		}
	}
	until("all watches run", func() bool { return running.Load() == watches })
	for i := range events {
		close(tick[i])
		until(fmt.Sprintf("all watches have event %d", i), func() bool { return got[i].Load() == watches })
	}
	cancel()
	wg.Wait()
	until("all handlers end", func() bool { return running.Load() == 0 })
	p.Close()
	until("all goroutines end", func() bool { return runtime.NumGoroutine() <= before+2 })
}
