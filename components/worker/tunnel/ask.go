package tunnel

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"kubelith.io/kubelith/base/tunnel"
)

// outcome is what came of asking a server.
type outcome int

const (
	failed outcome = iota // no answer, or not now
	later                 // no tunnel for the time being: the server reaches the node, or has no tunnels
	taken                 // the server has a tunnel of this node, from another address
	broke                 // a tunnel that has ended
)

// maxText bounds what is read of a server's message, in bytes.
const maxText = 1 << 10

// ask queries the server at an address, and serves its tunnel until that ends.
func (s *Server) ask(ctx context.Context, address string) outcome {
	conn, err := s.opts.Dial(ctx, address)
	if err != nil {
		s.opts.Log.Debugf("cannot ask %s whether it reaches this node: %v", address, err)
		return failed
	}
	answer, rest, err := s.request(ctx, conn)
	if err != nil {
		conn.Close()
		s.opts.Log.Debugf("cannot ask %s whether it reaches this node: %v", address, err)
		return failed
	}
	server := answer.Header.Get(tunnel.ServerHeader)
	if answer.StatusCode == http.StatusSwitchingProtocols {
		return s.serve(ctx, address, server, answer.Header.Get(tunnel.ReasonHeader), &buffered{conn, rest})
	}
	text, _ := io.ReadAll(io.LimitReader(answer.Body, maxText))
	conn.Close()
	switch answer.StatusCode {
	case http.StatusNoContent:
		s.opts.Log.Debugf("server %s reaches this node", server)
		s.mu.Lock()
		s.said.News(server, "") // the next tunnel is logged again
		s.mu.Unlock()
		return later
	case http.StatusConflict:
		return taken
	case http.StatusNotFound: // a server of an earlier release
		s.opts.Log.Debugf("%s has no tunnels: %s", address, answer.Status)
		return later
	}
	// Also a server that starts refuses a node, for a moment.
	s.opts.Log.Debugf("%s has no tunnel for this node yet: %s: %s", address, answer.Status, strings.TrimSpace(string(text)))
	return failed
}

// request sends the request for a tunnel. rest has what came after the header of the answer.
func (s *Server) request(ctx context.Context, conn net.Conn) (answer *http.Response, rest *bufio.Reader, err error) {
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	_ = conn.SetDeadline(time.Now().Add(s.times.patience))
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://kubernetes"+tunnel.Path, nil)
	if err != nil {
		return nil, nil, err
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", tunnel.Protocol)
	r.Header.Set("User-Agent", "kubelith/tunnel")
	r.Header.Set(tunnel.ModeHeader, s.opts.Mode)
	r.Header.Set(tunnel.HaveHeader, strings.Join(s.names(), ","))
	if err := r.Write(conn); err != nil {
		return nil, nil, err
	}
	rest = bufio.NewReader(conn)
	if answer, err = http.ReadResponse(rest, r); err != nil {
		return nil, nil, err
	}
	return answer, rest, conn.SetDeadline(time.Time{})
}

// serve serves the tunnel of a server until it ends.
func (s *Server) serve(ctx context.Context, address, server, reason string, conn net.Conn) outcome {
	s.mu.Lock()
	s.served[address] = server
	news := s.said.News(server, reason)
	s.mu.Unlock()
	if news {
		s.opts.Log.Infof("connections from server %s to this node go through a tunnel: %s", server, reason)
	}
	err := tunnel.Serve(ctx, conn, s.allow)
	s.mu.Lock()
	delete(s.served, address)
	s.mu.Unlock()
	if err != nil {
		s.opts.Log.Debugf("the tunnel of server %s has ended: %v", server, err)
	}
	return broke
}

// names returns the servers that have a tunnel.
func (s *Server) names() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range s.served {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// buffered is a connection of which some bytes have been read.
type buffered struct {
	net.Conn
	rest *bufio.Reader
}

// Read implements net.Conn.
func (b *buffered) Read(p []byte) (int, error) {
	if b.rest == nil {
		return b.Conn.Read(p)
	}
	if b.rest.Buffered() == 0 {
		b.rest = nil
		return b.Conn.Read(p)
	}
	return b.rest.Read(p)
}
