package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"kubelith.io/kubelith/host/sandbox"
	"kubelith.io/kubelith/integration/testimage"
)

func (s *Server) prepare() error {
	if s.opts.ConfigYAML != "" {
		path := s.Path("/etc/kubelith/config.yaml")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(s.opts.ConfigYAML), 0o600); err != nil {
			return err
		}
	}
	if !s.opts.NoTestImage {
		if err := s.putTestImage(); err != nil {
			return fmt.Errorf("test image: %w", err)
		}
	}
	if s.opts.Prepare != nil {
		return s.opts.Prepare(s)
	}
	return nil
}

func (s *Server) putTestImage() error {
	archive, err := testImage()
	if err != nil {
		return err
	}
	path := s.Path(TestImageArchive)
	// The data directory is the product's and private; only its mode matters here.
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	content, err := os.ReadFile(archive)
	if err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o600)
}

// testImage returns the archive of the test image. It is built once for all servers of a package.
var testImage = sync.OnceValues(func() (string, error) {
	if archive := os.Getenv("KUBELITH_TEST_IMAGE"); archive != "" {
		return archive, nil
	}
	root, err := repoRoot()
	if err != nil {
		return "", err
	}
	return testimage.Archive(root, sandbox.StateDir)
})
