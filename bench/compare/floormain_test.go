package compare

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	eventsapi "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/ttrpc"
	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/emptypb"
)

// floorMain runs inside the sandbox and prints a floorResult.
func floorMain(text string) {
	var spec floorSpec
	err := json.Unmarshal([]byte(text), &spec)
	if err == nil {
		err = floorRun(spec)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "floor: %v\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func floorRun(spec floorSpec) error {
	ctx := namespaces.WithNamespace(context.Background(), "floor")
	if err := os.MkdirAll(spec.Work, 0o700); err != nil {
		return err
	}
	f := &floor{spec: spec, cni: libcni.NewCNIConfigWithCacheDir([]string{filepath.Dir(spec.Shim), spec.BinDir}, filepath.Join(spec.Work, "cni"), nil)}
	var err error
	if f.list, err = libcni.ConfListFromBytes([]byte(spec.Conflist)); err != nil {
		return err
	}
	for _, name := range []string{"pause", "hello"} {
		if err := f.makeRoot(name); err != nil {
			return err
		}
	}
	stop, err := f.serveEvents(ctx)
	if err != nil {
		return err
	}
	defer stop()

	began := time.Now()
	slots := make(chan struct{}, spec.Parallel)
	errs := make([]error, spec.Pods)
	var wg sync.WaitGroup
	for i := range spec.Pods {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[i] = f.pod(ctx, fmt.Sprintf("p%d", i))
		})
	}
	wg.Wait()
	took := time.Since(began)
	for _, err := range errs {
		if err != nil {
			return err // the others are alike
		}
	}
	return json.NewEncoder(os.Stdout).Encode(floorResult{Seconds: took.Seconds(), CPU: f.cpu()})
}

// floor creates pods from programs.
type floor struct {
	spec floorSpec
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList

	mu   sync.Mutex
	pids []int // shims and containers
}

// pod creates one pod: network, shim, sandbox, container.
func (f *floor) pod(ctx context.Context, id string) error {
	netns := filepath.Join(f.spec.Work, id+".netns")
	if err := newNetworkNamespace(netns); err != nil {
		return err
	}
	_, err := f.cni.AddNetworkList(ctx, f.list, &libcni.RuntimeConf{
		ContainerID: id, NetNS: netns, IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", id}, {"K8S_POD_NAMESPACE", "floor"}},
	})
	if err != nil {
		return fmt.Errorf("CNI ADD for %s: %w", id, err)
	}
	return f.containers(ctx, id, netns)
}

// newNetworkNamespace creates a namespace and keeps it as a mount, as containerd does.
func newNetworkNamespace(path string) error {
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), path, "", unix.MS_BIND, "")
		}
		done <- err
	}()
	return <-done
}

// makeRoot creates a root directory with one program, which all pods share.
func (f *floor) makeRoot(name string) error {
	root := f.root(name)
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	content, err := os.ReadFile(filepath.Join(f.spec.Programs, name))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, name), content, 0o755)
}

func (f *floor) root(name string) string { return filepath.Join(f.spec.Work, "root-"+name) }

func (f *floor) eventSocket() string { return filepath.Join(f.spec.Work, "events.sock") }

// events takes what shims report and forgets it.
type events struct{}

func (events) Forward(context.Context, *eventsapi.ForwardRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}

// serveEvents is the end of containerd that shims call.
func (f *floor) serveEvents(ctx context.Context) (stop func(), err error) {
	server, err := ttrpc.NewServer()
	if err != nil {
		return nil, err
	}
	eventsapi.RegisterTTRPCEventsService(server, events{})
	l, err := net.Listen("unix", f.eventSocket())
	if err != nil {
		return nil, err
	}
	go server.Serve(ctx, l)
	return func() { server.Close() }, nil
}

func (f *floor) remember(pids ...int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pids = append(f.pids, pids...)
}

// cpu is the CPU time of all programs: those that have ended, the shims with the runc that they ran, and the
// containers.
func (f *floor) cpu() float64 {
	var ended unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &ended); err != nil {
		return 0
	}
	total := time.Duration(ended.Utime.Nano() + ended.Stime.Nano()).Seconds()
	for _, pid := range f.pids {
		if u, ok := readUse(pid); ok {
			total += u.cpu
		}
	}
	return total
}
