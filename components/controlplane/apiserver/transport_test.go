package apiserver

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"kubelith.io/kubelith/base/client"
)

// These tests repeat those of base/client with the apiserver's handlers, whose filters (audit, timeout, flow control,
// panic) wrap the response and end it in their own ways.

// large is a ConfigMap of 200 KB: two are beyond the buffer of a response.
func large(name string) *corev1.ConfigMap {
	data := make([]byte, 200<<10)
	rand.Read(data)
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, BinaryData: map[string][]byte{"data": data}}
}

func TestLargeList(t *testing.T) {
	ns := namespace(t, "large-list")
	want := map[string][]byte{}
	for i := range 60 { // 12 MB
		cm := large(fmt.Sprintf("c-%d", i))
		if _, err := admin(t).CoreV1().ConfigMaps(ns).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		want[cm.Name] = cm.BinaryData["data"]
	}
	list, err := admin(t).CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, cm := range list.Items {
		if !bytes.Equal(cm.BinaryData["data"], want[cm.Name]) {
			t.Errorf("%s is not what was written", cm.Name)
		}
		delete(want, cm.Name)
	}
	if len(want) > 0 {
		t.Errorf("%d of the objects are missing", len(want))
	}
}

// TestBlockedWatch: a client that does not read its watch blocks no other client's reads and writes, and has no gap in
// what it reads later. The apiserver may end its watch, as it does over the network.
func TestBlockedWatch(t *testing.T) {
	ns := namespace(t, "blocked-watch")
	before := watches(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	blocked, err := (&http.Client{Transport: serve(t).Config(client.APIServer).Transport}).Do(request(ctx, "/api/v1/namespaces/"+ns+"/configmaps?watch=1"))
	if err != nil {
		t.Fatal(err)
	}
	defer blocked.Body.Close()
	reading, err := admin(t).CoreV1().ConfigMaps(ns).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer reading.Stop()
	const n = 40 // 8 MB
	read := make(chan error, 1)
	go func() {
		for i := range n {
			if got, want := next(reading), fmt.Sprintf("ADDED c-%d", i); got != want {
				read <- fmt.Errorf("got %s, want %s", got, want)
				return
			}
		}
		read <- nil
	}()
	for i := range n {
		if _, err := admin(t).CoreV1().ConfigMaps(ns).Create(ctx, large(fmt.Sprintf("c-%d", i)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-read; err != nil {
		t.Fatalf("the other watch: %v", err)
	}
	events := json.NewDecoder(blocked.Body)
	for i := range n {
		var e struct {
			Type   string
			Object metav1.PartialObjectMetadata
		}
		if err := events.Decode(&e); err != nil {
			if i == 0 {
				t.Errorf("the blocked watch has nothing to read: %v", err)
			}
			break
		}
		if got, want := e.Type+" "+e.Object.Name, fmt.Sprintf("ADDED c-%d", i); got != want {
			t.Fatalf("the blocked watch: got %s, want %s", got, want)
		}
	}
	cancel()
	running(t, before)
}

// TestThousandWatches: each has every event, and when they are cancelled the apiserver serves none of them any more.
func TestThousandWatches(t *testing.T) {
	const n, events = 1000, 3
	ns := namespace(t, "thousand-watches")
	before := watches(t)
	opened, done := make(chan struct{}, n), make(chan struct{}, n)
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cs := admin(t) // its requests do not queue
	for range n {
		all.Go(func() {
			w, err := cs.CoreV1().ConfigMaps(ns).Watch(ctx, metav1.ListOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			opened <- struct{}{}
			for i := range events {
				if got, want := next(w), fmt.Sprintf("ADDED c-%d", i); got != want {
					t.Errorf("got %s, want %s", got, want)
					break
				}
			}
			done <- struct{}{}
			for range w.ResultChan() { // until it is cancelled
			}
		})
	}
	count(t, opened, n, "open watches")
	running(t, before+n)
	for i := range events {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c-%d", i)}}
		if _, err := cs.CoreV1().ConfigMaps(ns).Create(ctx, cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	count(t, done, n, "watches with all events")
	cancel()
	all.Wait()
	running(t, before)
}

// TestPanicInTheApiserver: a panic below the apiserver's filters ends its own request, as over TLS, and nothing else.
func TestPanicInTheApiserver(t *testing.T) {
	inProcess := &http.Client{Transport: serve(t).Config(client.APIServer).Transport}
	certificate, err := tls.LoadX509KeyPair(shared.pki.Admin.Cert, shared.pki.Admin.Key)
	if err != nil {
		t.Fatal(err)
	}
	overTLS := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{
		Certificates: []tls.Certificate{certificate}, InsecureSkipVerify: true, // any server will do
	}}}
	defer overTLS.CloseIdleConnections()
	for path, want := range map[string]struct {
		code int
		body string
	}{
		"/early": {500, "This request caused apiserver to panic"},
		"/late":  {200, "part"},
	} {
		for name, c := range map[string]*http.Client{"in process": inProcess, "over TLS": overTLS} {
			resp, err := c.Get(shared.url + panics + path)
			if err != nil && path == "/early" {
				continue // HTTP/2 may reset the stream before it has sent the header
			}
			if err != nil {
				t.Errorf("%s, %s: %v", path, name, err)
				continue
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != want.code || !strings.HasPrefix(string(body), want.body) || (path == "/late" && err == nil) {
				t.Errorf("%s, %s: %d %q, %v", path, name, resp.StatusCode, body, err)
			}
		}
	}
	if _, err := admin(t).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("after the panics: %v", err)
	}
}

// count waits for n signals.
func count(t *testing.T, c <-chan struct{}, n int, what string) {
	t.Helper()
	deadline := time.After(60 * time.Second)
	for i := range n {
		select {
		case <-c:
		case <-deadline:
			t.Fatalf("%s: %d of %d", what, i, n)
		}
	}
}

// next is type and name of a watch's next event.
func next(w watch.Interface) string {
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			return "the end"
		}
		if cm, ok := e.Object.(*corev1.ConfigMap); ok {
			return fmt.Sprintf("%s %s", e.Type, cm.Name)
		}
		return fmt.Sprintf("%s %v", e.Type, e.Object)
	case <-time.After(60 * time.Second):
		return "nothing within a minute"
	}
}

// watches is how many watches of the ConfigMaps of one namespace the apiserver itself counts.
func watches(t *testing.T) (n int) {
	t.Helper()
	metrics, err := admin(t).Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(metrics)) {
		if strings.HasPrefix(line, "apiserver_longrunning_requests{") && strings.Contains(line, `resource="configmaps",scope="namespace"`) {
			if n, err = strconv.Atoi(strings.Fields(line)[1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	return n
}

func running(t *testing.T, n int) {
	t.Helper()
	eventually(t, "the apiserver's own count of watches", func() error {
		if got := watches(t); got != n {
			return fmt.Errorf("%d watches, want %d", got, n)
		}
		return nil
	})
}

func request(ctx context.Context, path string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, shared.url+path, nil)
	if err != nil {
		panic(err)
	}
	return req
}
