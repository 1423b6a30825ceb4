package pods

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

func TestPortForward(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	s.Run(t, harness.Pod(ns, "web", "/bin/probe", "serve"))
	s.Kubectl(t, "-n", ns, "expose", "pod", "web", "--port=80", "--target-port=8080")
	for _, tc := range []struct{ target, port string }{{"pod/web", "8080"}, {"service/web", "80"}} {
		t.Run(strings.ReplaceAll(tc.target, "/", "-"), func(t *testing.T) {
			t.Parallel()
			addr := s.PortForward(t, ns, tc.target, tc.port)
			client := s.HTTPClient(10 * time.Second)
			for range 5 { // each on its own connection
				resp, err := client.Get("http://" + addr + "/hostname")
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != http.StatusOK || string(body) != "web" {
					t.Fatalf("%s %q %v", resp.Status, body, err)
				}
			}
		})
	}
}

// TestPortForwardLongLived sends through one connection for a while, both ways.
func TestPortForwardLongLived(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	s.Run(t, harness.Pod(ns, "echo", "/bin/probe", "echo"))
	var conn net.Conn
	harness.Eventually(t, 30*time.Second, "a connection through port-forward", func() (err error) {
		conn, err = s.DialContext(t.Context(), "tcp", s.PortForward(t, ns, "pod/echo", "9000"))
		return err
	})
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(harness.Patience(30 * time.Second)))
	buf := make([]byte, 1024)
	for i := range 20 {
		text := fmt.Sprintf("message %d", i)
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		n, err := conn.Read(buf)
		if err != nil || !strings.HasPrefix(string(buf[:n]), "echo ") || !strings.HasSuffix(string(buf[:n]), ": "+text) {
			t.Fatalf("answer %d is %q, %v", i, buf[:n], err)
		}
	}
}

// TestCopy takes a directory into a container and back, content and names compared.
func TestCopy(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := s.Run(t, harness.Pod(ns, "files", "/bin/probe", "sleep"))
	there, back := "/var/lib/"+ns+"-there", "/var/lib/"+ns+"-back"
	big := bytes.Repeat([]byte("kubelith"), 1<<20/8)
	files := map[string][]byte{"small": []byte("small\n"), "empty": nil, "sub/big": big, "a name with blanks": []byte("x")}
	for name, content := range files {
		path := filepath.Join(s.Path(there), name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s.Kubectl(t, "-n", ns, "cp", there, "files:/tmp/there")
	sum := fmt.Sprintf("%x", sha256.Sum256(big))
	if got := s.PodExec(t, pod, "", "sha256sum", "/tmp/there/sub/big"); !strings.HasPrefix(got, sum) {
		t.Errorf("in the container the big file has the sum %s", got)
	}
	s.PodExec(t, pod, "", harness.Shell("echo changed >/tmp/there/small")...)
	files["small"] = []byte("changed\n")
	s.Kubectl(t, "-n", ns, "cp", "files:/tmp/there", back)
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(s.Path(back), name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s came back with %d bytes, not %d: %v", name, len(got), len(want), err)
		}
	}
}
