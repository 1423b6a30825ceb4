package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// executable returns the absolute path of kubelith: the option, else KUBELITH_BIN, else the one in PATH.
//
// It is not built here: kubelith's go.mod has replace directives, which count in its own module only, so `go build
// kubelith.io/kubelith` cannot work in another one; and it takes minutes, longer than a test may.
func executable(option string) (string, error) {
	for _, given := range []struct{ name, path string }{{"Options.Executable", option}, {"KUBELITH_BIN", os.Getenv("KUBELITH_BIN")}} {
		if given.path == "" {
			continue
		}
		path, err := filepath.Abs(given.path) // go test runs in the package's directory
		if err == nil {
			_, err = exec.LookPath(path)
		}
		if err != nil {
			for cause := err; cause != nil; cause = errors.Unwrap(cause) {
				err = cause // the message has the path already
			}
			return "", fmt.Errorf("%s is %q, which is not an executable (%w): give the absolute path of kubelith", given.name, given.path, err)
		}
		return path, nil
	}
	path, err := exec.LookPath("kubelith")
	if err != nil {
		return "", errors.New("kubelith is not in PATH: put it there, or set KUBELITH_BIN to its path")
	}
	return filepath.Abs(path)
}
