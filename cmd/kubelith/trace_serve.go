package kubelith

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"kubelith.io/kubelith/trace/record"
	"kubelith.io/kubelith/trace/render"
)

// loopback refuses addresses that other machines reach: the page has the rights of the user who serves it.
func loopback(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("--serve %s: use ADDRESS:PORT, such as 127.0.0.1:8090: %w", address, err)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("--serve %s: %q is not a port from 0 to 65535", address, port)
	} else if ip := net.ParseIP(host); host != "localhost" && !ip.IsLoopback() {
		return fmt.Errorf("--serve %s: the page has your rights, so it is served on this machine only: use 127.0.0.1:%d, or ssh -L from another one", address, n)
	}
	return nil
}

// serveTraces serves the page until ctx ends.
func serveTraces(ctx context.Context, out io.Writer, client recorder, address string) error {
	// Before the address is printed: is there a recorder, and may the user query it?
	if _, err := client.Recent(ctx, 1, 0); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("--serve: %w", err)
	}
	site := newTraceSite(client, listener.Addr())
	server := &http.Server{Handler: site, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	fmt.Fprintf(out, "%s\nThe page shows what you may read. Ctrl-C ends it.\n", site.url())
	select {
	case err = <-served:
	case <-ctx.Done():
		err = server.Close()
		<-served
	}
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return err
}

// traceSite is the page and what it asks for. It answers only requests with its secret path, which name this address as
// their host, and come from no other site: a page of another site can neither guess the path nor, with a name that
// resolves to this machine, pass for this one.
type traceSite struct {
	client recorder
	hosts  []string
	token  string
	mux    *http.ServeMux
}

func newTraceSite(client recorder, at net.Addr) *traceSite {
	host, port, _ := net.SplitHostPort(at.String())
	hosts := []string{at.String(), net.JoinHostPort("localhost", port)}
	if port == "80" { // which browsers leave out
		hosts = append(hosts, host, "localhost")
	}
	s := &traceSite{client: client, hosts: hosts, token: rand.Text(), mux: http.NewServeMux()}
	s.mux.HandleFunc("GET /"+s.token+"/{$}", s.page)
	s.mux.HandleFunc("GET /"+s.token+"/recent", s.recent)
	s.mux.HandleFunc("GET /"+s.token+"/timeline", s.timeline)
	return s
}

func (s *traceSite) url() string { return "http://" + s.hosts[0] + "/" + s.token + "/" }

// ServeHTTP implements http.Handler.
func (s *traceSite) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	origin, site := req.Header.Get("Origin"), req.Header.Get("Sec-Fetch-Site")
	switch {
	case !slices.Contains(s.hosts, req.Host):
		http.Error(w, "wrong host: open the address that kubelith trace --serve printed", http.StatusMisdirectedRequest)
	case origin != "" && origin != "http://"+req.Host, site != "" && site != "same-origin" && site != "none":
		http.Error(w, "requests of other sites are refused", http.StatusForbidden)
	default:
		s.mux.ServeHTTP(w, req)
	}
}

func (s *traceSite) page(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = render.HTML(w, nil, true) // a browser that is gone
}

// recent returns the list of timelines; after waits for news.
func (s *traceSite) recent(w http.ResponseWriter, req *http.Request) {
	after, _ := strconv.ParseUint(req.URL.Query().Get("after"), 10, 64)
	answer, err := s.client.Recent(req.Context(), 100, after)
	reply(w, answer, err)
}

// timeline returns that of an object.
func (s *traceSite) timeline(w http.ResponseWriter, req *http.Request) {
	q := req.URL.Query()
	after, _ := strconv.ParseUint(q.Get("after"), 10, 64)
	ref := record.Ref{Resource: q.Get("resource"), Namespace: q.Get("namespace"), Name: q.Get("name")}
	answer, err := s.client.Timeline(req.Context(), ref.Resource, ref.Namespace, ref.Name, after)
	if err != nil {
		err = recorderError(err, ref)
	}
	reply(w, answer, err)
}

func reply(w http.ResponseWriter, answer any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		status := http.StatusBadGateway
		if s := apierrors.APIStatus(nil); errors.As(err, &s) && s.Status().Code >= 400 {
			status = int(s.Status().Code)
		}
		w.WriteHeader(status)
		answer = map[string]string{"error": err.Error()}
	}
	_ = json.NewEncoder(w).Encode(answer)
}
