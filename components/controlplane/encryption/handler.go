package encryption

import (
	"context"
	"fmt"
	"slices"
	"time"

	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/base/rotation"
	"kubelith.io/kubelith/base/sealed"
)

// View is what names.EncryptionPath shows to administrators.
type View struct {
	// Asked is the server that answers.
	Asked string `json:"asked"`
	// Rotation is the current one, or the last.
	Rotation State `json:"rotation"`
	// Doing is what the servers are doing; empty: no rotation is under way.
	Doing string `json:"doing,omitempty"`
	// Waiting names the servers that hold up the phase, with the reason.
	Waiting string `json:"waiting,omitempty"`
	// Secrets is how many Secrets each key encrypts; the empty one stands for plain text.
	Secrets map[string]int `json:"secrets"`
	// Servers are all, by name.
	Servers []ServerView `json:"servers"`
}

// ServerView is one server.
type ServerView struct {
	Name string `json:"name"` // empty: it joins
	Report
}

func (s *Server) view(ctx context.Context) (any, error) {
	record, err := s.Read(ctx)
	if err != nil {
		return nil, err
	}
	counts, err := s.count(ctx)
	if err != nil {
		return nil, err
	}
	v := &View{Asked: s.opts.NodeName, Rotation: record.State, Secrets: counts}
	servers := s.opts.Servers()
	if record.State.Active() {
		v.Doing, v.Waiting = record.State.Phase.described(), record.State.waiting(servers, record.Reports)
	}
	for _, name := range slices.Sorted(slices.Values(servers)) {
		v.Servers = append(v.Servers, ServerView{Name: name, Report: record.Reports[name]})
	}
	return v, nil
}

// begin starts a rotation. The key is in this server's file before others know of it.
func (s *Server) begin([]byte) (func(record) (State, error), error) {
	if s.opts.Foreign != "" {
		return nil, sealed.Refusal(s.opts.Foreign)
	}
	if _, err := pki.ReadEncryption(s.opts.File); err != nil {
		return nil, sealed.Refusal(err.Error())
	}
	key := pki.NewEncryptionKey("key-" + rotation.NewID())
	return func(r record) (State, error) {
		if r.State.Active() && !s.lost(r) {
			return r.State, nil
		}
		for _, name := range s.opts.Servers() {
			if why := r.Reports[name].Problem; why != "" {
				return State{}, sealed.Refusal(fmt.Sprintf("server %s cannot take a new key: %s", name, why))
			}
		}
		next := State{Key: key.Name, Phase: phaseDistribute, Started: time.Now().UTC().Truncate(time.Second)}
		return next, s.change(func(keys []pki.EncryptionKey) []pki.EncryptionKey { return with(keys, key) })
	}, nil
}

// lost reports whether the new key is gone with the only server that had it. Nothing is encrypted with it yet.
func (s *Server) lost(r record) bool {
	if r.State.Phase != phaseDistribute {
		return false
	}
	keys, err := pki.ReadEncryption(s.opts.File)
	if err != nil || has(keys, r.State.Key) {
		return false
	}
	return !slices.ContainsFunc(s.opts.Servers(), func(name string) bool { return slices.Contains(r.Reports[name].Reads, r.State.Key) })
}

// find returns a key of this server, for another one.
func (s *Server) find(name string) (any, error) {
	keys, err := pki.ReadEncryption(s.opts.File)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(keys, func(k pki.EncryptionKey) bool { return k.Name == name })
	if i < 0 {
		return nil, sealed.Refusal(fmt.Sprintf("server %s does not have the key %s", s.opts.NodeName, name))
	}
	return keys[i], nil
}
