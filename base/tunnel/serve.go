package tunnel

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"kubelith.io/kubelith/base/lifecycle"
)

const (
	// dialTimeout bounds one connection of the node to itself or to a pod on it.
	dialTimeout = 10 * time.Second
	// copyBuffer is how many bytes are read from a connection at a time.
	copyBuffer = 16 << 10
)

// Serve is the node's end of a tunnel: it makes the connections that the server asks for, if allow returns nil, until
// the tunnel breaks or ctx ends. It owns the connection, and returns when all connections that it has made are closed.
func Serve(ctx context.Context, c net.Conn, allow func(context.Context, netip.AddrPort) error) error {
	raw := watch(c)
	var running lifecycle.Goroutines // the connections that are served
	server := &http.Server{
		Protocols: only(),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerStream: toNodeWindow, MaxReceiveBufferPerConnection: toNodeWindows,
			SendPingTimeout: pingAfter, PingTimeout: pingTimeout,
		},
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    log.New(io.Discard, "", 0), // of a connection that breaks
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if running.Begin() {
				defer running.Done()
				connect(w, r, allow)
			}
		}),
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	err := server.Serve(&single{conn: raw})
	server.Close()
	raw.Close()
	running.End()
	if ctx.Err() != nil {
		return nil
	}
	if errors.Is(err, net.ErrClosed) {
		return errors.New("the tunnel was closed")
	}
	return err
}

// connect serves one connection.
func connect(w http.ResponseWriter, r *http.Request, allow func(context.Context, netip.AddrPort) error) {
	if r.Method != http.MethodConnect {
		http.Error(w, "only CONNECT is served here", http.StatusMethodNotAllowed)
		return
	}
	to, err := netip.ParseAddrPort(r.Host)
	if err != nil {
		http.Error(w, "not an address: "+r.Host, http.StatusBadRequest)
		return
	}
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	if err := allow(r.Context(), to); err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	c, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(r.Context(), "tcp", to.String())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer c.Close()
	answer := http.NewResponseController(w)
	w.WriteHeader(http.StatusOK)
	if answer.Flush() != nil {
		return
	}
	defer context.AfterFunc(r.Context(), func() { c.Close() })() // the tunnel is gone
	back := make(chan error, 1)
	go func() {
		err := forward(w, answer, c)
		_ = answer.SetReadDeadline(time.Now()) // ends the copy below
		back <- err
	}()
	_, _ = io.Copy(c, r.Body) // either end is closed: so is the other one
	c.Close()
	if err := <-back; r.Context().Err() != nil || err != nil && !errors.Is(err, net.ErrClosed) {
		panic(http.ErrAbortHandler) // the connection broke: for the server that is no regular end
	}
}

// forward sends what a connection receives to the server, at once, until its end.
func forward(w io.Writer, answer *http.ResponseController, c net.Conn) error {
	buffer := make([]byte, copyBuffer)
	for {
		n, err := c.Read(buffer)
		if n > 0 {
			if _, err := w.Write(buffer[:n]); err != nil {
				return err
			}
			if err := answer.Flush(); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// single is a listener with one connection. It ends with that.
type single struct {
	conn *watched
	once sync.Once
}

// Accept implements net.Listener.
func (l *single) Accept() (c net.Conn, err error) {
	l.once.Do(func() { c = l.conn })
	if c != nil {
		return c, nil
	}
	<-l.conn.closed
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (l *single) Close() error { return l.conn.Close() }

// Addr implements net.Listener.
func (l *single) Addr() net.Addr { return l.conn.LocalAddr() }
