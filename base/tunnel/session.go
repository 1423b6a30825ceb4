package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxReason bounds a node's reason for a failed connection, in bytes.
	maxReason = 1 << 10
	// closeTimeout is how long a node may take to end a connection that was closed here.
	closeTimeout = 10 * time.Second
)

// Session is the server's end of a tunnel.
type Session struct {
	raw  *watched
	http *http.ClientConn

	life   context.Context // of all connections
	end    context.CancelFunc
	open   atomic.Int64 // connections
	copies sync.WaitGroup
}

// Open starts a session on a connection that an agent serves. The session owns the connection.
func Open(ctx context.Context, c net.Conn) (*Session, error) {
	s := &Session{raw: watch(c)}
	s.life, s.end = context.WithCancel(context.WithoutCancel(ctx))
	transport := &http.Transport{
		Protocols:              only(),
		DialContext:            func(context.Context, string, string) (net.Conn, error) { return s.raw, nil },
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
		HTTP2:                  &http.HTTP2Config{MaxReceiveBufferPerStream: toServerWindow, SendPingTimeout: serverPingAfter, PingTimeout: pingTimeout},
	}
	var err error
	if s.http, err = transport.NewClientConn(ctx, "http", "node:80"); err != nil { // the address is not used
		s.end()
		s.raw.Close()
		return nil, fmt.Errorf("begin HTTP/2 in the tunnel: %w", err)
	}
	return s, nil
}

// Done is closed when the session has ended.
func (s *Session) Done() <-chan struct{} { return s.raw.closed }

// InUse returns the number of open connections.
func (s *Session) InUse() int { return int(s.open.Load()) }

// Close ends the session and all connections in it.
func (s *Session) Close() {
	_ = s.http.Close() // the connection below is closed in any case
	s.raw.Close()
	s.end()
	s.copies.Wait()
}

// Dial lets the node connect to an address, IP:PORT. ctx bounds the dialling, not the connection.
func (s *Session) Dial(ctx context.Context, address string) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: place(address), Err: err}
	}
	near, far := net.Pipe()
	life, end := context.WithCancel(context.Background())
	dialled := context.AfterFunc(ctx, end)
	request := (&http.Request{Method: http.MethodConnect, URL: &url.URL{Host: address}, Host: address, Header: http.Header{}, Body: body{far}}).WithContext(life)
	s.open.Add(1)
	response, err := s.http.RoundTrip(request)
	if !dialled() && err == nil {
		response.Body.Close()
		err = context.Cause(ctx)
	}
	if err == nil && response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, maxReason))
		response.Body.Close()
		err = fmt.Errorf("through the tunnel: %s", strings.TrimSpace(string(text)))
	}
	if err != nil {
		s.open.Add(-1)
		end()
		near.Close()
		far.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fail(err)
	}
	c := &stream{Conn: near, to: place(address), late: time.AfterFunc(time.Hour, end)}
	c.late.Stop()
	// A reader that has stopped reading does not hold up the end of the session. It gets an error, not a regular end.
	stop := context.AfterFunc(s.life, func() {
		closed := net.ErrClosed
		c.err.CompareAndSwap(nil, &closed)
		far.Close()
	})
	s.copies.Go(func() {
		defer s.open.Add(-1)
		defer stop()
		_, err := io.Copy(far, response.Body)
		if err != nil && !errors.Is(err, io.ErrClosedPipe) { // the latter: closed here
			c.err.Store(&err)
		}
		response.Body.Close()
		far.Close()
		c.late.Stop()
		end()
	})
	return c, nil
}

// body is what is written to a connection, as the body of a request. The transport closes it when the node ends the
// connection, while what has come from there may still have to be read.
type body struct{ net.Conn }

// Close ends Read, and not Write.
func (b body) Close() error { return b.SetReadDeadline(time.Unix(1, 0)) }

// stream is a connection through the tunnel: one end of a pipe, which has the deadlines. The transport reads what is
// written from the other end, and a goroutine writes there what comes from the node.
type stream struct {
	net.Conn
	to   net.Addr
	err  atomic.Pointer[error] // why the stream broke
	once sync.Once
	late *time.Timer // ends the stream
}

// Read implements net.Conn. A tunnel that breaks is no regular end of the connection.
func (c *stream) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if broken := c.err.Load(); errors.Is(err, io.EOF) && broken != nil {
		err = &net.OpError{Op: "read", Net: "tcp", Addr: c.to, Err: *broken}
	}
	return n, err
}

// Close implements net.Conn. The node gets what was written before, then the end.
func (c *stream) Close() error {
	c.once.Do(func() { c.late.Reset(closeTimeout) })
	return c.Conn.Close()
}

// RemoteAddr implements net.Conn.
func (c *stream) RemoteAddr() net.Addr { return c.to }

// place is the address of a connection's other end.
type place string

// Network implements net.Addr.
func (place) Network() string { return "tcp" }

// String implements net.Addr.
func (p place) String() string { return string(p) }
