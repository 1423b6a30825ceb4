// Package rotation is how all servers of a cluster replace a secret that they share, such as the CAs, while they serve:
// in phases. A phase begins when every server has reported that it has done what the phase before asks for; one that is
// missing holds up the rotation.
//
// The phase and the reports are in a ConfigMap. The secret is not: it is in files of each server, and travels from
// server to server encrypted (base/sealed). Every step can be repeated, so that a server that dies goes on where it
// was.
//
// What the phases are, and what a server does in each, is up to the component that embeds a Server.
package rotation

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"reflect"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/base/sealed"
)

const (
	// stepEvery is how often a rotation looks for its next step, and checkEvery how often a server checks without one.
	stepEvery, checkEvery = time.Second, time.Minute
	// stepTimeout bounds one step: requests to the API and to other servers.
	stepTimeout = 30 * time.Second
)

// Options is what every rotation needs to know of this server and the others.
type Options struct {
	// NodeName is this server's.
	NodeName string
	// Servers returns the names of all servers; one that joins may have none yet.
	Servers func() []string
	// Leads reports whether this server's etcd leads: the next phase begins there.
	Leads func() bool
	// Identity is how this server calls others.
	Identity sealed.Identity
	// Client acts as the component.
	Client *rest.Config
	Log    logrus.FieldLogger
}

// State is where a rotation is.
type State interface {
	comparable
	// Active reports whether one is under way.
	Active() bool
	// String describes it in a line of the log.
	String() string
}

// Kind is what a component rotates, and how. S is its State, and R is what a server reports, both as they are stored,
// in JSON.
type Kind[S State, R any] struct {
	// What is rotated, as "the CAs".
	What string
	// Command begins a rotation.
	Command string
	// ConfigMap of kube-system has the State and the reports.
	ConfigMap string
	// Path is where administrators see (GET) and begin (POST) a rotation; KeyPath is where servers get the secret
	// (POST).
	Path, KeyPath string

	// Arrange brings this server in line with the phase. It is called without a rotation, too.
	Arrange func(ctx context.Context, st S) error
	// Report returns what this server has done; problem is Arrange's error.
	Report func(ctx context.Context, r Record[S, R], problem error) R
	// Next returns the State that follows when all servers have done what the phase asks for; the same one: they have
	// not.
	Next func(ctx context.Context, r Record[S, R]) (S, error)
	// Begin returns the State of the rotation that a request with this body asks for; the same one: it is under way.
	// It is called again when another server has changed the Record.
	Begin func(body []byte) (func(r Record[S, R]) (S, error), error)
	// View returns what Path shows to administrators.
	View func(ctx context.Context) (any, error)
	// Find returns the secret with a name, for another server.
	Find func(name string) (any, error)
}

// Server takes part in the rotations of a kind. A component embeds it.
type Server[S State, R any] struct {
	Client kubernetes.Interface

	opts Options
	kind Kind[S, R]
	work lifecycle.Watchdog
	wake reconcile.Signal // another server or an administrator has changed something
	said logging.Once     // of Run
}

// New returns a Server; nothing is touched before Run.
func New[S State, R any](o Options, k Kind[S, R]) (*Server[S, R], error) {
	cs, err := kubernetes.NewForConfig(o.Client)
	if err != nil {
		return nil, err
	}
	return &Server[S, R]{Client: cs, opts: o, kind: k, wake: reconcile.NewSignal()}, nil
}

// Needs implements lifecycle.Component.
func (*Server[S, R]) Needs() []string { return []string{"etcd", "apiserver"} }

// RestartPolicy implements lifecycle.Restarter.
func (*Server[S, R]) RestartPolicy() lifecycle.Policy { return lifecycle.RestartBeside }

// Healthy implements lifecycle.Health: it fails when a step takes too long.
func (s *Server[S, R]) Healthy(ctx context.Context) error { return s.work.Healthy(ctx) }

// Run implements lifecycle.Component. It is ready at once.
func (s *Server[S, R]) Run(ctx context.Context, ready func()) error {
	s.work.Reset()
	defer s.follow(ctx)()
	ready()
	reconcile.Loop(ctx, s.wake, 0, func() time.Duration { return s.look(ctx) })
	return nil
}

// look does the next step, and logs why that is not possible.
func (s *Server[S, R]) look(ctx context.Context) time.Duration {
	defer s.work.Begin("a step of the rotation of " + s.kind.What)()
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	active, err := s.Step(ctx)
	problem := ""
	switch {
	case err == nil || ctx.Err() != nil || apierrors.IsConflict(err): // another server was faster
	case active:
		problem = fmt.Sprintf("the rotation of %s waits: %s", s.kind.What, sealed.OneLine(err))
	default:
		problem = fmt.Sprintf("cannot take part in a rotation of %s: %s", s.kind.What, sealed.OneLine(err))
	}
	if s.said.News("", problem) {
		s.opts.Log.Warn(problem)
	}
	if active || err != nil {
		return stepEvery
	}
	return checkEvery
}

// Step brings this server in line with the phase, reports what it has done and, where etcd leads, begins the next
// phase. It reports whether a rotation is under way. Run calls it.
func (s *Server[S, R]) Step(ctx context.Context) (active bool, err error) {
	record, err := s.Read(ctx)
	if err != nil {
		return false, err
	}
	st := record.State
	problem := s.kind.Arrange(ctx, st)
	report := s.kind.Report(ctx, record, problem)
	if !reflect.DeepEqual(report, record.Reports[s.opts.NodeName]) {
		if err := s.publish(ctx, report); err != nil {
			return st.Active(), err
		}
		record.Reports[s.opts.NodeName] = report
	}
	if problem != nil || !st.Active() || !s.opts.Leads() {
		return st.Active(), problem
	}
	next, err := s.kind.Next(ctx, record)
	if err != nil || next == st {
		return true, err // what it waits for is in the View
	}
	if err := s.advance(ctx, record, next); err != nil {
		return true, err
	}
	s.opts.Log.Info(next)
	return next.Active(), nil
}

// Fetch gets the secret with a name from another server: the first that has it.
func (s *Server[S, R]) Fetch(ctx context.Context, name string, secret any) error {
	return sealed.Fetch(ctx, s.Client, s.opts.Identity, s.kind.KeyPath, name, secret)
}

// Waiting names the servers that hold up a phase, with what they lack; lacks returns what one does, or nothing.
func Waiting[R any](servers []string, reports map[string]R, lacks func(R) string) (all []string) {
	if len(servers) == 0 {
		return []string{"the servers are not known"}
	}
	for _, name := range servers {
		switch why := lacks(reports[name]); {
		case name == "":
			all = append(all, "a joining server")
		case why != "":
			all = append(all, fmt.Sprintf("server %s: %s", name, why))
		}
	}
	return all
}

// NewID returns a name for a rotation that begins now, such as "20261124-10a393".
func NewID() string {
	random := make([]byte, 3)
	rand.Read(random) // never fails
	return time.Now().UTC().Format("20060102-") + hex.EncodeToString(random)
}
