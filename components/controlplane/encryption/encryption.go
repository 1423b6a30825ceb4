// Package encryption is the component "encryption" of each server: it replaces the key that encrypts Secrets at rest,
// on all servers and without restarting one, in the phases of a rotation (base/rotation).
//
//	distribute   every server gets the new key, and reads with it
//	write        every server encrypts with it, and still reads with the old ones
//	rewrite      the server whose etcd leads has each Secret written again
//	drop         every server forgets the old keys
//
// A server has done what a phase requires when its API server has loaded the file. So each server can read what any
// other writes, at any time.
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

	"k8s.io/apiserver/pkg/server/options/encryptionconfig"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/base/rotation"
	"kubelith.io/kubelith/base/sealed"
)

// Options configures the component.
type Options struct {
	rotation.Options
	// File is the API server's EncryptionConfiguration.
	File string
	// Foreign is why the API server does not use File, if an argument prevents it; else empty.
	Foreign string
	// Socket is where etcd serves clients, and Prefix begins the keys of all objects in it.
	Socket, Prefix string
	// Loaded reports whether the API server uses the file with this hash, which is upstream's.
	Loaded func(hash string) bool
}

type record = rotation.Record[State, Report]

// Server is the component.
type Server struct {
	*rotation.Server[State, Report]
	opts   Options
	file   sync.Mutex // one change of the file at a time
	loaded string     // the hash of the last file that the API server has loaded; of Run
	stuck  error      // why a Secret could not be written again; of Run
}

var (
	_ lifecycle.Component = (*Server)(nil)
	_ lifecycle.Health    = (*Server)(nil)
	_ lifecycle.Restarter = (*Server)(nil)
)

// New returns the component; nothing is touched before Run.
func New(o Options) (*Server, error) {
	s := &Server{opts: o}
	var err error
	s.Server, err = rotation.New(o.Options, rotation.Kind[State, Report]{
		What: "the key for Secrets", Command: "kubelith encryption rotate",
		ConfigMap: names.EncryptionState, Path: names.EncryptionPath, KeyPath: names.EncryptionKeyPath,
		Arrange: s.arrange, Report: s.report, Next: s.next, Begin: s.begin, View: s.view, Find: s.find,
	})
	return s, err
}

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "encryption" }

// arrange changes the file for the phase.
func (s *Server) arrange(ctx context.Context, st State) error {
	if !st.Active() {
		return nil
	}
	if s.opts.Foreign != "" {
		return errors.New(s.opts.Foreign)
	}
	keys, err := pki.ReadEncryption(s.opts.File)
	if err != nil {
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

// fetch gets a key from another server.
func (s *Server) fetch(ctx context.Context, key string) (got pki.EncryptionKey, err error) {
	err = s.Fetch(ctx, key, &got)
	if err == nil && (got.Name != key || got.Secret == "") {
		err = errors.New("a server sent another key")
	}
	if err != nil {
		return pki.EncryptionKey{}, fmt.Errorf("get the new key %s from another server: %w", key, err)
	}
	return got, nil
}

// next returns the State that follows, after it has had Secrets written again in the phase for that.
func (s *Server) next(ctx context.Context, r record) (next State, err error) {
	servers, remaining := s.opts.Servers(), 0
	if r.State.Phase == phaseRewrite {
		if remaining, s.stuck = s.rewrite(ctx, r.State.Key); s.stuck != nil {
			return r.State, s.stuck
		}
	}
	next, _ = r.State.next(servers, r.Reports, remaining, time.Now())
	return next, nil
}

// report returns what this server's API server does: what it did before, until it has loaded the file.
func (s *Server) report(_ context.Context, r record, problem error) Report {
	if !r.State.Active() || !s.opts.Leads() {
		s.stuck = nil
	}
	if s.opts.Foreign != "" {
		problem = errors.New(s.opts.Foreign)
	}
	before := r.Reports[s.opts.NodeName]
	if problem = cmp.Or(problem, s.stuck); problem != nil {
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
	now := Report{Writes: keys[0].Name}
	for _, k := range keys {
		now.Reads = append(now.Reads, k.Name)
	}
	return now
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
