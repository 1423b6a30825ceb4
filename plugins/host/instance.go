package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/proto"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	"kubelith.io/kubelith/runtime/cgroups"
)

const (
	window          = 1 << 20          // of flow control, in bytes
	helloTimeout    = 10 * time.Second // from the start to the handshake
	describeTimeout = 5 * time.Second
	healthTimeout   = 2 * time.Second
	endTimeout      = 3 * time.Second // for a process to end by itself when asked
	maxCalls        = 64              // in flight in one process; the others wait
)

// instance is one process of a plugin, which has described itself.
type instance struct {
	spec        *Spec
	exe         atomic.Pointer[fileID] // the file with this content
	sha256      string
	generation  uint64
	launcher    *launcher
	client      *goplugin.Client
	conn        grpc.ClientConnInterface
	description *pluginv1.Description
	record      *record
	since       time.Time

	unhealthy atomic.Bool // missed a health check: calls fail at once
	slots     chan struct{}

	mu    sync.Mutex
	calls int
	idle  chan struct{} // not nil: no call begins any more; closed with the last one
}

// start starts a process and makes its acquaintance. ctx ends that, not the process.
func (h *Host) start(ctx context.Context, spec *Spec, exe *executable) (_ *instance, err error) {
	log := h.log.WithField("plugin", spec.Name)
	i := &instance{spec: spec, sha256: exe.sha256, generation: h.generation.Add(1), slots: make(chan struct{}, maxCalls)}
	i.exe.Store(&exe.id)
	i.launcher = &launcher{spec: spec, exe: exe, out: &output{log: log}, credentials: h.opts.Credentials}
	if err := h.confine(i); err != nil {
		return nil, errors.Join(err, i.release())
	}
	i.client = goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig:  proto.Handshake,
		VersionedPlugins: map[int]goplugin.PluginSet{proto.Version: {proto.Name: service{}}},
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, temp string) (runner.Runner, error) {
			return i.launcher, i.launcher.prepare(cmd, temp)
		},
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		AutoMTLS:         true,
		SkipHostEnv:      true,
		StartTimeout:     helloTimeout,
		UnixSocketConfig: &goplugin.UnixSocketConfig{TempDir: h.socketDir()},
		SyncStdout:       i.launcher.out.writer(),
		SyncStderr:       i.launcher.out.writer(),
		Logger:           quiet(log),
		GRPCDialOptions: []grpc.DialOption{
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(proto.MaxResponseSize), grpc.MaxCallSendMsgSize(proto.MaxRequestSize)),
			// Fixed windows spare pings that measure a way on which nothing is ever under way for long.
			grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window),
		},
	})
	// go-plugin has no contexts: it is freed by the end of the process.
	ctx, cancel := context.WithTimeout(ctx, helloTimeout+healthTimeout+describeTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, i.launcher.kill)
	err = h.introduce(ctx, i)
	if !stop() { // it was killed
		err = fmt.Errorf("did not get ready within %v", helloTimeout+healthTimeout+describeTimeout)
	}
	if err != nil {
		return nil, errors.Join(err, i.end())
	}
	i.since = time.Now()
	return i, nil
}

// confine makes the group of the process, and notes it for a later run in case we are killed.
func (h *Host) confine(i *instance) (err error) {
	// With our pid: what an earlier run has left may not be gone yet.
	name := fmt.Sprintf("%s-%d-%d", i.spec.Name, os.Getpid(), i.generation)
	i.record = newRecord(h.socketDir(), name)
	if groups := h.groups(); groups != nil {
		l := i.spec.Limits.withDefaults()
		if i.launcher.group, err = groups.New(name, l); err != nil {
			return fmt.Errorf("limit the process: %w", err)
		}
		i.record.Cgroups = i.launcher.group.Dirs()
	}
	i.launcher.noted = i.record.started
	return i.record.write()
}

// withDefaults are the limits of a plugin whose settings name none.
func (l Limits) withDefaults() cgroups.Limits {
	out := cgroups.Limits{Memory: l.Memory, MilliCPU: l.MilliCPU, PIDs: l.PIDs}
	if out.Memory == 0 {
		out.Memory = 256 << 20
	}
	if out.PIDs == 0 {
		out.PIDs = 256
	}
	return out
}

// introduce shakes hands, asks for health and for the description, and has it checked.
func (h *Host) introduce(ctx context.Context, i *instance) error {
	protocol, err := i.client.Client()
	if err != nil {
		return i.explain(err)
	}
	if fields := strings.Split(i.launcher.hello.said(), "|"); len(fields) < 6 || fields[5] == "" {
		return errors.New("does not support mutual TLS (AutoMTLS of go-plugin): build it with a library that does")
	}
	raw, err := protocol.Dispense(proto.Name)
	if err != nil {
		return err
	}
	i.conn = raw.(grpc.ClientConnInterface)
	if err := i.checkHealth(ctx); err != nil {
		return i.lost("answered the handshake but not the health check", err)
	}
	if i.description, err = h.describe(ctx, i); err != nil {
		return i.lost("cannot describe itself", err)
	}
	if err := checkKind(i.spec.Kind, i.description); err != nil {
		return err
	}
	if i.description.GetCalls() {
		i.conn = &lanes{ClientConnInterface: i.conn}
	}
	if validate := h.opts.Validate[i.spec.Kind]; validate != nil {
		if err := validate(i.spec.Name, i.description); err != nil {
			return fmt.Errorf("describes itself wrongly: %w", err)
		}
	}
	return nil
}

// describe asks a process what it is.
func (h *Host) describe(ctx context.Context, i *instance) (*pluginv1.Description, error) {
	dir, err := h.dataDir(i.spec)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	return pluginv1.NewPluginClient(i.conn).Describe(ctx, &pluginv1.DescribeRequest{
		Protocol: uint32(i.client.NegotiatedVersion()),
		Name:     i.spec.Name,
		NodeName: h.opts.NodeName,
		DataDir:  dir,
		Config:   i.spec.Config,
	})
}

// dataDir makes the directory that is the plugin's own. One that runs as another user has none: it could not reach it.
func (h *Host) dataDir(spec *Spec) (string, error) {
	if uid := spec.Limits.UID; uid != nil && *uid != int64(os.Geteuid()) {
		return "", nil
	}
	dir := filepath.Join(h.opts.DataDir, "plugins", "data", spec.Name)
	return dir, os.MkdirAll(dir, 0o700)
}

// checkKind refuses a description of another kind.
func checkKind(want plugins.Kind, d *pluginv1.Description) error {
	is := kindOf(d)
	switch {
	case is == "":
		return errors.New("describes no kind of plugin: neither admission nor scheduling nor storage")
	case is != want && want != anyKind:
		return fmt.Errorf("is a plugin for %s, not for %s: correct its kind, or move it to plugins/%s", is, want, is)
	}
	return nil
}

// kindOf is what a plugin says that it is; empty when it does not.
func kindOf(d *pluginv1.Description) plugins.Kind {
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

// checkHealth asks go-plugin's health service, which answers as long as the process serves at all.
func (i *instance) checkHealth(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	answer, err := grpc_health_v1.NewHealthClient(i.conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: goplugin.GRPCServiceName})
	if err == nil && answer.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		err = fmt.Errorf("it says %s", answer.Status)
	}
	return err
}

// service is the one go-plugin plugin of a process: the connection, on which the kinds speak their own services.
type service struct {
	goplugin.NetRPCUnsupportedPlugin
}

// GRPCServer implements goplugin.GRPCPlugin, for the other side.
func (service) GRPCServer(*goplugin.GRPCBroker, *grpc.Server) error {
	return errors.New("not a plugin")
}

// GRPCClient implements goplugin.GRPCPlugin.
func (service) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}

// explain says why the handshake failed.
func (i *instance) explain(err error) error {
	p := i.launcher.started()
	if p == nil {
		return err // of the start itself
	}
	if line := i.launcher.hello.said(); line != "" {
		return explainHello(line, err)
	}
	<-p.done // go-plugin has killed it, if it has not ended by itself
	if p.endedByUs() {
		return fmt.Errorf("printed no handshake: is it a plugin? It closed its output, or was silent for %v", helloTimeout)
	}
	return i.obituary()
}

// explainHello looks for what is wrong with a handshake, CORE-PROTOCOL|PROTOCOL|NETWORK|ADDRESS|TYPE|CERTIFICATE.
func explainHello(line string, err error) error {
	fields := strings.Split(strings.TrimSpace(line), "|")
	if len(fields) < 4 {
		return &obituary{"is no plugin: it printed another line than go-plugin's handshake", fmt.Sprintf("%.82q", printable(line))}
	}
	switch {
	case fields[0] != strconv.Itoa(goplugin.CoreProtocolVersion):
		return fmt.Errorf("is no plugin that this kubelith understands: go-plugin's core protocol is %.20q, not %d", fields[0], goplugin.CoreProtocolVersion)
	case fields[1] != strconv.Itoa(proto.Version):
		return fmt.Errorf("speaks protocol %.20q, this kubelith speaks %d: build it with an SDK of this version", fields[1], proto.Version)
	case len(fields) < 5 || fields[4] != string(goplugin.ProtocolGRPC):
		return errors.New("speaks net/rpc: go-plugin's gRPC is needed")
	}
	return fmt.Errorf("shakes hands wrongly: %s", oneLine(err))
}

// lost says why a process could not be asked.
func (i *instance) lost(what string, err error) error {
	select {
	case <-i.dead():
		return i.obituary()
	case <-time.After(200 * time.Millisecond): // it may be about to end, which explains more
	}
	if status.Code(err) == codes.DeadlineExceeded {
		return fmt.Errorf("%s: no answer in time", what)
	}
	if s, ok := status.FromError(err); ok {
		return fmt.Errorf("%s: %s", what, oneLine(errors.New(s.Message())))
	}
	return fmt.Errorf("%s: %s", what, oneLine(err))
}

// obituary says why a process is dead, or no plugin. Its words are what it printed last, which nobody but the operator is to read: there
// may be secrets in them.
type obituary struct{ text, words string }

func (o *obituary) Error() string {
	if o.words == "" {
		return o.text
	}
	return o.text + ": " + o.words
}

// withoutWords is an error for those who may read the cluster's objects, or send it requests.
func withoutWords(err error) string {
	text := err.Error()
	if o := (*obituary)(nil); errors.As(err, &o) && o.words != "" {
		text = strings.Replace(text, o.Error(), o.text+" (kubelith plugin describe has its last words)", 1)
	}
	return text
}

// obituary says why a process that is dead has ended.
func (i *instance) obituary() error {
	select {
	case <-i.launcher.read: // its last words
	case <-time.After(openFor):
	}
	if i.outOfMemory() {
		return fmt.Errorf("used all of its %d MiB of memory and was killed: raise limits.memory, or look for a leak", i.spec.Limits.withDefaults().Memory>>20)
	}
	return &obituary{i.launcher.started().end(), i.launcher.out.lastWords()}
}

func (i *instance) outOfMemory() bool {
	return i.launcher.group != nil && i.launcher.group.OOMKills() > 0
}

// dead is closed when the process has ended.
func (i *instance) dead() <-chan struct{} { return i.launcher.started().done }

// begin counts a call, unless the instance has been replaced.
func (i *instance) begin() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.idle != nil {
		return false
	}
	i.calls++
	return true
}

func (i *instance) finish() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.calls--
	if i.idle != nil && i.calls == 0 {
		close(i.idle)
	}
}

func (i *instance) inFlight() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.calls
}

// drain lets no call begin any more, and returns when those under way have ended, after patience, or with ctx.
func (i *instance) drain(ctx context.Context, patience time.Duration) {
	i.mu.Lock()
	if i.idle == nil {
		i.idle = make(chan struct{})
		if i.calls == 0 {
			close(i.idle)
		}
	}
	i.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-i.idle:
	case <-i.dead():
	case <-timer.C:
	case <-ctx.Done():
	}
}

// end ends the process, kindly at first, and removes what it had.
func (i *instance) end() error {
	if i.unhealthy.Load() {
		i.launcher.kill() // it would not hear
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		i.client.Kill() // asks; hangs when the process is stopped
	}()
	select {
	case <-ended:
	case <-time.After(endTimeout):
	}
	i.launcher.kill() // also what it has left
	select {
	case <-ended:
	case <-time.After(endTimeout):
		return fmt.Errorf("process %s cannot be ended: it hangs in the kernel", i.launcher.ID())
	}
	return i.release()
}

// release removes what a process had that has ended, or never was.
func (i *instance) release() error {
	i.launcher.exe.file.Close()
	if i.launcher.temp != "" {
		os.RemoveAll(i.launcher.temp) // go-plugin leaves it where the start failed
	}
	var err error
	if i.launcher.group != nil {
		err = i.launcher.group.Remove()
	}
	return errors.Join(err, i.record.remove())
}

// oneLine is an error of another library, or of the plugin, as a log line can hold it.
func oneLine(err error) string {
	return printable(strings.Join(strings.Fields(err.Error()), " "))
}
