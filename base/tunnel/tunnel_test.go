package tunnel

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait; longer means a hang.
const patience = 20 * time.Second

func everything(context.Context, netip.AddrPort) error { return nil }

// connected returns a session with a node that allows what allow does; end ends the node, and returns its error.
func connected(t *testing.T, allow func(context.Context, netip.AddrPort) error) (s *Session, end func() error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			served <- err
			return
		}
		served <- Serve(ctx, c, allow)
	}()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if s, err = Open(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	end = func() error {
		cancel()
		err := <-served
		served <- err
		return err
	}
	t.Cleanup(func() { s.Close(); end() })
	return s, end
}

// listen serves connections with serve, and returns the address.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); serve(c) }()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

func dial(t *testing.T, s *Session, address string) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := s.Dial(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

func echo(c net.Conn) { io.Copy(c, c) }

// TestBytes: what is sent arrives, in both directions and on several connections at a time.
func TestBytes(t *testing.T) {
	s, _ := connected(t, everything)
	address := listen(t, echo)
	const size = 3 << 20
	results := make(chan error)
	for i := range 8 {
		c := dial(t, s, address)
		if got := c.RemoteAddr().String(); got != address {
			t.Errorf("the other end is %s", got)
		}
		sent := bytes.Repeat([]byte{byte(i), 1, 2, 3, 5, 7, 11}, size/7)
		go func() { c.Write(sent) }()
		go func() {
			sum := sha256.New()
			if _, err := io.CopyN(sum, c, int64(len(sent))); err != nil {
				results <- err
				return
			}
			if want := sha256.Sum256(sent); !bytes.Equal(sum.Sum(nil), want[:]) {
				results <- errors.New("other bytes than were sent")
				return
			}
			results <- nil
		}()
	}
	for range 8 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}

// TestStalled: connections without a reader, in either direction, do not stop another one.
func TestStalled(t *testing.T) {
	s, _ := connected(t, everything)
	hold := make(chan struct{})
	deaf := listen(t, func(net.Conn) { <-hold })
	defer close(hold)
	loud := listen(t, func(c net.Conn) {
		for {
			if _, err := c.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	for range 20 {
		dial(t, s, loud) // without a reader
		c := dial(t, s, deaf)
		go func() {
			for {
				if _, err := c.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		}()
	}
	time.Sleep(200 * time.Millisecond) // so that their windows are full
	c := dial(t, s, listen(t, echo))
	if _, err := c.Write([]byte("through")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 7)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "through" {
		t.Errorf("behind stalled connections: %q, %v", got, err)
	}
	stalled := dial(t, s, loud)
	time.Sleep(50 * time.Millisecond)
	closed := make(chan struct{})
	go func() { s.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Fatal("the session waits for readers that have stopped reading")
	}
	if _, err := io.Copy(io.Discard, stalled); err == nil {
		t.Error("a connection that was cut off ends regularly")
	}
}

// TestEnds: a connection that ends at one end ends at the other, with everything that was sent before.
func TestEnds(t *testing.T) {
	s, _ := connected(t, everything)
	c := dial(t, s, listen(t, func(c net.Conn) { io.WriteString(c, "bye") }))
	if got, err := io.ReadAll(c); err != nil || string(got) != "bye" {
		t.Errorf("read %q, %v", got, err)
	}
	received := make(chan string, 1)
	address := listen(t, func(c net.Conn) {
		got, err := io.ReadAll(c)
		received <- fmt.Sprint(string(got), err)
	})
	c = dial(t, s, address)
	io.WriteString(c, "last words")
	c.Close()
	select {
	case got := <-received:
		if got != "last words<nil>" {
			t.Errorf("received %q", got)
		}
	case <-time.After(patience):
		t.Error("the node does not close the connection")
	}
	for began := time.Now(); s.InUse() > 0; time.Sleep(time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatalf("%d connections are left", s.InUse())
		}
	}
}

// TestDeadline: a read ends at its deadline, and the connection goes on.
func TestDeadline(t *testing.T) {
	s, _ := connected(t, everything)
	c := dial(t, s, listen(t, echo))
	c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	var timeout net.Error
	if _, err := c.Read(make([]byte, 1)); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Fatalf("after the deadline: %v", err)
	}
	c.SetReadDeadline(time.Now().Add(patience))
	io.WriteString(c, "x")
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

// TestRefused: the node reports why it does not connect.
func TestRefused(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	s, _ := connected(t, func(_ context.Context, at netip.AddrPort) error {
		if at.Addr() == netip.MustParseAddr("192.0.2.1") {
			return errors.New("192.0.2.1 is not this node's")
		}
		return nil
	})
	for address, want := range map[string]string{
		"192.0.2.1:80":               "192.0.2.1 is not this node's",
		"[::ffff:192.0.2.1]:80":      "192.0.2.1 is not this node's",
		"node.example:80":            "not an address: node.example:80",
		closed.Addr().String():       "connection refused",
		"192.0.2.1":                  "not an address: 192.0.2.1",
		"192.0.2.1:80\r\nX-Other: y": "",
	} {
		c, err := s.Dial(t.Context(), address)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", address, c, err)
		}
	}
	if s.InUse() != 0 {
		t.Errorf("%d connections are left", s.InUse())
	}
}

// TestGivenUp: dialling ends with its context, which does not end the connection afterwards.
func TestGivenUp(t *testing.T) {
	began := make(chan struct{})
	s, _ := connected(t, func(ctx context.Context, at netip.AddrPort) error {
		if at.Port() != 1 {
			return nil
		}
		close(began)
		<-ctx.Done()
		return ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-began; cancel() }()
	if _, err := s.Dial(ctx, "127.0.0.1:1"); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), patience)
	c, err := s.Dial(ctx, listen(t, echo))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	cancel()
	c.SetDeadline(time.Now().Add(patience))
	io.WriteString(c, "x")
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Errorf("after its dialling: %v", err)
	}
}

// TestBreaks: when one end goes, both ends and all connections end. A connection that broke has no regular end.
func TestBreaks(t *testing.T) {
	for name, which := range map[string]bool{"the node": true, "the server": false} {
		t.Run(name, func(t *testing.T) {
			s, end := connected(t, everything)
			hung := make(chan struct{})
			c := dial(t, s, listen(t, func(c net.Conn) { io.Copy(io.Discard, c); close(hung) }))
			if which {
				if err := end(); err != nil {
					t.Errorf("the node was asked to end: %v", err)
				}
			} else {
				s.Close()
				if err := end(); err != nil && err.Error() != "the tunnel was closed" {
					t.Errorf("the node: %v", err)
				}
			}
			for what, ended := range map[string]<-chan struct{}{"the session": s.Done(), "the connection on the node": hung} {
				select {
				case <-ended:
				case <-time.After(patience):
					t.Fatalf("%s has not ended", what)
				}
			}
			if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
				t.Errorf("read from a broken connection: %v", err)
			}
			if _, err := s.Dial(t.Context(), "127.0.0.1:1"); err == nil {
				t.Error("dialled through a tunnel that has ended")
			}
		})
	}
}
