package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// StorageTarget is a CSI driver to test.
type StorageTarget struct {
	// Address of a gRPC server that serves Identity, Controller and Node without TLS: unix:/path.
	Address string
	// Dir is for mounts. Storage creates it, and unmounts and removes everything in it.
	Dir string
	// Block adds a second round with block devices.
	Block bool
	// Parameters of the volumes, as in a StorageClass.
	Parameters map[string]string
}

// StorageResult is how one test of csi-sanity ended.
type StorageResult struct {
	Name    string // "mount: " or "block: ", and as the suite calls it
	Skipped string // why it did not run: usually a capability that the driver lacks
	Failure string // empty: it passed
}

// ResultsFD is the file descriptor for the results of the suite's program. Its standard output belongs to the suite.
const ResultsFD = 3

// Storage runs csi-sanity of kubernetes-csi/csi-test on a driver. Failed tests are in the results; an error means that
// the suite could not run to its end.
//
// suite is the command that runs csisanity.Main in its own process, because the suite prints, handles signals, may exit
// and works once per process. Mounting needs root.
func Storage(ctx context.Context, suite []string, t StorageTarget) ([]StorageResult, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("csi-sanity mounts volumes: run it as root")
	}
	if err := os.Mkdir(t.Dir, 0o700); err != nil {
		return nil, err
	}
	results, err := runSuite(ctx, suite, t)
	return results, errors.Join(err, unmountBelow(t.Dir), os.RemoveAll(t.Dir))
}

func runSuite(ctx context.Context, suite []string, t StorageTarget) (results []StorageResult, err error) {
	target, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, suite[0], suite[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(target), &output, &output
	cmd.ExtraFiles = []*os.File{write} // ResultsFD
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	write.Close()
	if err != nil {
		return nil, err
	}
	decodeErr := json.NewDecoder(read).Decode(&results)
	waitErr := cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("csi-sanity was stopped: %w", ctx.Err())
	case decodeErr != nil:
		return nil, fmt.Errorf("csi-sanity ended without results: %w: %s", errors.Join(waitErr, decodeErr), lastLines(output.String(), 5))
	}
	return results, nil
}

// lastLines returns the last n lines of a program's output.
func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// unmountBelow unmounts what a driver that failed left mounted. Otherwise, removing the directory would delete the
// contents of volumes.
func unmountBelow(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(filepath.Clean(dir)))
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(mounts) { // the last one is on top
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil {
			return &os.PathError{Op: "unmount", Path: m.Mountpoint, Err: err}
		}
	}
	return nil
}
