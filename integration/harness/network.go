package harness

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// DialContext dials from inside the sandbox's network namespace. The address must be a literal IP.
func (s *Server) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return DialFrom(ctx, s.HolderPID(), network, address)
}

// DialFrom dials from inside the network namespace of a process, such as a container's. The address must be a literal
// IP.
func DialFrom(ctx context.Context, pid int, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := inNetwork(pid, func() (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// ListenPacket opens a UDP socket inside the sandbox's network namespace.
func (s *Server) ListenPacket(network, address string) (net.PacketConn, error) {
	var conn net.PacketConn
	err := inNetwork(s.HolderPID(), func() (err error) {
		conn, err = net.ListenPacket(network, address)
		return err
	})
	return conn, err
}

// Listen listens for TCP connections inside the sandbox's network namespace.
func (s *Server) Listen(address string) (net.Listener, error) {
	var l net.Listener
	err := inNetwork(s.HolderPID(), func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	return l, err
}

// inNetwork runs f on a disposable thread in a process's network namespace. A socket stays in the namespace in which it
// was created.
func inNetwork(pid int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() { // the main thread cannot end, and /proc/PID shows its namespaces
			defer runtime.UnlockOSThread()
			done <- inNetwork(pid, f) // on another thread: this one is blocked meanwhile
			return
		}
		// Never unlocked: the thread ends with the goroutine.
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err != nil {
			done <- err
			return
		}
		defer ns.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// HTTPClient sends each request on a new connection from inside the sandbox, so that load balancing is visible.
func (s *Server) HTTPClient(timeout time.Duration) *http.Client {
	return &http.Client{
		Timeout:   timeout,
		Transport: &http.Transport{DialContext: s.DialContext, DisableKeepAlives: true},
	}
}

// HTTPGet requests a URL with a literal IP from inside the sandbox and returns the body of a 200.
func (s *Server) HTTPGet(url string) (string, error) {
	resp, err := s.HTTPClient(5 * time.Second).Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s: %s", url, resp.Status, body)
	}
	return string(body), nil
}
