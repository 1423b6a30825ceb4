package shim

import (
	"context"

	"github.com/containerd/containerd/v2/pkg/shim"
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
	record, err := readRecord(bundle)
	if err != nil {
		return shim.StopStatus{}, err
	}
	if record == nil {
		return m.Shim.Stop(ctx, id)
	}
	return record.end(bundle)
}
