package process

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/proto"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	"kubelith.io/kubelith/runtime/cgroups"
)

const (
	window           = 1 << 20          // of flow control, in bytes
	handshakeTimeout = 10 * time.Second // from the start to the handshake
	describeTimeout  = 5 * time.Second
	// StartTimeout is how long a process has until it has described itself.
	StartTimeout = handshakeTimeout + HealthTimeout + describeTimeout
)

// socketDirName is the directory in the run directory for sockets and records. It is short, as paths of sockets must
// be.
const socketDirName = "p"

// cgroupPrefix begins the name of the parent cgroup of a server's plugins.
const cgroupPrefix = "kubelith-plugins-"

// Options of a Launcher.
type Options struct {
	DataDir  string // of the server: what a plugin stores is in plugins/data/<name>
	RunDir   string // of the server: sockets and records are in p
	NodeName string
	// Validate refuses a description that its kind cannot work with; the error is shown to the operator. Kinds without
	// one accept all.
	Validate map[plugins.Kind]func(name string, d *pluginv1.Description) error
	// Credentials writes to dir, which is removed with the process, what the plugin reads the cluster with, and returns
	// variables for its environment; the plugin sees the directory as seen. May be nil.
	Credentials func(spec *Spec, dir, seen string) (env []string, err error)
	Log         *logrus.Entry
}

// Launcher starts the processes of one server's plugins. They share a directory and a parent cgroup.
type Launcher struct {
	opts       Options
	log        *logrus.Entry
	generation atomic.Uint64

	createCgroup sync.Once
	cgroup       *cgroups.Parent
}

// NewLauncher returns a launcher that has created nothing yet.
func NewLauncher(opts Options) *Launcher { return &Launcher{opts: opts, log: opts.Log} }

// CreateDirs creates the directory for sockets and records. Start needs it.
func (l *Launcher) CreateDirs() error { return os.MkdirAll(l.socketDir(), 0o711) }

// Close removes the parent cgroup. All processes must have been stopped.
func (l *Launcher) Close() {
	if l.cgroup == nil {
		return
	}
	if err := l.cgroup.Remove(); err != nil {
		l.log.WithError(err).Debug("cannot remove the cgroup of the plugins")
	}
}

func (l *Launcher) socketDir() string { return filepath.Join(l.opts.RunDir, socketDirName) }

// Files returns the paths of the file with that name, as Options.Credentials has written it for each running plugin
// below a server's run directory.
func Files(runDir, name string) []string {
	all, _ := filepath.Glob(filepath.Join(runDir, socketDirName, "*", name)) // the pattern is valid
	return all
}

// parentCgroup returns the parent of the processes' cgroups, and creates it first; nil if this host's cgroups cannot be
// used.
func (l *Launcher) parentCgroup() *cgroups.Parent {
	l.createCgroup.Do(func() {
		var err error
		if l.cgroup, err = cgroups.NewParent(cgroupName(l.opts.DataDir)); err != nil {
			l.log.WithError(err).Warn("plugins run without limits of memory, CPU and processes: this host's cgroups cannot be used")
			return
		}
		if missing := l.cgroup.Missing(); len(missing) > 0 {
			l.log.Warnf("plugins run without some limits: this host has no cgroup controller for %s", strings.Join(missing, ", "))
		}
	})
	return l.cgroup
}

// cgroupName returns the name of the parent cgroup. Servers in their own mount namespaces may have data directories of
// the same path, so device and inode of the directory are part of it.
func cgroupName(dataDir string) string {
	var st unix.Stat_t
	unix.Stat(dataDir, &st) // zero without one
	return fmt.Sprintf("%s%.4x", cgroupPrefix, sha256.Sum256(fmt.Append(nil, dataDir, st.Dev, st.Ino)))
}

// Start starts a process from a verified executable and returns it once it has shaken hands, is healthy and has
// described itself. It closes the executable when the process has been stopped, and when it fails. ctx bounds the
// start, not the process.
func (l *Launcher) Start(ctx context.Context, spec *Spec, exe *Executable) (*Process, error) {
	log := l.log.WithField("plugin", spec.Name)
	p := &Process{spec: spec, exe: exe, generation: l.generation.Add(1)}
	p.runner = &pluginRunner{spec: spec, exe: exe, out: &output{log: log}, credentials: l.opts.Credentials}
	if err := l.confine(p); err != nil {
		return nil, errors.Join(err, p.release())
	}
	p.client = goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig:  proto.Handshake,
		VersionedPlugins: map[int]goplugin.PluginSet{proto.Version: {proto.Name: connection{}}},
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, temp string) (runner.Runner, error) {
			return p.runner, p.runner.prepare(cmd, temp)
		},
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		AutoMTLS:         true,
		SkipHostEnv:      true,
		StartTimeout:     handshakeTimeout,
		UnixSocketConfig: &goplugin.UnixSocketConfig{TempDir: l.socketDir()},
		SyncStdout:       p.runner.out.writer(),
		SyncStderr:       p.runner.out.writer(),
		Logger:           quiet(log),
		GRPCDialOptions: []grpc.DialOption{
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(proto.MaxResponseSize), grpc.MaxCallSendMsgSize(proto.MaxRequestSize)),
			// Windows of fixed size save the pings with which gRPC measures the connection: a unix socket has no
			// bandwidth to learn.
			grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window),
		},
	})
	// go-plugin takes no contexts: killing the process ends its calls.
	ctx, cancel := context.WithTimeout(ctx, StartTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, p.Kill)
	err := l.introduce(ctx, p)
	if !stop() { // it was killed
		err = fmt.Errorf("did not become ready within %v", StartTimeout)
	}
	if err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	p.started = time.Now()
	return p, nil
}

// confine creates the cgroup and the record of the process.
func (l *Launcher) confine(p *Process) (err error) {
	// The server's pid is part of the name: what an earlier run left may still be there.
	name := fmt.Sprintf("%s-%d-%d", p.spec.Name, os.Getpid(), p.generation)
	p.record = newRecord(l.socketDir(), name)
	if parent := l.parentCgroup(); parent != nil {
		if p.runner.cgroup, err = parent.New(name, p.spec.Limits.withDefaults()); err != nil {
			return fmt.Errorf("limit the process: %w", err)
		}
		p.record.Cgroups = p.runner.cgroup.Dirs()
	}
	p.runner.started = p.record.started
	return p.record.write()
}

// introduce shakes hands, checks the health, and requests the description and checks it.
func (l *Launcher) introduce(ctx context.Context, p *Process) error {
	protocol, err := p.client.Client()
	if err != nil {
		return p.handshakeError(err)
	}
	if fields := strings.Split(p.runner.handshake.line(), "|"); len(fields) < 6 || fields[5] == "" {
		return errors.New("does not support mutual TLS (AutoMTLS of go-plugin): build it with a library that does")
	}
	raw, err := protocol.Dispense(proto.Name)
	if err != nil {
		return err
	}
	p.conn = raw.(*grpc.ClientConn)
	if err := p.Health(ctx); err != nil {
		return p.callError("answered the handshake but not the health check", err)
	}
	if p.description, err = l.describe(ctx, p); err != nil {
		return p.callError("cannot describe itself", err)
	}
	if err := CheckKind(p.spec.Kind, p.description); err != nil {
		return err
	}
	if validate := l.opts.Validate[p.spec.Kind]; validate != nil {
		if err := validate(p.spec.Name, p.description); err != nil {
			return fmt.Errorf("describes itself wrongly: %w", err)
		}
	}
	return nil
}

func (l *Launcher) describe(ctx context.Context, p *Process) (*pluginv1.Description, error) {
	dir, err := l.pluginDir(p.spec)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	return pluginv1.NewPluginClient(p.conn).Describe(ctx, &pluginv1.DescribeRequest{
		Protocol: uint32(p.client.NegotiatedVersion()),
		Name:     p.spec.Name,
		NodeName: l.opts.NodeName,
		DataDir:  dir,
		Config:   p.spec.Config,
	})
}

// pluginDir creates the plugin's own directory. A plugin that runs as another user has none: it could not reach it.
func (l *Launcher) pluginDir(spec *Spec) (string, error) {
	if uid := spec.Limits.UID; uid != nil && *uid != int64(os.Geteuid()) {
		return "", nil
	}
	dir := filepath.Join(l.opts.DataDir, "plugins", "data", spec.Name)
	return dir, os.MkdirAll(dir, 0o700)
}

// CheckKind refuses a description of another kind than want; empty: of none.
func CheckKind(want plugins.Kind, d *pluginv1.Description) error {
	is := KindOf(d)
	switch {
	case is == "":
		return errors.New("declares no kind of plugin: admission, scheduling or storage")
	case is != want && want != "":
		return fmt.Errorf("is a plugin for %s, not for %s: correct its kind, or move it to plugins/%s", is, want, is)
	}
	return nil
}

// KindOf returns the kind that a description is of; empty: none.
func KindOf(d *pluginv1.Description) plugins.Kind {
	switch d.GetKind().(type) {
	case *pluginv1.Description_Admission:
		return plugins.Admission
	case *pluginv1.Description_Scheduling:
		return plugins.Scheduling
	case *pluginv1.Description_Storage:
		return plugins.Storage
	}
	return ""
}

// connection is the one go-plugin plugin of a process: the gRPC connection, on which each kind has its own service.
type connection struct {
	goplugin.NetRPCUnsupportedPlugin
}

// GRPCServer implements goplugin.GRPCPlugin; only a plugin has one.
func (connection) GRPCServer(*goplugin.GRPCBroker, *grpc.Server) error {
	return errors.New("not a plugin")
}

// GRPCClient implements goplugin.GRPCPlugin.
func (connection) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}
