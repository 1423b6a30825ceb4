package driver

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/plugins/examples/fuse/client"
)

const (
	// pollEvery is how often a client that is not there or not ready is looked for.
	pollEvery = 200 * time.Millisecond
	// endClient is how long a client of the mode process may upload when it is ended.
	endClient = 25 * time.Second
	// configFile is the configuration of a client, in its directory, where no Secret has it.
	configFile = "config.json"
)

// mount is one connection to the kernel, and keeps it served.
type mount struct {
	record
	key string
	n   *node

	mu       sync.Mutex
	fd       int    // the connection; -1: this process has none
	mounted  bool   // it is, or was, mounted
	attached bool   // a client serves it
	ready    bool   // the client can
	reason   string // why it is not

	// The connections that a client in a pod has opened: the next one to wait on, and one for requests.
	serving, working chan *client.Conn
	told             atomic.Bool // the last one was asked to end, and has

	cancel context.CancelFunc
	ended  chan struct{}
}

// record is what is stored of a mount.
type record struct {
	ID      string         `json:"id"` // of the connection to the kernel
	Volume  string         `json:"volume"`
	Mode    mode           `json:"mode"`
	Path    string         `json:"path"`   // where it is mounted
	Client  string         `json:"client"` // directory of the client
	Options client.Options `json:"options"`
	Flags   uintptr        `json:"flags,omitempty"`
	// Targets are where pods see it.
	Targets map[string]uintptr `json:"targets,omitempty"`
	// Pod is the one that it is for, in the mode sidecar: its UID.
	Pod string `json:"pod,omitempty"`
}

// resume continues with the mounts of earlier processes.
func (n *node) resume() error {
	files, err := filepath.Glob(filepath.Join(n.dir, "*.json"))
	if err != nil {
		return err
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var r record
		if err := json.Unmarshal(text, &r); err != nil {
			n.log.Error("a mount is forgotten: its record is damaged", "file", path, "error", err)
			continue
		}
		count, _, err := mountsAt(r.Path)
		if err != nil {
			return err
		}
		if count == 0 { // the node has restarted: the kubelet mounts it again
			os.Remove(path)
			continue
		}
		m := n.newMount(strings.TrimSuffix(filepath.Base(path), ".json"), r)
		m.mounted = true
		m.start()
	}
	return nil
}

// newMount adds a mount. It is not mounted.
func (n *node) newMount(key string, r record) *mount {
	if r.Targets == nil {
		r.Targets = map[string]uintptr{}
	}
	m := &mount{record: r, key: key, n: n, fd: -1, reason: "it starts", ended: make(chan struct{}),
		serving: make(chan *client.Conn, 1), working: make(chan *client.Conn, 1)}
	n.mu.Lock()
	n.mounts[key] = m
	n.mu.Unlock()
	return m
}

// mount returns the mount of a key; nil: there is none.
func (n *node) mount(key string) *mount {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mounts[key]
}

func (m *mount) file() string { return filepath.Join(m.n.dir, m.key+".json") }

// save writes the record. The mount is locked.
func (m *mount) save() error {
	text, err := json.Marshal(m.record)
	if err == nil {
		err = os.WriteFile(m.file()+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(m.file()+".new", m.file())
	}
	return err
}

func (m *mount) start() {
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go func() {
		defer close(m.ended)
		m.keep(ctx)
	}()
}

// end stops keeping the mount, and ends a client of the mode process.
func (m *mount) end() {
	m.cancel()
	<-m.ended
	for _, waiting := range []chan *client.Conn{m.serving, m.working} {
		select {
		case c := <-waiting:
			c.Close()
		default:
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fd >= 0 {
		unix.Close(m.fd)
		m.fd = -1
	}
}

// keep has a client serve the mount until ctx ends.
func (m *mount) keep(ctx context.Context) {
	var own *exec.Cmd // client of the mode process
	var exited chan struct{}
	defer func() { stop(own, exited) }()
	seen := time.Now() // the client
	for ctx.Err() == nil {
		conn, err := m.connect(ctx)
		if err == nil {
			err = m.serve(ctx, conn)
			conn.Close()
			m.set(false, false, "")
			seen = time.Now()
		}
		if absent := time.Since(seen); m.Mode == inPod && (absent > goneWait || absent > endedWait && m.told.Load()) {
			m.giveUp()
		}
		if err != nil {
			m.set(false, false, m.explain(err))
		}
		if absent := errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED); absent && m.Mode == process && !running(exited) {
			if own, exited, err = m.startClient(); err != nil {
				m.set(false, false, err.Error())
			}
		}
		sleep(ctx, pollEvery)
	}
}

// connect returns a connection to the client, to wait on. A client in a pod opens it.
func (m *mount) connect(ctx context.Context) (*client.Conn, error) {
	if m.Mode != inPod {
		return client.Dial(m.Client)
	}
	select {
	case c := <-m.serving:
		return c, nil
	case <-time.After(time.Second):
		return nil, fs.ErrNotExist
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (m *mount) explain(err error) string {
	if m.Mode == inPod {
		return "the sidecar of the pod does not serve it" // not its own reason: the sidecar is the pod's
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		if m.Mode == mountPod {
			return fmt.Sprintf("its client pod does not run yet: kubectl -n %s get pods -l %s=%s", m.n.config.Namespace, labelVolume, labelValue(m.Volume))
		}
		return "its client does not run yet"
	}
	return err.Error()
}

// serve has the client at a connection serve the mount. It returns when the client has ended.
func (m *mount) serve(ctx context.Context, conn *client.Conn) error {
	for tried := false; ctx.Err() == nil; {
		a, _, err := conn.Do(ctx, client.Request{Op: "status"}, -1)
		if err != nil {
			return err
		}
		m.mu.Lock()
		id, fd, mounted := m.ID, m.fd, m.mounted
		m.mu.Unlock()
		switch {
		case !a.Ready && m.Mode == inPod:
			m.set(false, false, m.explain(nil))
		case !a.Ready:
			m.set(false, false, a.Reason)
		case mounted && a.Mount == id:
			if fd < 0 {
				if _, fd, err = conn.Do(ctx, client.Request{Op: "device"}, -1); err != nil {
					return err
				}
				m.mu.Lock()
				m.fd = fd
				m.mu.Unlock()
			}
			m.set(true, true, "")
			conn.Wait(ctx)
			if ctx.Err() == nil && m.Mode != inPod {
				m.n.log.Warn("the client of a volume has ended; the next one continues", "volume", m.Volume, "mount", m.key)
			}
			return nil
		case fd >= 0:
			if _, _, err := conn.Do(ctx, client.Request{Op: "attach", Mount: id, Options: m.Options}, fd); err != nil {
				m.set(false, true, m.explain(err))
			} else if !tried {
				tried = true
				continue
			}
		case mounted:
			if err := m.recover(); err != nil {
				m.set(false, true, err.Error())
			} else {
				continue
			}
		default:
			m.set(false, true, "it is not mounted yet")
		}
		sleep(ctx, pollEvery)
	}
	return nil
}

func (m *mount) set(attached, ready bool, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.attached, m.ready = attached, ready
	if reason != "" && reason != m.reason && m.Mode != inPod { // there the pod reports it
		m.n.log.Info("a volume waits", "volume", m.Volume, "mount", m.key, "reason", reason)
	}
	if reason != "" || attached {
		m.reason = reason
	}
}

// wait until the mount is as wanted, or return why it is not.
func (m *mount) wait(ctx context.Context, wanted func(*mount) bool) error {
	ctx, cancel := context.WithTimeout(ctx, retryLater)
	defer cancel()
	for {
		m.mu.Lock()
		ok, reason := wanted(m), m.reason
		m.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New(reason)
		case <-m.ended:
			return errors.New("it is being unmounted")
		case <-time.After(pollEvery / 4):
		}
	}
}

// mountNow mounts the volume with a new connection to the kernel.
func (m *mount) mountNow() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mountLocked()
}

func (m *mount) mountLocked() error {
	m.ID = rand.Text()
	fd, err := mountFUSE(m.Volume, m.Path, m.Flags)
	if err != nil {
		return err
	}
	m.fd, m.mounted, m.attached = fd, true, false
	if err := m.save(); err != nil {
		return errors.Join(err, m.unmountLocked())
	}
	return nil
}

// recover mounts again what both the client and the driver have lost, so that the kernel has given it up. Programs in
// pods that have files open there get errors.
func (m *mount) recover() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.n.log.Warn("a mount is lost: its client and this plugin have ended; it is mounted again", "volume", m.Volume, "path", m.Path)
	if m.Mode == inPod { // on top of the old mount, as below
		return m.mountLocked()
	}
	if err := unmount(m.Path); err != nil {
		return err
	}
	if err := m.mountLocked(); err != nil {
		return err
	}
	for target, flags := range m.Targets {
		// On top of the old mount: so it gets into containers that have it with mountPropagation: HostToContainer.
		if err := bind(m.Path, target, flags); err != nil {
			m.n.log.Error("mount again", "target", target, "error", err)
		}
	}
	return nil
}

// giveUp ends the connection to the kernel, so that no program waits any more. A client that comes later gets a new
// one.
func (m *mount) giveUp() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fd < 0 {
		return
	}
	m.n.log.Warn("the client of a volume in a pod is gone: programs of the pod get errors", "volume", m.Volume, "pod", m.Pod)
	if err := unix.Unmount(m.Path, unix.MNT_FORCE|unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		m.n.log.Error("end the connection of a volume to the kernel", "path", m.Path, "error", err)
	}
	unix.Close(m.fd)
	m.fd = -1
}

// unmountLocked undoes mountLocked.
func (m *mount) unmountLocked() error {
	end := unmount
	if m.Mode == inPod { // it may have given the connection to another process, which would keep it
		end = unmountNow
	}
	if err := end(m.Path); err != nil {
		return err
	}
	if m.fd >= 0 {
		unix.Close(m.fd)
	}
	m.fd, m.mounted, m.attached = -1, false, false
	if err := os.Remove(m.file()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// do sends a request to the client, if it serves this mount.
func (m *mount) do(ctx context.Context, r client.Request) (client.Answer, error) {
	if m.Mode == inPod {
		return m.doInPod(ctx, r)
	}
	conn, err := client.Dial(m.Client)
	if err != nil {
		return client.Answer{}, errors.New(m.explain(err))
	}
	defer conn.Close()
	a, _, err := conn.Do(ctx, r, -1)
	return a, err
}

func (m *mount) doInPod(ctx context.Context, r client.Request) (client.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, sidecarTimeout)
	defer cancel()
	select {
	case conn := <-m.working:
		a, _, err := conn.Do(ctx, r, -1)
		if err != nil {
			conn.Close() // it opens another
			return a, errors.New(m.explain(err))
		}
		offer(m.working, conn)
		return a, nil
	case <-ctx.Done():
		return client.Answer{}, errors.New(m.explain(ctx.Err()))
	}
}

// startClient starts the client of the mode process.
func (m *mount) startClient() (*exec.Cmd, chan struct{}, error) {
	args := append(append([]string{}, m.n.program[1:]...), "client", m.Client, filepath.Join(m.Client, configFile))
	cmd := exec.Command(m.n.program[0], args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	output, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("start its client: %w", err)
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		for lines := bufio.NewScanner(output); lines.Scan(); {
			m.n.log.Info(lines.Text(), "client", m.key)
		}
		io.Copy(io.Discard, output)
		if err := cmd.Wait(); err != nil {
			m.n.log.Warn("a client has ended", "client", m.key, "error", err)
		}
	}()
	return cmd, exited, nil
}

func running(exited chan struct{}) bool {
	if exited == nil {
		return false
	}
	select {
	case <-exited:
		return false
	default:
		return true
	}
}

// stop ends a client; it uploads what it has.
func stop(cmd *exec.Cmd, exited chan struct{}) {
	if !running(exited) {
		return
	}
	cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-exited:
	case <-time.After(endClient):
		cmd.Process.Kill()
		<-exited
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
