package compare

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"kubelith.io/kubelith/runtime/payload"
)

// containers starts a shim and lets it create the sandbox and the container of a pod, with the calls that
// containerd makes (api/runtime/task/v3).
func (f *floor) containers(ctx context.Context, pod, netns string) error {
	sandbox := pod + "-pause"
	network := specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: netns}
	bundle, err := f.bundle(ctx, sandbox, "pause", oci.WithLinuxNamespace(network), seccomp.WithDefaultProfile())
	if err != nil {
		return err
	}
	tasks, err := f.startShim(sandbox, bundle)
	if err != nil {
		return err
	}
	shim, pausePID, err := f.runTask(ctx, tasks, sandbox, bundle)
	if err != nil {
		return err
	}
	container := pod + "-hello"
	of := func(kind specs.LinuxNamespaceType, name string) oci.SpecOpts {
		return oci.WithLinuxNamespace(specs.LinuxNamespace{Type: kind, Path: fmt.Sprintf("/proc/%d/ns/%s", pausePID, name)})
	}
	bundle, err = f.bundle(ctx, container, "hello", of(specs.NetworkNamespace, "net"), of(specs.IPCNamespace, "ipc"), of(specs.UTSNamespace, "uts"),
		oci.WithAnnotations(map[string]string{"io.kubernetes.cri.sandbox-id": sandbox}))
	if err != nil {
		return err
	}
	_, helloPID, err := f.runTask(ctx, tasks, container, bundle)
	f.remember(shim, pausePID, helloPID)
	return err
}

// bundle writes an OCI bundle for a program and returns its directory.
func (f *floor) bundle(ctx context.Context, id, program string, opts ...oci.SpecOpts) (string, error) {
	dir := filepath.Join(f.spec.Work, "b", id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	opts = append([]oci.SpecOpts{
		oci.WithRootFSPath(f.root(program)), oci.WithProcessArgs("/" + program), oci.WithCgroup(f.spec.Cgroup + "/" + id),
	}, opts...)
	spec, err := oci.GenerateSpec(ctx, nil, &containers.Container{ID: id}, opts...)
	if err != nil {
		return "", err
	}
	content, err := json.Marshal(spec)
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "config.json"), content, 0o600)
}

// startShim runs `containerd-shim-runc-v2 start`, which leaves a shim behind, and connects to it.
func (f *floor) startShim(id, bundle string) (taskapi.TTRPCTaskService, error) {
	// The shim logs into this pipe; someone has to have it open.
	pipe := filepath.Join(bundle, "log")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		return nil, err
	}
	if _, err := unix.Open(pipe, unix.O_RDWR|unix.O_NONBLOCK, 0); err != nil {
		return nil, err
	}
	sockets := filepath.Join(f.spec.Work, "s")
	params, err := proto.Marshal(&bootapi.BootstrapParams{
		InstanceID: id, Namespace: "floor", LogLevel: bootapi.LogLevelFromString("info"),
		ContainerdGrpcAddress: f.eventSocket(), ContainerdTtrpcAddress: f.eventSocket(), ContainerdBinary: "/bin/true", SocketDir: &sockets,
	})
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(f.spec.Shim, "-namespace", "floor", "-address", f.eventSocket(), "-publish-binary", "/bin/true", "-id", id, "start")
	cmd.Dir = bundle
	cmd.Env = append(os.Environ(), "GOMAXPROCS=2", "TTRPC_ADDRESS="+f.eventSocket(), "GRPC_ADDRESS="+f.eventSocket(), "NAMESPACE=floor")
	cmd.Stdin = bytes.NewReader(params)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("start shim %s: %w: %s", id, err, complaint.String())
	}
	var result bootapi.BootstrapResult
	if err := proto.Unmarshal(out, &result); err != nil {
		return nil, fmt.Errorf("start shim %s: %w", id, err)
	}
	conn, err := net.Dial("unix", strings.TrimPrefix(result.Address, "unix://"))
	if err != nil {
		return nil, err
	}
	return taskapi.NewTTRPCTaskClient(ttrpc.NewClient(conn)), nil
}

// runTask creates and starts a container, and returns the process ids of the shim and of the container.
func (f *floor) runTask(ctx context.Context, tasks taskapi.TTRPCTaskService, id, bundle string) (shim, pid int, err error) {
	options, err := typeurl.MarshalAnyToProto(&runcoptions.Options{BinaryName: filepath.Join(filepath.Dir(f.spec.Shim), payload.Runc)})
	if err != nil {
		return 0, 0, err
	}
	created, err := tasks.Create(ctx, &taskapi.CreateTaskRequest{ID: id, Bundle: bundle, Options: options})
	if err != nil {
		return 0, 0, fmt.Errorf("create %s: %w", id, err)
	}
	if _, err := tasks.Start(ctx, &taskapi.StartRequest{ID: id}); err != nil {
		return 0, 0, fmt.Errorf("start %s: %w", id, err)
	}
	connected, err := tasks.Connect(ctx, &taskapi.ConnectRequest{ID: id})
	if err != nil {
		return 0, 0, fmt.Errorf("connect to %s: %w", id, err)
	}
	return int(connected.ShimPid), int(created.Pid), nil
}
