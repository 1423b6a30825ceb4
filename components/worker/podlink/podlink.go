// Package podlink is the component "podlink": it connects a pod's network namespace to the node's bridge when
// containerd asks for that by CNI, and takes the pod's address back.
//
// CNI executes a program for each call. Upstream's programs for a bridge, its addresses and ports of the host take 15
// ms of CPU per pod, most of it to start three times. Here the program is a small one in C (program/kubelith-cni.c)
// that hands the call over to this component (docs/performance-log.md has both). Addresses are kept by upstream's
// host-local as a library, in the same files as by its program; ports of the host are opened by upstream's program
// portmap, for the pods that have any.
//
// components/worker/cni writes the configuration that names the program. See docs/adr/043-cni-by-a-call.md.
package podlink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/sirupsen/logrus"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/netevents"
	"kubelith.io/kubelith/base/unixsocket"
	"kubelith.io/kubelith/components/worker/policy"
)

// Options of the component.
type Options struct {
	Socket string // where the program finds the component
	BinDir string // has the program for ports of the host
	Guard  Guard  // nil: none
	Log    logrus.FieldLogger
	// CacheDir is where libcni keeps the calls of connected pods. "": its default, which containerd uses.
	CacheDir string
}

// Guard enforces network policies. A pod is connected after Connect, and its addresses are free after Disconnect.
type Guard interface {
	Connect(ctx context.Context, pod policy.Pod) error
	Disconnect(sandbox string) error
}

// Server is the component.
type Server struct {
	opts Options
	// addresses is held while one is taken or given back: host-local waits for its lock by blocking a thread.
	addresses sync.Mutex
	// ports is held while a pod with ports of the host is disconnected, and while its ports are opened again.
	ports sync.Mutex
}

var (
	_ lifecycle.Component = (*Server)(nil)
	_ lifecycle.Restarter = (*Server)(nil)
)

// New returns the component.
func New(opts Options) *Server { return &Server{opts: opts} }

// Name implements lifecycle.Component.
func (*Server) Name() string { return "podlink" }

// Needs implements lifecycle.Component. Pods end and start while the apiserver is away, so it is not needed.
func (*Server) Needs() []string { return nil }

// RestartPolicy implements lifecycle.Restarter.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartBeside }

// Run answers calls until ctx is cancelled. Calls that go on then are finished.
func (s *Server) Run(ctx context.Context, ready func()) error {
	if err := os.MkdirAll(filepath.Dir(s.opts.Socket), 0o700); err != nil {
		return err
	}
	listener, err := unixsocket.Listen(s.opts.Socket)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	defer listener.Close()
	ready()
	var calls sync.WaitGroup
	defer calls.Wait()
	running, cancel := context.WithCancel(ctx) // it may end after the listener has closed: ask ctx
	defer cancel()
	calls.Go(func() { netevents.Keep(running, portTable, "ports of the host", s.opts.Log, s.reopenPorts) })
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		calls.Go(func() { s.serve(context.WithoutCancel(ctx), conn) })
	}
}

const (
	// callTimeout is how long the program may take to hand over its call, and to take its answer.
	callTimeout = 10 * time.Second
	// workTimeout is how long a call may take in between. portmap waits for other programs' locks.
	workTimeout = time.Minute
	// maxCall is the size of a call, in bytes. Configurations have some hundred.
	maxCall = 2 << 20
)

// serve answers one call.
func (s *Server) serve(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(callTimeout)); err != nil {
		s.opts.Log.WithError(err).Error("cannot read a CNI call")
		return
	}
	content, err := io.ReadAll(io.LimitReader(conn, maxCall))
	if err != nil {
		s.opts.Log.WithError(err).Error("cannot read a CNI call")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, workTimeout)
	defer cancel()
	answer := s.answer(ctx, content)
	err = conn.SetDeadline(time.Now().Add(callTimeout))
	if err == nil {
		_, err = conn.Write(answer)
	}
	if err != nil { // containerd has given up, and takes back what there is
		s.opts.Log.WithError(err).Warn("answered a CNI call too late")
	}
}

// answer returns the exit status of the program as a digit, and what it prints.
func (s *Server) answer(ctx context.Context, content []byte) []byte {
	c, err := parse(content)
	var result types.Result
	if err == nil {
		result, err = s.do(ctx, c)
	}
	var out bytes.Buffer
	out.WriteByte('0')
	if err == nil && result != nil {
		err = result.PrintTo(&out)
	}
	if err == nil {
		return out.Bytes()
	}
	var of *types.Error
	if !errors.As(err, &of) {
		of = types.NewError(types.ErrInternal, err.Error(), "")
	}
	printed, err := json.Marshal(of)
	if err != nil {
		panic(err) // strings and a number
	}
	return append([]byte{'1'}, printed...)
}

// call is one of CNI. The fields are its parameters.
//
// Source: CNI, SPEC.md, section 2.
type call struct {
	command, container, netns, ifName, args, path string
	config                                        []byte
}

// parse reads what the program has sent. The errors are of CNI.
func parse(content []byte) (*call, error) {
	c := &call{}
	fields := map[string]*string{
		"CNI_COMMAND": &c.command, "CNI_CONTAINERID": &c.container, "CNI_NETNS": &c.netns,
		"CNI_IFNAME": &c.ifName, "CNI_ARGS": &c.args, "CNI_PATH": &c.path,
	}
	for {
		parameter, rest, ok := bytes.Cut(content, []byte{0})
		if !ok {
			return nil, types.NewError(types.ErrIOFailure, "the call is incomplete", "")
		}
		content = rest
		if len(parameter) == 0 {
			break
		}
		name, value, _ := strings.Cut(string(parameter), "=")
		if field := fields[name]; field != nil {
			*field = value
		}
	}
	c.config = content
	if err := utils.ValidateContainerID(c.container); err != nil {
		return nil, err
	}
	if err := utils.ValidateInterfaceName(c.ifName); err != nil {
		return nil, err
	}
	if c.netns == "" && c.command != "DEL" {
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_NETNS is missing", "")
	}
	return c, nil
}

// do carries a call out. Only ADD has a result.
func (s *Server) do(ctx context.Context, c *call) (types.Result, error) {
	n, err := readNetwork(c.config, c.args)
	if err != nil {
		return nil, err
	}
	switch c.command {
	case "ADD":
		return s.add(ctx, c, n)
	case "DEL":
		return nil, s.del(ctx, c, n)
	case "CHECK":
		return nil, s.check(c, n)
	}
	return nil, types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("CNI_COMMAND %q is not ADD, DEL or CHECK", c.command), "")
}
