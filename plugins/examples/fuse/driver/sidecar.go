package driver

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubelith.io/kubelith/plugins/examples/fuse/client"
	"kubelith.io/kubelith/plugins/examples/fuse/store"
)

// The client of a pod with volumes of the mode sidecar is in the pod, whose author decides what it is. So it gets what
// the pod has anyway, and nothing else: the connections to the kernel of this pod's mounts, and the objects of its
// volumes, which the driver serves; no credentials, and no path that the driver uses. The pod has the sockets by an
// inline volume of this driver, read-only, so that nothing in the pod can replace them.

const (
	// SidecarVolume is the name of the inline volume, and of the container, in pods.
	SidecarVolume = "kubelith-fuse"
	// sidecarsDir has a directory for each pod with a sidecar, in the directory of the clients. No volume has its name.
	sidecarsDir = "_pods"
	// helloTimeout bounds the first message on a connection, sidecarTimeout a request of a sidecar.
	helloTimeout, sidecarTimeout = 10 * time.Second, 10 * time.Second
	// greetings is how many connections of a pod to the driver may have sent nothing yet; storeConnections is how many
	// it may have to the objects.
	greetings, storeConnections = 16, 10
	// endedWait is how long a mount keeps the requests of programs for the next client after one that was asked to end,
	// and goneWait after one that was not: the kubelet starts that again, after five minutes at most. Then programs get
	// errors. In a pod that is being deleted there is no next client, and programs that wait for it cannot be killed.
	endedWait, goneWait = 5 * time.Second, 6 * time.Minute
	// sidecarWait is how long a mount waits for the inline volume of its pod, which the kubelet mounts at the same
	// time.
	sidecarWait = 5 * time.Second
)

// What the kubelet adds to the attributes of a volume. Source: pkg/volume/csi/csi_util.go of Kubernetes.
const (
	attributeEphemeral = "csi.storage.k8s.io/ephemeral"
	attributePod       = "csi.storage.k8s.io/pod.uid"
)

var podPattern = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

// sidecar is what a pod with a sidecar has of the driver.
type sidecar struct {
	sidecarRecord
	n      *node
	listen []net.Listener
	server *http.Server
	ctx    context.Context // ends with it
	cancel context.CancelFunc
	ended  sync.WaitGroup
}

// sidecarRecord is what is stored of it.
type sidecarRecord struct {
	Pod    string `json:"pod"`    // its UID
	Volume string `json:"volume"` // id of the inline volume
	Path   string `json:"path"`   // where that is mounted
}

func (n *node) sidecarFile(pod string) string { return filepath.Join(n.dir, "..", "pods", pod+".json") }

func (n *node) sidecarDir(pod string) string {
	return filepath.Join(n.config.Clients, sidecarsDir, pod)
}

// sidecar of a pod; nil: it has none.
func (n *node) sidecar(pod string) *sidecar {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sidecars[pod]
}

// publishSidecar mounts the sockets of the driver for a pod.
func (n *node) publishSidecar(ctx context.Context, r *csi.NodePublishVolumeRequest) error {
	pod := r.GetVolumeContext()[attributePod]
	if !podPattern.MatchString(pod) {
		return invalid("the kubelet does not name the pod: delete the CSIDriver %s to have it created again", Name)
	}
	unlock, err := n.lock(ctx, "pod "+pod)
	if err != nil {
		return err
	}
	defer unlock()
	target, err := resolve(r.GetTargetPath())
	if err != nil {
		return err
	}
	if s := n.sidecar(pod); s != nil {
		if s.Path != target {
			return status.Errorf(codes.FailedPrecondition, "the pod has two volumes of the driver %s: use the one that the plugin fuse-sidecar adds", Name)
		}
		if count, _, err := mountsAt(target); err != nil || count > 0 {
			return err
		}
		n.removeSidecar(s)
	}
	s := &sidecar{sidecarRecord: sidecarRecord{Pod: pod, Volume: r.GetVolumeId(), Path: target}, n: n}
	run := filepath.Join(n.sidecarDir(pod), "run")
	err = os.MkdirAll(run, 0o700)
	if err == nil {
		err = os.Chmod(run, 0o755) // for the user of the sidecar
	}
	if err == nil {
		err = s.start(run)
	}
	if err == nil {
		err = os.Mkdir(target, 0o750)
		if errors.Is(err, fs.ErrExist) {
			err = nil
		}
	}
	if err == nil {
		err = s.save()
	}
	if err == nil {
		err = bind(run, target, unix.MS_RDONLY|unix.MS_NOEXEC)
	}
	if err != nil {
		return errors.Join(err, unmount(target), n.removeSidecar(s))
	}
	return nil
}

func (s *sidecar) save() error {
	path := s.n.sidecarFile(s.Pod)
	text, err := json.Marshal(s.sidecarRecord)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		err = os.WriteFile(path+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	return err
}

// unpublishSidecar undoes publishSidecar for a target; it reports whether that is one.
func (n *node) unpublishSidecar(ctx context.Context, volume, target string) (bool, error) {
	n.mu.Lock()
	var s *sidecar
	for _, o := range n.sidecars {
		if o.Volume == volume && o.Path == target {
			s = o
		}
	}
	n.mu.Unlock()
	if s == nil {
		return false, nil
	}
	unlock, err := n.lock(ctx, "pod "+s.Pod)
	if err != nil {
		return true, err
	}
	defer unlock()
	if err := unmount(target); err != nil {
		return true, err
	}
	if err := n.removeSidecar(s); err != nil {
		return true, err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return true, err
	}
	return true, nil
}

// removeSidecar forgets a sidecar.
func (n *node) removeSidecar(s *sidecar) error {
	s.end()
	n.mu.Lock()
	if n.sidecars[s.Pod] == s {
		delete(n.sidecars, s.Pod)
	}
	n.mu.Unlock()
	err := os.RemoveAll(n.sidecarDir(s.Pod))
	if e := os.Remove(n.sidecarFile(s.Pod)); e != nil && !errors.Is(e, fs.ErrNotExist) {
		err = errors.Join(err, e)
	}
	return err
}

// resumeSidecars continues with the sidecars of earlier processes.
func (n *node) resumeSidecars() error {
	files, err := filepath.Glob(n.sidecarFile("*"))
	if err != nil {
		return err
	}
	for _, path := range files {
		s := &sidecar{n: n}
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, &s.sidecarRecord)
		}
		if err == nil && (!podPattern.MatchString(s.Pod) || path != n.sidecarFile(s.Pod)) {
			err = errors.New("it is damaged")
		}
		if err != nil {
			n.log.Error("a pod with a sidecar is forgotten", "file", path, "error", err)
			continue
		}
		count, _, err := mountsAt(s.Path)
		if err != nil {
			return err
		}
		if count == 0 { // the node has restarted: the kubelet mounts it again
			err = n.removeSidecar(s)
		} else {
			err = s.start(filepath.Join(n.sidecarDir(s.Pod), "run"))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// start serves the sockets. The directory is root's, also where the pod has it.
func (s *sidecar) start(run string) error {
	control, err := client.Listen("unixpacket", run, client.DriverSocket)
	if err != nil {
		return err
	}
	objects, err := client.Listen("unix", run, client.StoreSocket)
	if err != nil {
		control.Close()
		return err
	}
	s.listen = []net.Listener{control, objects}
	s.server = &http.Server{
		Handler:           store.Handler(func(id string) (store.Volume, error) { return s.n.served(s.Pod, id) }),
		ReadHeaderTimeout: helloTimeout, MaxHeaderBytes: 32 << 10,
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	for _, name := range []string{client.DriverSocket, client.StoreSocket} {
		if err := os.Chmod(filepath.Join(run, name), 0o666); err != nil {
			s.end()
			return err
		}
	}
	s.ended.Go(func() { _ = s.server.Serve(netutil.LimitListener(objects, storeConnections)) })
	s.ended.Go(func() { s.accept(control) })
	s.n.mu.Lock()
	defer s.n.mu.Unlock()
	s.n.sidecars[s.Pod] = s
	return nil
}

// end stops serving.
func (s *sidecar) end() {
	if s.server == nil {
		return
	}
	s.cancel()
	for _, l := range s.listen {
		l.Close()
	}
	s.server.Close()
	s.ended.Wait()
}

// accept the connections of the client.
func (s *sidecar) accept(listener *net.UnixListener) {
	under := make(chan struct{}, greetings)
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			return
		}
		under <- struct{}{}
		s.ended.Go(func() {
			defer func() { <-under }()
			s.hello(conn)
		})
	}
}

// hello gives a connection to the mount that it is for.
func (s *sidecar) hello(conn *net.UnixConn) {
	stop := context.AfterFunc(s.ctx, func() { conn.Close() })
	defer stop()
	h, c, err := client.Accept(conn, time.Now().Add(helloTimeout))
	if err != nil {
		conn.Close()
		return
	}
	if h.Op == "volumes" {
		_ = c.AnswerVolumes(s.n.volumesOf(s.Pod)) // if that fails, the client is gone
	} else if h.Op == "end" {
		c.Wait(s.ctx)
		for _, m := range s.n.mountsOf(func(m *mount) bool { return m.Pod == s.Pod }) {
			m.told.Store(s.ctx.Err() == nil)
		}
	} else if m := s.n.mount(mountKey(h.Volume, s.Pod)); m != nil && m.Pod == s.Pod {
		switch h.Op {
		case "serve":
			m.told.Store(false)
			offer(m.serving, c)
			return
		case "work":
			offer(m.working, c)
			return
		}
	}
	c.Close()
}

// offer a connection, instead of one that waits.
func offer(to chan *client.Conn, c *client.Conn) {
	for {
		select {
		case to <- c:
			return
		default:
		}
		select {
		case old := <-to:
			old.Close()
		default:
		}
	}
}
