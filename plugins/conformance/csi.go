package conformance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"

	"kubelith.io/kubelith/base/oneline"
	"kubelith.io/kubelith/plugins/storage"
)

// storageChecks returns the checks of storage plugins.
func storageChecks() []Check {
	return []Check{{"csi-sanity of kubernetes-csi", sanity}}
}

// sanity serves the plugin on a plain socket, as plugins/storage does for the kubelet, and runs the suite on it.
func sanity(ctx context.Context, t *Target) (string, error) {
	if len(t.options.Suite) == 0 {
		return "not run: no program has the suite", nil
	}
	socket := filepath.Join(t.dir, "csi.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return "", err
	}
	server := storage.NewForwarder(t.plugin, nil)
	go server.Serve(listener)
	defer server.Stop()
	results, err := Storage(ctx, t.options.Suite, StorageTarget{Address: "unix:" + socket, Dir: filepath.Join(t.dir, "mounts"), Block: true})
	if err != nil {
		return "", err
	}
	passed, skipped, failed := 0, 0, []string(nil)
	for _, r := range results {
		switch {
		case r.Failure != "":
			failed = append(failed, fmt.Sprintf("%s: %s", r.Name, oneline.Of(r.Failure)))
		case r.Skipped != "":
			skipped++
		default:
			passed++
		}
	}
	if len(failed) > 0 {
		return "", fmt.Errorf("%d of %d tests failed: %s", len(failed), len(results)-skipped, strings.Join(failed, "; "))
	}
	if passed == 0 {
		return "", errors.New("none of its tests ran")
	}
	return fmt.Sprintf("%d tests passed, %d skipped, as the driver lacks the capability", passed, skipped), nil
}
