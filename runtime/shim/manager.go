package shim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
)

const (
	// groupPrefix begins the id of a shim; the rest is the version of the payload.
	groupPrefix = "kubelith-"
	// callTimeout is how long a running shim may take to say that it is there. One that takes longer is left to its
	// containers, and another is started.
	callTimeout = 5 * time.Second
	// lockFile is held, in the directory of the sockets, by who looks for a shim or starts one.
	lockFile = "start.lock"
)

// ourManager is the program in its other roles: it finds or starts the shim for a new container, and cleans up after one
// whose shim has died.
type ourManager struct{ shim.Shim }

// Start returns the address of the node's shim, and starts it if it does not run. One shim serves all pods: each has
// its sandbox and containers in it, and no process beside them. After an upgrade there is a second one, from the new
// payload, for the pods that come.
func (m ourManager) Start(ctx context.Context, params *bootapi.BootstrapParams) (*bootapi.BootstrapResult, error) {
	namespace, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	// .../data/VERSION/bin/PROGRAM: see runtime/payload.
	group := groupPrefix + filepath.Base(filepath.Dir(filepath.Dir(program)))
	dir := params.GetSocketDir()
	if dir == "" {
		return nil, errors.New("containerd names no directory for the sockets of shims")
	}
	address, err := shim.CreateSocketAddress(ctx, dir, params.GetContainerdGrpcAddress(), group, false)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	result := &bootapi.BootstrapResult{Version: 3, Protocol: "ttrpc", Address: address}
	if serves(ctx, address) {
		return result, nil
	}
	if err := shim.RemoveSocket(address); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of a shim that has ended: %w", err)
	}
	args := []string{"-namespace", namespace, "-id", group, "-address", params.GetContainerdGrpcAddress()}
	if params.GetLogLevel() <= bootapi.LogLevel_LOG_LEVEL_DEBUG {
		args = append(args, "-debug")
	}
	return result, start(program, args, dir, address)
}

// serves reports whether a shim answers, which keeps it from ending for lack of containers (see service.idle).
func serves(ctx context.Context, address string) bool {
	conn, err := net.DialTimeout("unix", strings.TrimPrefix(address, "unix://"), callTimeout)
	if err != nil {
		return false
	}
	defer conn.Close()
	client := ttrpc.NewClient(conn)
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err = taskAPI.NewTTRPCTaskClient(client).Connect(ctx, &taskAPI.ConnectRequest{})
	return err == nil
}

// start starts the shim, with its socket as file descriptor 3 as upstream has it.
func start(program string, args []string, dir, address string) error {
	socket, err := shim.NewSocket(address)
	if err != nil {
		return err
	}
	defer socket.Close()
	socket.SetUnlinkOnClose(false)
	file, err := socket.File()
	if err != nil {
		return err
	}
	defer file.Close()
	cmd := exec.Command(program, args...)
	cmd.Dir = dir // not a bundle's: those come and go
	cmd.ExtraFiles = []*os.File{file}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("start the shim: %w", err), shim.RemoveSocket(address))
	}
	go func() { _ = cmd.Wait() }()
	if err := shim.AdjustOOMScore(cmd.Process.Pid); err != nil {
		return errors.Join(fmt.Errorf("set the OOM score of the shim: %w", err), cmd.Process.Kill(), shim.RemoveSocket(address))
	}
	return nil
}

// Stop ends what is left of a container, or of a sandbox. It runs in a process of its own, in a bundle's directory
// beside that of the container.
func (m ourManager) Stop(ctx context.Context, id string) (shim.StopStatus, error) {
	bundle, err := bundleBeside(id)
	if err != nil {
		return shim.StopStatus{}, err
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

// bundleLog writes the shim's log to where containerd reads it: a FIFO in the bundle of each container. Any will do; a
// line is dropped when there is none, or none that is read.
type bundleLog struct{ bundles func() []string }

var _ io.Writer = bundleLog{}

// Write never fails and never waits.
func (l bundleLog) Write(line []byte) (int, error) {
	for _, bundle := range l.bundles() {
		fd, err := unix.Open(filepath.Join(bundle, "log"), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			continue // ENXIO: nobody reads
		}
		n, err := unix.Write(fd, line)
		_ = unix.Close(fd)
		if err == nil && n == len(line) {
			break
		}
	}
	return len(line), nil
}
