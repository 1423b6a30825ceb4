package carotation

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/base/rotation"
	"kubelith.io/kubelith/base/sealed"
)

// DefaultGrace is how long the first phase lasts. Kubelets write a new CA into pods within two minutes, and client-go
// reads it again every five.
const DefaultGrace = 10 * time.Minute

// Wanted is how an administrator wants a rotation.
type Wanted struct {
	// Grace is how many seconds the first phase lasts at least.
	Grace int64 `json:"grace"`
	// Force leaves agents behind that are not Ready.
	Force bool `json:"force"`
}

// Handler serves names.CAPath and those below, and passes on other requests. Requests have been authorized.
func (s *Server) Handler(next http.Handler) http.Handler {
	next = s.Server.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != names.CATrustPath || r.Method != http.MethodGet {
			next.ServeHTTP(w, r)
			return
		}
		trusted, err := pki.ReadTrusted(s.opts.Dir)
		sealed.Answer(w, trusted, err)
	})
}

// find returns the new CAs, for another server.
func (s *Server) find(id string) (any, error) {
	next, err := pki.NextCAs(s.opts.Dir, id)
	if err != nil {
		return nil, sealed.Refusal(fmt.Sprintf("server %s: %v", s.opts.NodeName, err))
	}
	return next, nil
}

// View is what names.CAPath shows to administrators.
type View struct {
	// Asked is the server that answers.
	Asked string `json:"asked"`
	// Rotation is the current one, or the last.
	Rotation State `json:"rotation"`
	// Doing is what the machines are doing; empty: no rotation is under way.
	Doing string `json:"doing,omitempty"`
	// Waiting names what holds up the phase, with the reason.
	Waiting string `json:"waiting,omitempty"`
	// Machines are all servers and agents, by name.
	Machines []Machine `json:"machines"`
}

// Machine is a server or an agent.
type Machine struct {
	Name  string `json:"name"` // empty: it joins
	Role  string `json:"role"` // names.RoleServer or names.RoleAgent
	Phase string `json:"phase,omitempty"`
	Lacks string `json:"lacks,omitempty"`
}

func (s *Server) view(ctx context.Context) (any, error) {
	record, err := s.Read(ctx)
	if err != nil {
		return nil, err
	}
	nodes, err := s.nodes(ctx)
	if err != nil {
		return nil, err
	}
	st, servers := record.State, s.opts.Servers()
	v := &View{Asked: s.opts.NodeName, Rotation: st}
	if st.Active() {
		v.Doing, v.Waiting = st.described(), st.waiting(servers, record.Reports, nodes, time.Now())
	}
	add := func(name, role string, r pki.Rotation, lacks string) {
		m := Machine{Name: name, Role: role}
		if st.Active() {
			m.Lacks = lacks
			if r.ID == st.ID {
				m.Phase = string(r.Phase)
			}
		}
		v.Machines = append(v.Machines, m)
	}
	for _, name := range slices.Sorted(slices.Values(servers)) {
		r := record.Reports[name]
		add(name, names.RoleServer, r.Rotation, st.lacks(r))
	}
	slices.SortFunc(nodes, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	for i := range nodes {
		if n := &nodes[i]; n.Labels[names.RoleLabel] == names.RoleAgent {
			add(n.Name, names.RoleAgent, pki.ParseReport(n.Annotations[names.CAAnnotation]), st.nodeLacks(n))
		}
	}
	return v, nil
}

// begin starts a rotation; one that is under way goes on, as it is wanted now. The CAs are in this server's files
// before others know of them.
func (s *Server) begin(body []byte) (func(record) (State, error), error) {
	var wanted Wanted
	if err := json.Unmarshal(body, &wanted); err != nil || wanted.Grace < 0 {
		return nil, sealed.Refusal("the request cannot be read: use kubelith certificate rotate-ca of this release")
	}
	return func(r record) (State, error) {
		next := r.State
		if !next.Active() || s.lost(r) {
			id, phase, err := s.prepare()
			if err != nil {
				return State{}, err
			}
			now := time.Now().UTC()
			next = State{Rotation: pki.Rotation{ID: id, Phase: phase}, Started: now.Truncate(time.Second), Since: now}
		}
		next.Grace, next.Force = wanted.Grace, wanted.Force
		return next, nil
	}, nil
}

// prepare generates the new CAs on this server, unless it has those of a rotation whose state was lost.
func (s *Server) prepare() (id string, phase pki.Phase, err error) {
	local, err := pki.ReadRotation(s.opts.Dir)
	if err != nil {
		return "", "", err
	}
	if local != nil {
		return local.ID, local.Phase, nil
	}
	id = rotation.NewID()
	next, err := pki.NewCAs(id, time.Now())
	if err != nil {
		return "", "", err
	}
	return id, pki.Trust, s.opts.Change(func() error { return pki.BeginRotation(s.opts.Dir, id, next) })
}

// lost reports whether the new CAs are gone with the only server that had them. Nothing is signed with them yet.
func (s *Server) lost(r record) bool {
	if r.State.Phase != pki.Trust {
		return false
	}
	if _, err := pki.NextCAs(s.opts.Dir, r.State.ID); err == nil {
		return false
	}
	return !slices.ContainsFunc(s.opts.Servers(), func(name string) bool { return r.Reports[name].ID == r.State.ID })
}
