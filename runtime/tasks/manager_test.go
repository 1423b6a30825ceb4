package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	eventstypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/protobuf/types"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/procstat"
)

// fakeRunc does what runc does to processes, and nothing else: a container runs the commands in its annotation
// "commands", and a process those in its first argument.
const fakeRunc = `#!/bin/sh
root=$2; shift 6
verb=$1; shift
bundle= pidfile= process= force=
while [ $# -gt 1 ] || [ "${1#-}" != "$1" ]; do
	case $1 in
	--bundle) bundle=$2; shift;;
	--pid-file) pidfile=$2; shift;;
	--process) process=$2; shift;;
	--force) force=yes;;
	--detach|--all) ;;
	*) break;;
	esac
	shift
done
id=$1; dir=$root/$id
field() { sed -n "s/.*$1\([^\"]*\)\".*/\1/p" "$2"; }
case $verb in
create)
	mkdir -p $dir && mkfifo $dir/exec.fifo || exit 1
	commands=$(field '"commands":"' $bundle/config.json)
	if [ "$commands" = refuse ]; then
		echo '{"level":"error","msg":"unable to start: no such thing"}' >>$bundle/log.json
		exit 1
	fi
	exec 3<&0
	(read _ <$dir/exec.fifo; exec sh -c "$commands") <&3 3<&- &
	printf %s $! >$pidfile; echo $! >$dir/pid;;
start) echo >$dir/exec.fifo; rm $dir/exec.fifo;;
exec)
	exec 3<&0
	commands=$(field '"args":\["' $process)
	(sleep 0.1; exec sh -c "$commands") <&3 3<&- &
	printf %s $! >$pidfile;;
kill) kill -$2 $(cat $dir/pid) 2>/dev/null || { echo "container not running"; exit 1; };;
delete)
	[ -d $dir ] || { echo "container does not exist"; exit 1; }
	[ -z "$force" ] || kill -9 $(cat $dir/pid) 2>/dev/null
	rm -r $dir;;
*) exit 1;;
esac
`

// recorder keeps the events, in their order.
type recorder struct {
	mu     sync.Mutex
	events []string
}

func (r *recorder) Publish(_ context.Context, topic string, event events.Event) error {
	line := strings.TrimPrefix(topic, "/tasks/")
	switch e := event.(type) {
	case *eventstypes.TaskExit:
		line += fmt.Sprintf(" %s %d", e.ID, e.ExitStatus)
	case *eventstypes.TaskDelete:
		line += fmt.Sprintf(" %d", e.ExitStatus)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, line)
	return nil
}

func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// noRuntime is upstream's, without a task.
type noRuntime struct{ runtime.PlatformRuntime }

func (noRuntime) Get(context.Context, string) (runtime.Task, error) { return nil, errdefs.ErrNotFound }

func (noRuntime) Tasks(context.Context, bool) ([]runtime.Task, error) { return nil, nil }

func (noRuntime) Create(context.Context, string, runtime.CreateOpts) (runtime.Task, error) {
	return nil, errors.New("upstream's")
}

func (noRuntime) Delete(context.Context, string) (*runtime.Exit, error) {
	return nil, errdefs.ErrNotFound
}

type testManager struct {
	*Manager
	events *recorder
	t      *testing.T
	ctx    context.Context
	dir    string
	opts   Options
	runc   string
	trial  bool // another release may come back
}

func newTestManager(t *testing.T) *testManager {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatalf("compile the keeper: %v", err)
	}
	dir, err := os.MkdirTemp("", "t")
	if err != nil {
		t.Fatal(err)
	}
	m := &testManager{t: t, dir: dir, runc: filepath.Join(dir, "runc"), ctx: namespaces.WithNamespace(context.WithoutCancel(t.Context()), "n")}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.WriteFile(m.runc, []byte(fakeRunc), 0o700); err != nil {
		t.Fatal(err)
	}
	m.opts = Options{
		Root: filepath.Join(dir, "root"), State: filepath.Join(dir, "state"), Socket: filepath.Join(dir, "k"), Keeper: path, Ours: []string{"ours"},
		Trial: func() bool { return m.trial },
	}
	m.restart()
	return m
}

// restart forgets all that is in memory, as the end of the server does.
func (m *testManager) restart() {
	m.t.Helper()
	if m.Manager != nil {
		m.mu.Lock()
		for _, p := range m.pods {
			_ = p.conn.Close()
		}
		m.pods = map[podKey]*pod{}
		m.mu.Unlock()
	}
	m.events = &recorder{}
	var err error
	if m.Manager, err = New(m.ctx, noRuntime{}, m.events, m.opts); err != nil {
		m.t.Fatal(err)
	}
}

// options of a container that runs commands. It has process IDs of its own, as far as this package can see.
func (m *testManager) options(pod, commands string, io runtime.IO) runtime.CreateOpts {
	m.t.Helper()
	spec, err := typeurl.MarshalAny(&specs.Spec{
		Annotations: map[string]string{"commands": commands, "io.kubernetes.cri.sandbox-id": pod},
		Linux:       &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}}},
	})
	if err != nil {
		m.t.Fatal(err)
	}
	o, err := typeurl.MarshalAny(&options.Options{BinaryName: m.runc, Root: filepath.Join(m.dir, "runc.d")})
	if err != nil {
		m.t.Fatal(err)
	}
	return runtime.CreateOpts{Spec: spec, RuntimeOptions: o, Runtime: "ours", IO: io}
}

func (m *testManager) create(id, pod, commands string, io runtime.IO) runtime.Task {
	m.t.Helper()
	task, err := m.Create(m.ctx, id, m.options(pod, commands, io))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		if task, err := m.tasks.Get(m.ctx, id); err == nil {
			task.lost(m.ctx)
		}
	})
	return task
}

func (m *testManager) status(id string) runtime.Status {
	m.t.Helper()
	task, err := m.Get(m.ctx, id)
	if err != nil {
		m.t.Fatal(err)
	}
	s, err := task.State(m.ctx)
	if err != nil {
		m.t.Fatal(err)
	}
	return s.Status
}

func wait(t *testing.T, ctx context.Context, p runtime.Process) *runtime.Exit {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	e, err := p.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func (m *testManager) eventually(want ...string) {
	m.t.Helper()
	for range 200 {
		if slices.Equal(m.events.all(), want) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	m.t.Errorf("events %q, want %q", m.events.all(), want)
}

// TestContainer: a container goes through its states, with a process that is executed in it.
func TestContainer(t *testing.T) {
	m := newTestManager(t)
	f := newFIFOs(t, false)
	f.read()
	c := m.create("a", "p", "trap : USR1; echo started; kill -STOP $$; exit 3", f.io)
	if got := m.status("a"); got != runtime.CreatedStatus {
		t.Errorf("status %v, want created", got)
	}
	if _, err := m.Create(m.ctx, "a", m.options("p", "true", runtime.IO{})); err == nil {
		t.Error("a second task has the same name")
	}
	if _, err := m.Delete(m.ctx, "a"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("delete of a created container: %v", err)
	}
	if err := c.Start(m.ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(m.ctx); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a second start: %v", err)
	}
	if got := m.status("a"); got != runtime.RunningStatus {
		t.Errorf("status %v, want running", got)
	}
	spec, _ := json.Marshal(specs.Process{Args: []string{"echo executed; exit 5"}})
	g := newFIFOs(t, false)
	g.read()
	e, err := c.Exec(m.ctx, "e", runtime.ExecOpts{Spec: &types.Any{Value: spec}, IO: g.io})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Exec(m.ctx, "e", runtime.ExecOpts{Spec: &types.Any{Value: spec}}); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a second process of the same name: %v", err)
	}
	if err := e.Start(m.ctx); err != nil {
		t.Fatal(err)
	}
	if x := wait(t, m.ctx, e); x.Status != 5 {
		t.Errorf("the process ends with %+v, want 5", x)
	}
	if x, err := e.Delete(m.ctx); err != nil || x.Status != 5 {
		t.Errorf("delete of the process: %+v, %v", x, err)
	}
	if got := g.text(t); got != "executed\n" {
		t.Errorf("the process writes %q", got)
	}
	if _, err := c.Process(m.ctx, "e"); !errdefs.IsNotFound(err) {
		t.Errorf("the process is still there: %v", err)
	}
	if err := c.Kill(m.ctx, uint32(unix.SIGCONT), false); err != nil {
		t.Fatal(err)
	}
	if x := wait(t, m.ctx, c); x.Status != 3 {
		t.Errorf("the container ends with %+v, want 3", x)
	}
	if err := c.Kill(m.ctx, uint32(unix.SIGKILL), false); !errdefs.IsNotFound(err) {
		t.Errorf("kill after the end: %v", err)
	}
	if got := m.status("a"); got != runtime.StoppedStatus {
		t.Errorf("status %v, want stopped", got)
	}
	if x, err := m.Delete(m.ctx, "a"); err != nil || x.Status != 3 {
		t.Errorf("delete: %+v, %v", x, err)
	}
	if got := f.text(t); got != "started\n" {
		t.Errorf("the container writes %q", got)
	}
	m.eventually("create", "start", "exec-added", "exec-started", "exit e 5", "exit a 3", "delete 3")
	m.empty()
}

// empty checks that nothing is left.
func (m *testManager) empty() {
	m.t.Helper()
	for _, dir := range []string{m.opts.State + "/n", m.opts.Root + "/n", m.opts.Socket} {
		if entries, _ := os.ReadDir(dir); len(entries) > 0 {
			m.t.Errorf("%s has %v", dir, entries)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.pods) > 0 {
		m.t.Errorf("pods are left: %v", m.pods)
	}
}

// TestWithoutStreams: a container without input and output is deleted without delay, as one that was killed.
func TestWithoutStreams(t *testing.T) {
	m := newTestManager(t)
	c := m.create("a", "", "exec sleep 60", runtime.IO{})
	if err := c.Start(m.ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.Kill(m.ctx, uint32(unix.SIGKILL), true); err != nil {
		t.Fatal(err)
	}
	if x := wait(t, m.ctx, c); x.Status != 128+9 {
		t.Errorf("exit %+v, want 137", x)
	}
	ctx, cancel := context.WithTimeout(m.ctx, drainTimeout/2)
	defer cancel()
	if _, err := m.Delete(ctx, "a"); err != nil || ctx.Err() != nil {
		t.Errorf("delete: %v, %v", err, ctx.Err())
	}
	m.eventually("create", "start", "exit a 137", "delete 137")
	m.empty()
}

// TestRefused: what runc refuses is an error in its words, and leaves nothing.
func TestRefused(t *testing.T) {
	m := newTestManager(t)
	_, err := m.Create(m.ctx, "a", m.options("p", "refuse", runtime.IO{}))
	if err == nil || !strings.Contains(err.Error(), "OCI runtime create failed: unable to start: no such thing") {
		t.Errorf("create = %v", err)
	}
	m.empty()
	for name, change := range map[string]func(*runtime.CreateOpts){
		"another runtime":  func(o *runtime.CreateOpts) { o.Runtime = "io.containerd.kata.v2" },
		"a checkpoint":     func(o *runtime.CreateOpts) { o.Checkpoint = "/c" },
		"on trial":         func(*runtime.CreateOpts) { m.trial = true },
		"of another's pod": func(o *runtime.CreateOpts) { o.SandboxID = "elsewhere" },
		"a URI":            func(o *runtime.CreateOpts) { o.IO.Stdout = "binary:///logger" },
	} {
		o := m.options("p", "true", runtime.IO{})
		m.trial = false
		change(&o)
		if _, err := m.Create(m.ctx, "b", o); err == nil || err.Error() != "upstream's" {
			t.Errorf("%s: %v, want upstream's", name, err)
		}
	}
	m.trial = false
	m.create("p", "p", "exec sleep 60", runtime.IO{})
	m.trial = true
	o := m.options("p", "exec sleep 60", runtime.IO{})
	o.SandboxID = "p"
	if c, err := m.Create(m.ctx, "of-p", o); err != nil {
		t.Errorf("a container of a pod that is there, on trial: %v", err)
	} else {
		defer c.(task).lost(m.ctx)
	}
	if _, err := m.Delete(m.ctx, "gone"); err == nil {
		t.Error("a task that is not there is deleted")
	}
}

// TestRestart: a later server finds the tasks, in whatever state they are by then.
func TestRestart(t *testing.T) {
	m := newTestManager(t)
	f := newFIFOs(t, false)
	readersGo := f.readers(t)
	m.create("created", "p", "exit 2", runtime.IO{})
	for id, commands := range map[string]string{"running": "exec sleep 60", "ends": "sleep 0.2; echo last words; exit 4", "alone": "exec sleep 60"} {
		pod, io := "p", runtime.IO{}
		if id == "alone" {
			pod = ""
		}
		if id == "ends" {
			io = f.io
		}
		if err := m.create(id, pod, commands, io).Start(m.ctx); err != nil {
			t.Fatal(err)
		}
	}
	readersGo()
	running, err := m.Get(m.ctx, "running")
	if err != nil {
		t.Fatal(err)
	}
	spec, _ := json.Marshal(specs.Process{Args: []string{"exec sleep 60"}})
	e, err := running.Exec(m.ctx, "e", runtime.ExecOpts{Spec: &types.Any{Value: spec}})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(m.ctx); err != nil { // its client goes with the server
		t.Fatal(err)
	}
	executed, err := e.State(m.ctx)
	if err != nil {
		t.Fatal(err)
	}
	keepers := []int{parentOf(t, int(executed.Pid))}
	defer unix.Kill(int(executed.Pid), unix.SIGKILL)
	// The server ended while it was making one.
	if err := os.MkdirAll(filepath.Join(m.opts.State, "n", "half"), 0o700); err != nil {
		t.Fatal(err)
	}
	// Another one of the same pod, which is read before the others.
	r, err := readRecord(filepath.Join(m.opts.State, "n", "running"))
	if err != nil {
		t.Fatal(err)
	}
	r.Key = 999
	first := filepath.Join(m.opts.State, "n", "0")
	if err := errors.Join(os.MkdirAll(first, 0o700), r.write(first)); err != nil {
		t.Fatal(err)
	}
	// One whose runc has not come to its end.
	p := m.pods[podKey{"n", "p"}]
	r.Key = p.hold().key
	half, made := filepath.Join(m.opts.State, "n", "making"), filepath.Join(m.dir, "made")
	if err := errors.Join(os.MkdirAll(half, 0o700), r.write(half)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ask(message{Type: msgRun, Key: r.Key}, []byte("/bin/sh\x00-c\x00sleep 0.5; >"+made+"\x00"), nil, nil); err != nil {
		t.Fatal(err)
	}
	work := filepath.Join(m.opts.Root, "n", "left")
	if err := os.MkdirAll(work, 0o700); err != nil {
		t.Fatal(err)
	}
	m.restart()
	if _, err := os.Stat(made); err != nil {
		t.Errorf("a container is deleted while it is made: %v", err)
	}
	time.Sleep(500 * time.Millisecond)
	m.restart()
	if all, err := m.Tasks(m.ctx, false); err != nil || len(all) != 4 {
		t.Errorf("tasks %v, %v, want four", all, err)
	}
	if _, err := os.Stat(work); err == nil {
		t.Errorf("%s is left", work)
	}
	task := func(id string) runtime.Task {
		task, err := m.Get(m.ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		return task
	}
	if x := wait(t, m.ctx, task("ends")); x.Status != 4 {
		t.Errorf("a container that has ended meanwhile: %+v, want 4", x)
	}
	f.read()
	if _, err := m.Delete(m.ctx, "ends"); err != nil {
		t.Error(err)
	}
	if got := f.text(t); got != "last words\n" {
		t.Errorf("it wrote %q", got)
	}
	if got := m.status("created"); got != runtime.CreatedStatus {
		t.Errorf("status %v, want created", got)
	}
	if err := task("created").Start(m.ctx); err != nil {
		t.Error(err)
	}
	if x := wait(t, m.ctx, task("created")); x.Status != 2 {
		t.Errorf("a container that is started later: %+v, want 2", x)
	}
	for _, id := range []string{"running", "alone"} {
		if got := m.status(id); got != runtime.RunningStatus {
			t.Errorf("status %v, want running", got)
		}
		if err := task(id).Kill(m.ctx, uint32(unix.SIGTERM), false); err != nil {
			t.Error(err)
		}
		if x := wait(t, m.ctx, task(id)); x.Status != 128+15 {
			t.Errorf("%s ends with %+v, want 143", id, x)
		}
	}
	for _, id := range []string{"created", "running", "alone"} {
		if _, err := m.Delete(m.ctx, id); err != nil {
			t.Error(err)
		}
	}
	m.empty()
	for _, pid := range keepers {
		for range 100 {
			if stat, err := procstat.Read(pid); err != nil || stat.Ended() {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		if stat, err := procstat.Read(pid); err == nil && !stat.Ended() {
			t.Errorf("keeper %d is left", pid)
		}
	}
}

// TestLost: the tasks of a keeper that ends end with it; others do not.
func TestLost(t *testing.T) {
	m := newTestManager(t)
	for id, pod := range map[string]string{"a": "p", "b": "p", "other": "q"} {
		if err := m.create(id, pod, "exec sleep 60", runtime.IO{}).Start(m.ctx); err != nil {
			t.Fatal(err)
		}
	}
	_ = m.pods[podKey{"n", "p"}].send(message{Type: msgQuit}, nil, nil) // has processes, and stays
	a, err := m.Get(m.ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	pid, err := a.PID(m.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(parentOf(t, int(pid)), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if x := wait(t, m.ctx, a); x.Status != 128+9 {
		t.Errorf("exit %+v, want 137", x)
	}
	for range 200 {
		if all, _ := m.Tasks(m.ctx, false); len(all) == 1 && all[0].ID() == "other" && unix.Kill(int(pid), 0) != nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if all, _ := m.Tasks(m.ctx, false); len(all) != 1 || m.status("other") != runtime.RunningStatus {
		t.Errorf("tasks %v, want the one of another pod", all)
	}
	// The same while no server is there.
	other, _ := m.Get(m.ctx, "other")
	pid, _ = other.PID(m.ctx)
	keeper := parentOf(t, int(pid))
	m.mu.Lock()
	m.pods = map[podKey]*pod{}
	m.mu.Unlock()
	if err := unix.Kill(keeper, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	m.restart()
	if all, _ := m.Tasks(m.ctx, false); len(all) != 0 {
		t.Errorf("tasks %v are found again", all)
	}
	m.empty()
}
