// Package encryption is the component "encryption" of each server: it replaces the key that encrypts Secrets at rest, on
// all servers and without restarting one.
//
//	distribute   every server gets the new key, and reads with it
//	write        every server encrypts with it, and still reads with the old ones
//	rewrite      the server whose etcd leads has each Secret written again
//	drop         every server forgets the old keys
//
// A phase begins when every server of the cluster has reported that its API server has loaded what the phase before
// asks for; one that is missing holds up the rotation. So each server can read what any other writes, at any time. The
// phase and the reports are in a ConfigMap. The keys are not: they are in the file of each server only, and travel from
// server to server over TLS, encrypted for a key that the receiving server has just made. Everything can be repeated, so
// that a server that dies goes on where it was.
package encryption

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/base/sealed"
)

const (
	// stepEvery is how often a rotation looks for its next step, and checkEvery how often a server compares its report.
	stepEvery, checkEvery = time.Second, time.Minute
	// stepTimeout bounds one step: requests to the API and to other servers.
	stepTimeout = 30 * time.Second
)

// Options configures the component.
type Options struct {
	// Name of this server.
	Name string
	// File is the API server's EncryptionConfiguration.
	File string
	// Foreign is why the API server does not use File, if an argument says so; else empty.
	Foreign string
	// Socket is where etcd serves clients, and Prefix begins the keys of all objects in it.
	Socket, Prefix string
	// Servers returns the names of all servers; one that joins may have none yet.
	Servers func() []string
	// Leads reports whether this server's etcd leads.
	Leads func() bool
	// Identity returns the certificate with which this server calls others, and the CAs that they are verified against.
	Identity sealed.Identity
	// Loaded reports whether the API server uses the file with this hash, which is upstream's.
	Loaded func(hash string) bool
	// Client acts as client.Encryption.
	Client *rest.Config
	Log    logrus.FieldLogger
}

// Server is the component.
type Server struct {
	opts   Options
	client kubernetes.Interface
	work   lifecycle.Watchdog
	wake   reconcile.Signal // another server, or an administrator, has changed something
	file   sync.Mutex       // one change of the file at a time
	said   logging.Once     // of Run
	loaded string           // the hash of the last file that the API server has loaded; of Run
	stuck  error            // why a Secret could not be written again; of Run
}

var (
	_ lifecycle.Component = (*Server)(nil)
	_ lifecycle.Health    = (*Server)(nil)
)

// New returns the component; nothing is touched before Run.
func New(o Options) (*Server, error) {
	cs, err := kubernetes.NewForConfig(o.Client)
	if err != nil {
		return nil, err
	}
	return &Server{opts: o, client: cs, wake: reconcile.NewSignal()}, nil
}

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "encryption" }

// Needs implements lifecycle.Component.
func (s *Server) Needs() []string { return []string{"etcd", "apiserver"} }

// RestartPolicy implements lifecycle.Restarter.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartBeside }

// Healthy implements lifecycle.Health: it fails when a step takes too long.
func (s *Server) Healthy(ctx context.Context) error { return s.work.Healthy(ctx) }

// Run implements lifecycle.Component. It is ready at once.
func (s *Server) Run(ctx context.Context, ready func()) error {
	s.work.Reset()
	defer s.follow(ctx)()
	ready()
	reconcile.Loop(ctx, s.wake, 0, func() time.Duration { return s.look(ctx) })
	return nil
}

// look does the next step, and logs why that is not possible.
func (s *Server) look(ctx context.Context) time.Duration {
	defer s.work.Begin("a step of the rotation of encryption keys")()
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	active, err := s.step(ctx)
	problem := ""
	switch {
	case err == nil || ctx.Err() != nil || apierrors.IsConflict(err): // another server was faster
	case active:
		problem = "the rotation of the key for Secrets waits: " + sealed.OneLine(err)
	default:
		problem = "cannot report which key for Secrets this server uses: " + sealed.OneLine(err)
	}
	if s.said.News("", problem) {
		s.opts.Log.Warn(problem)
	}
	if active || err != nil {
		return stepEvery
	}
	return checkEvery
}

// step brings this server's file in line with the phase, reports what its API server has loaded and, where etcd leads,
// begins the next phase.
func (s *Server) step(ctx context.Context) (active bool, err error) {
	record, err := s.read(ctx)
	if err != nil {
		return false, err
	}
	st := record.State
	problem := s.arrange(ctx, st)
	if !st.active() || !s.opts.Leads() {
		s.stuck = nil
	}
	report := s.report(cmp.Or(problem, s.stuck), record.Reports[s.opts.Name])
	if !report.equal(record.Reports[s.opts.Name]) {
		if err := s.publish(ctx, report); err != nil {
			return st.active(), err
		}
		record.Reports[s.opts.Name] = report
	}
	if problem != nil && st.active() {
		return true, problem
	}
	if !st.active() || !s.opts.Leads() {
		return st.active(), nil
	}
	servers := s.opts.Servers()
	remaining := 0
	if st.Phase == phaseRewrite {
		if remaining, s.stuck = s.rewrite(ctx, st.Key); s.stuck != nil {
			return true, s.stuck
		}
	}
	next, waiting := st.next(servers, record.Reports, remaining, time.Now())
	if waiting != "" || next == st {
		return true, nil // Status says what for
	}
	if err := s.advance(ctx, record, next); err != nil {
		return true, err
	}
	if next.active() {
		s.opts.Log.Infof("rotation of the key for Secrets to %s: %s", next.Key, next.Phase.described())
	} else {
		s.opts.Log.Infof("the key for Secrets is %s: all Secrets are encrypted with it, and no server has another one", next.Key)
	}
	return next.active(), nil
}

// arrange changes the file for the phase.
func (s *Server) arrange(ctx context.Context, st State) error {
	if s.opts.Foreign != "" {
		return errors.New(s.opts.Foreign)
	}
	keys, err := pki.ReadEncryption(s.opts.File)
	if err != nil || !st.active() {
		return err
	}
	if !has(keys, st.Key) {
		key, err := s.fetch(ctx, st.Key)
		if err != nil {
			return err
		}
		return s.change(func(keys []pki.EncryptionKey) []pki.EncryptionKey { return st.arrange(with(keys, key)) })
	}
	wanted := st.arrange(keys)
	if slices.Equal(wanted, keys) {
		return nil
	}
	if len(wanted) < len(keys) { // do not take another server's word for what cannot be undone
		counts, err := s.count(ctx)
		if err != nil {
			return err
		}
		for key, n := range counts {
			if key != st.Key {
				return fmt.Errorf("%d Secrets are not encrypted with %s yet, but the rotation wants to drop the other keys", n, st.Key)
			}
		}
	}
	return s.change(st.arrange)
}

// change changes the file, durably, if do changes the keys.
func (s *Server) change(do func([]pki.EncryptionKey) []pki.EncryptionKey) error {
	s.file.Lock()
	defer s.file.Unlock()
	keys, err := pki.ReadEncryption(s.opts.File)
	if err != nil {
		return err
	}
	wanted := do(keys)
	if slices.Equal(wanted, keys) {
		return nil
	}
	if len(wanted) == 0 {
		return errors.New("encryption: no key would be left")
	}
	return pki.WriteEncryption(s.opts.File, wanted)
}

// report returns what this server's API server does: what it did before, until it has loaded the file.
func (s *Server) report(problem error, before Report) Report {
	if problem != nil {
		before.Problem = sealed.OneLine(problem)
		return before
	}
	s.file.Lock()
	keys, err := pki.ReadEncryption(s.opts.File)
	hash, hashErr := encryptionconfig.GetEncryptionConfigHash(s.opts.File)
	s.file.Unlock()
	if err = errors.Join(err, hashErr); err != nil {
		before.Problem = sealed.OneLine(err)
		return before
	}
	if hash != s.loaded {
		if !s.opts.Loaded(hash) {
			before.Problem = ""
			return before
		}
		s.loaded = hash
	}
	r := Report{Writes: keys[0].Name}
	for _, k := range keys {
		r.Reads = append(r.Reads, k.Name)
	}
	return r
}

func has(keys []pki.EncryptionKey, name string) bool {
	return slices.ContainsFunc(keys, func(k pki.EncryptionKey) bool { return k.Name == name })
}

// with adds a key at the end, unless it is there.
func with(keys []pki.EncryptionKey, key pki.EncryptionKey) []pki.EncryptionKey {
	if has(keys, key.Name) {
		return keys
	}
	return append(slices.Clone(keys), key)
}

// keyOf returns the name of the key that encrypts a value in etcd; empty: none, it is in plain text.
func keyOf(value []byte) string {
	rest, ok := bytes.CutPrefix(value, []byte("k8s:enc:"))
	if !ok {
		return ""
	}
	parts := bytes.SplitN(rest, []byte(":"), 4) // PROVIDER:VERSION:KEY:...
	if len(parts) < 4 {
		return "unknown"
	}
	if string(parts[0]) != "secretbox" {
		return string(parts[0]) + ":" + string(parts[2])
	}
	return string(parts[2])
}
