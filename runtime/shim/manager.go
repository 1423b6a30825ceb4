package shim

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/pkg/shim"

	"kubelith.io/kubelith/runtime/sandbox"
)

// sandboxManager is upstream's manager, which starts a shim per pod and cleans up after one that has died. It also
// knows our sandboxes.
type sandboxManager struct{ shim.Shim }

// Stop ends what is left of a container, or of a sandbox. It runs in its own process, in a bundle's directory beside
// that of the container.
func (m sandboxManager) Stop(ctx context.Context, id string) (shim.StopStatus, error) {
	bundle, err := bundleBeside(id)
	if err != nil {
		return shim.StopStatus{}, err
	}
	if isDeleted(bundle) {
		return exitStatus(bundle, 0), nil
	}
	record, err := sandbox.ReadRecord(bundle)
	if err != nil {
		return shim.StopStatus{}, err
	}
	if record == nil {
		return m.Shim.Stop(ctx, id)
	}
	if err := record.End(); err != nil {
		return shim.StopStatus{}, err
	}
	return exitStatus(bundle, record.PID), nil
}

// bundleBeside returns the bundle of a container, beside the current directory.
func bundleBeside(id string) (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	if id != filepath.Base(id) || !fs.ValidPath(id) {
		return "", fmt.Errorf("%q is not a container ID", id)
	}
	return filepath.Join(filepath.Dir(here), id), nil
}
