package snapshots

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubelith.io/kubelith/components/controlplane/snapshot/bucket/buckettest"
	"kubelith.io/kubelith/integration/harness"
)

// storeHost is the machine of the test, as servers name it.
const storeHost = "store.test"

// credentials are the keys of the store's account, on a server.
const credentials = "/etc/kubelith/s3"

// testStore is a store of S3 on the machine of the test.
type testStore struct {
	*buckettest.Server
	endpoint string
}

func serveStore(t *testing.T) *testStore {
	t.Helper()
	s, err := buckettest.New()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp4", ":0") // sandboxes do not exist yet
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: s}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return &testStore{s, net.JoinHostPort(storeHost, port)}
}

// withStore prepares a server that copies to the store.
func withStore(s *harness.Server) error {
	path := s.Path(credentials)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	keys := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", buckettest.AccessKey, buckettest.SecretKey)
	return errors.Join(resolve(s, storeHost, s.HostIP), os.WriteFile(path, []byte(keys), 0o600))
}

// resolve gives a name an address on a machine.
func resolve(s *harness.Server, name, address string) error {
	path := s.Path("/etc/hosts")
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, name) {
			lines = append(lines, line)
		}
	}
	return os.WriteFile(path, []byte(strings.Join(lines, "")+address+" "+name+"\n"), 0o644)
}

// filesIn returns the files below a directory.
func filesIn(t *testing.T, dir string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			files = append(files, path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return files
}
