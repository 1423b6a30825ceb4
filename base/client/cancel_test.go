package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func nullLog() *log.Logger { return log.New(io.Discard, "", 0) }

func sprint(v any) string { return fmt.Sprint(v) }

func hasDeadline(ctx context.Context) bool {
	_, ok := ctx.Deadline()
	return ok
}

// stream is a handler that sends one line and then waits for its context.
func stream(ended chan<- struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		io.WriteString(w, "first\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
}

func readFirst(t *testing.T, r *http.Response) {
	t.Helper()
	line := make([]byte, len("first\n"))
	if _, err := io.ReadFull(r.Body, line); err != nil {
		t.Fatal(err)
	}
}

func TestCancelInMidStream(t *testing.T) {
	var ended chan struct{}
	overBoth(t, func(w http.ResponseWriter, r *http.Request) { stream(ended)(w, r) },
		func(t *testing.T, c *http.Client, url string) {
			ended = make(chan struct{})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r := do(t, c, ctx, "GET", url, nil)
			readFirst(t, r)
			read := make(chan error, 1)
			go func() {
				_, err := r.Body.Read(make([]byte, 1))
				read <- err
			}()
			cancel()
			await(t, ended, "end of the handler's context")
			select {
			case err := <-read:
				if !errors.Is(err, context.Canceled) {
					t.Errorf("read: %v, want context.Canceled", err)
				}
			case <-time.After(patience):
				t.Fatal("the reader still waits")
			}
		})
}

func TestCancelBeforeTheHeader(t *testing.T) {
	var started, ended chan struct{}
	overBoth(t, func(_ http.ResponseWriter, r *http.Request) {
		close(started)
		<-r.Context().Done()
		close(ended)
	}, func(t *testing.T, c *http.Client, url string) {
		started, ended = make(chan struct{}), make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { <-started; cancel() }()
		req, _ := http.NewRequestWithContext(ctx, "GET", url, nil)
		if _, err := c.Do(req); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
		await(t, ended, "end of the handler's context")
	})
}

func TestCancelledRequestReachesNobody(t *testing.T) {
	var calls atomic.Int32
	overBoth(t, func(http.ResponseWriter, *http.Request) { calls.Add(1) },
		func(t *testing.T, c *http.Client, url string) {
			calls.Store(0)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			for range 50 {
				req, _ := http.NewRequestWithContext(ctx, "POST", url, nil)
				if _, err := c.Do(req); !errors.Is(err, context.Canceled) {
					t.Fatalf("got %v, want context.Canceled", err)
				}
			}
			if n := calls.Load(); n > 0 {
				t.Errorf("the handler ran %d times", n)
			}
		})
}

func TestClientTimeout(t *testing.T) {
	for name, header := range map[string]bool{"before the header": false, "in mid-stream": true} {
		t.Run(name, func(t *testing.T) {
			var ended chan struct{}
			overBoth(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/connect" {
					return
				}
				defer close(ended)
				if header {
					w.(http.Flusher).Flush()
				}
				<-r.Context().Done()
			}, func(t *testing.T, c *http.Client, url string) {
				ended = make(chan struct{})
				do(t, c, t.Context(), "GET", url+"/connect", nil).Body.Close()
				c.Timeout = 2 * time.Second
				r, err := c.Get(url)
				if err == nil {
					defer r.Body.Close()
					_, err = io.ReadAll(r.Body)
				}
				var timeout interface{ Timeout() bool }
				if !errors.As(err, &timeout) || !timeout.Timeout() {
					t.Errorf("got %v, want a timeout", err)
				}
				await(t, ended, "end of the handler's context")
			})
		})
	}
}

func TestReaderClosesEarly(t *testing.T) {
	var ended chan struct{}
	overBoth(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		//lint:ignore SA1019 upstream asks for it
		gone := w.(http.CloseNotifier).CloseNotify()
		for {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				break
			}
		}
		<-r.Context().Done()
		<-gone
	}, func(t *testing.T, c *http.Client, url string) {
		ended = make(chan struct{})
		r := do(t, c, t.Context(), "GET", url, nil)
		if _, err := r.Body.Read(make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		r.Body.Close() // any number of times
		await(t, ended, "end of the handler")
		if _, err := r.Body.Read(make([]byte, 1)); err == nil || err == io.EOF {
			t.Errorf("read after Close: %v", err)
		}
	})
}

func TestCancelEndsAHandlerThatReadsTheRequest(t *testing.T) {
	var started, ended chan struct{}
	overBoth(t, func(_ http.ResponseWriter, r *http.Request) {
		defer close(ended)
		close(started)
		if _, err := io.ReadAll(r.Body); err == nil {
			panic("the body ended as if it were whole")
		}
	}, func(t *testing.T, c *http.Client, url string) {
		started, ended = make(chan struct{}), make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		body, w := io.Pipe()
		defer w.Close()
		go func() { <-started; cancel() }()
		req, _ := http.NewRequestWithContext(ctx, "POST", url, body)
		if r, err := c.Do(req); err == nil {
			r.Body.Close()
			t.Error("the request went through")
		}
		await(t, ended, "end of the handler")
		if _, err := w.Write([]byte("x")); err == nil {
			t.Error("the request's body was not closed")
		}
	})
}

func TestRequestBodyIsClosed(t *testing.T) {
	overBoth(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/read" {
			io.Copy(io.Discard, r.Body)
		}
	}, func(t *testing.T, c *http.Client, url string) {
		for _, path := range []string{"/read", "/leave"} {
			body := &closeCounter{Reader: strings.NewReader("hello"), closed: make(chan struct{})}
			r := do(t, c, t.Context(), "POST", url+path, body)
			r.Body.Close()
			await(t, body.closed, path+": close of the request's body")
		}
	})
}

type closeCounter struct {
	io.Reader
	n      atomic.Int32
	closed chan struct{}
}

func (c *closeCounter) Close() error {
	if c.n.Add(1) == 1 {
		close(c.closed)
	}
	return nil
}

// A watch whose client does not read holds back its handler after the window, and no memory beyond it.
func TestBlockedReader(t *testing.T) {
	const size = 16 << 10
	var written atomic.Int64
	ended := make(chan struct{})
	_, c := open(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		event := make([]byte, size)
		for {
			if _, err := w.Write(event); err != nil {
				return
			}
			written.Add(size)
		}
	}))
	r := do(t, c, t.Context(), "GET", "https://x", nil)
	blocksAt := func(want int64) {
		t.Helper()
		for deadline := time.Now().Add(patience); written.Load() < want; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d bytes were written, want %d", written.Load(), want)
			}
		}
		time.Sleep(50 * time.Millisecond) // time for a handler that does not block to write more
		if n := written.Load(); n > want {
			t.Fatalf("%d bytes were written, want the handler to block at %d", n, want)
		}
	}
	blocksAt(window)
	const more = 10 * window
	if _, err := io.CopyN(io.Discard, r.Body, more); err != nil {
		t.Fatal(err)
	}
	blocksAt(window + more)
	r.Body.Close()
	await(t, ended, "end of the blocked handler")
}

func TestLargeListNeedsLittleMemory(t *testing.T) {
	const total = 100 << 20
	part := make([]byte, 1<<20)
	_, c := open(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range total / len(part) {
			w.Write(part)
		}
	}))
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	r := do(t, c, t.Context(), "GET", "https://x", nil)
	var most uint64
	buf := make([]byte, 1<<20)
	for n := 0; n < total; {
		got, err := io.ReadFull(r.Body, buf)
		if n += got; err != nil {
			t.Fatal(err)
		}
		if n%(10<<20) == 0 {
			runtime.GC()
			runtime.ReadMemStats(&now)
			most = max(most, now.HeapAlloc)
		}
	}
	if held := int64(most) - int64(before.HeapAlloc); held > 8<<20 {
		t.Errorf("%d MiB were held while %d MiB went through", held>>20, total>>20)
	}
	if n, err := r.Body.Read(buf); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %d, %v", n, err)
	}
}

// Data that was buffered before the handler ended is still there afterwards.
func TestBodyOutlivesTheHandler(t *testing.T) {
	ended := make(chan struct{})
	_, c := open(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		defer close(ended)
		w.Write(bytes.Repeat([]byte("x"), 100<<10))
	}))
	r := do(t, c, t.Context(), "GET", "https://x", nil)
	await(t, ended, "end of the handler")
	if b, err := io.ReadAll(r.Body); err != nil || len(b) != 100<<10 {
		t.Errorf("read %d bytes, %v", len(b), err)
	}
}
