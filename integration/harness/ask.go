package harness

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// Answer is what `probe serve` of the test image reports about a request.
type Answer struct {
	Hostname string `json:"hostname"`
	Remote   string `json:"remote"`
}

// From returns the address that the server saw, without the port.
func (a Answer) From() string {
	host, _, _ := net.SplitHostPort(a.Remote)
	return host
}

// Ask sends one request to `probe serve`. Any status other than 200 is an error.
func Ask(client *http.Client, url string) (a Answer, err error) {
	resp, err := client.Get(url)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return a, err
	}
	if resp.StatusCode != http.StatusOK {
		return a, fmt.Errorf("%s: %s: %s", url, resp.Status, body)
	}
	return a, json.Unmarshal(body, &a)
}

// QueryDNS sends one question to host:port, through dial, over UDP or TCP, and waits three seconds for the answer (see
// Patience).
func QueryDNS(dial func(ctx context.Context, network, address string) (net.Conn, error), network, server, name string, kind uint16) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Patience(3*time.Second))
	defer cancel()
	conn, err := dial(ctx, network, server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(Patience(3 * time.Second)))
	c := &dns.Conn{Conn: conn}
	m := new(dns.Msg)
	m.SetQuestion(name, kind)
	if err := c.WriteMsg(m); err != nil {
		return nil, err
	}
	return c.ReadMsg()
}

// PortForward starts kubectl port-forward in the sandbox, to a target as kubectl takes it (pod/web), and returns the
// address that it listens on there. It ends with the test.
func (s *Server) PortForward(t testing.TB, ns, target, port string) string {
	t.Helper()
	cmd := s.KubectlCommand("-n", ns, "port-forward", target, ":"+port)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		// Forwarding from 127.0.0.1:40001 -> 8080
		if f := strings.Fields(lines.Text()); len(f) > 2 && strings.HasPrefix(f[2], "127.0.0.1:") {
			go io.Copy(io.Discard, out)
			return f[2]
		}
	}
	t.Fatalf("kubectl port-forward: %s", stderr.String())
	return ""
}
