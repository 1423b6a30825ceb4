// Package carotation is the component "ca-rotation" of each server: it replaces the CAs of the cluster with new ones,
// on all servers and agents and without restarting one, in phases:
//
//	trust   every machine trusts the new CAs, too; this lasts until pods have read the new one
//	sign    the new CAs sign everything, except the API's serving certificate
//	serve   the API serves with a certificate of the new CA
//	drop    every machine forgets the former CAs
//
// It is a rotation (base/rotation) for which agents report, too, at their Nodes (components/worker/catrust). A server
// has done what a phase requires when its API server has loaded the files (base/pki).
package carotation

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certutil "k8s.io/client-go/util/cert"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/base/rotation"
	"kubelith.io/kubelith/base/sealed"
)

const (
	// Reload is how often clients of this process look whether their certificate has changed, and close the connections
	// that were opened with another one; upstream looks every five minutes. A rotation waits for it.
	Reload = 10 * time.Second
	// settle is how long a phase lasts at least after the certificates of the machines have changed.
	settle = 2*Reload + 5*time.Second
)

// Options configures the component.
type Options struct {
	rotation.Options
	// Dir has the CAs and certificates (base/pki).
	Dir string
	// URL of this server's API.
	URL string
	// Change calls do, which may change the rotation in Dir, and then brings all certificates in line with it. Nothing
	// else changes Dir meanwhile.
	Change func(do func() error) error
}

type record = rotation.Record[State, Report]

// Server is the component.
type Server struct {
	*rotation.Server[State, Report]
	opts   Options
	proven pki.Rotation // what the API server of this process is known to have loaded; of Run
	called time.Time    // when refresh last called a kubelet; of Run

	at         pki.Rotation // the phase that this server knows, and
	from       time.Time    // since when by its own clock; of Run
	unfinished bool         // the files could not be brought in line with the phase yet; of Run
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
		What: "the CAs", Command: "kubelith certificate rotate-ca", ConfigMap: names.CARotation, Path: names.CAPath, KeyPath: names.CAKeyPath,
		Arrange: s.arrange, Report: s.report, Next: s.next, Begin: s.begin, View: s.view, Find: s.find,
	})
	return s, err
}

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "ca-rotation" }

// arrange moves this server to the phase, one after the other, or ends its rotation.
func (s *Server) arrange(ctx context.Context, st State) error {
	if st.Rotation != s.at {
		s.at, s.from = st.Rotation, time.Now()
	}
	if st.Active() || time.Since(st.Finished) < refreshFor {
		defer s.refresh(ctx)
	}
	local, err := pki.ReadRotation(s.opts.Dir)
	if err != nil {
		return err
	}
	if !st.Active() {
		if local == nil || local.ID != st.ID || local.Phase != pki.Drop {
			return nil // one that has not begun, or whose state was deleted: the next rotate-ca goes on with it
		}
		return s.change(func() error { return pki.EndRotation(s.opts.Dir) })
	}
	if local != nil && local.ID != st.ID && local.Phase == pki.Drop {
		// The former rotation is complete, and this server was ended before it had learned that.
		if err := s.change(func() error { return pki.EndRotation(s.opts.Dir) }); err != nil {
			return err
		}
		local = nil
	}
	if local == nil || local.ID != st.ID {
		var next map[string][]byte
		if err := s.Fetch(ctx, st.ID, &next); err != nil {
			return fmt.Errorf("get the new CAs from another server: %w", err)
		}
		if err := s.change(func() error { return pki.BeginRotation(s.opts.Dir, st.ID, next) }); err != nil {
			return err
		}
		local = &pki.Rotation{ID: st.ID, Phase: pki.Trust}
	}
	if s.unfinished {
		if err := s.change(func() error { return nil }); err != nil {
			return err
		}
	}
	for !local.Phase.Reached(st.Phase) {
		if err := s.change(func() error { return pki.AdvanceRotation(s.opts.Dir) }); err != nil {
			return err
		}
		if local, err = pki.ReadRotation(s.opts.Dir); err != nil {
			return err
		}
		s.opts.Log.Infof("rotation %s of the CAs: this server is in phase %s", local.ID, local.Phase)
	}
	return nil
}

// change is Options.Change, and keeps in mind whether it has to be done again.
func (s *Server) change(do func() error) error {
	err := s.opts.Change(do)
	s.unfinished = err != nil
	return err
}

// report returns what this server has done for the rotation that is under way.
func (s *Server) report(ctx context.Context, r record, problem error) Report {
	if !r.State.Active() {
		return r.Reports[s.opts.NodeName]
	}
	now := Report{Rotation: s.prove(ctx)}
	if problem != nil {
		now.Problem = sealed.OneLine(problem)
	}
	return now
}

// next returns the State that follows. Before the end it removes the former CAs from where upstream publishes them.
func (s *Server) next(ctx context.Context, r record) (State, error) {
	nodes, err := s.nodes(ctx)
	if err != nil {
		return r.State, err
	}
	now := time.Now()
	// How long the phase has lasted is this server's own measure: the clock of the one that began it may be another.
	next, waiting := r.State.next(s.opts.Servers(), r.Reports, nodes, r.State.Since.Add(now.Sub(s.from)))
	if waiting == "" {
		next.Since = now.UTC()
		if next.Phase == done {
			next.Finished = now.UTC().Truncate(time.Second)
		}
	}
	if next.Phase == done {
		err = s.cleanse(ctx)
	}
	return next, err
}

// prove returns the phase of this server whose certificates its API server is known to use: the one before, until it
// has loaded the files.
func (s *Server) prove(ctx context.Context) pki.Rotation {
	local, err := pki.ReadRotation(s.opts.Dir)
	if err != nil || local == nil {
		return s.proven
	}
	if *local != s.proven && s.loaded(ctx, local.Phase) {
		s.proven = *local
	}
	return s.proven
}

// nodes returns all Nodes, from the watch cache.
func (s *Server) nodes(ctx context.Context) ([]corev1.Node, error) {
	list, err := s.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

const (
	// refreshEvery is how often refresh calls a kubelet, for refreshFor after the end of a rotation.
	refreshEvery, refreshFor = 30 * time.Second, 10 * time.Minute
	// refreshTimeout bounds the call.
	refreshTimeout = 3 * time.Second
)

// refresh calls a kubelet through the API. The API server's client for kubelets reads their CAs again when it sends a
// request, at most every five minutes; but it opens connections for exec and port-forward with the CAs that it has
// read.
func (s *Server) refresh(ctx context.Context) {
	if time.Since(s.called) < refreshEvery {
		return
	}
	s.called = time.Now()
	nodes, err := s.nodes(ctx)
	if err != nil {
		return
	}
	name := ""
	for i := range nodes {
		if n := &nodes[i]; n.Labels[names.RoleLabel] != "" && (name == "" || n.Name == s.opts.NodeName) {
			name = n.Name
		}
	}
	if name == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	// Whatever it answers: the request is what counts.
	_, _ = s.Client.CoreV1().RESTClient().Get().Resource("nodes").Name(name).SubResource("proxy").Suffix("healthz").DoRaw(ctx)
}

// authentication is where API servers publish their CAs for aggregated ones, and caKeys are the keys with them.
const authentication = "extension-apiserver-authentication"

func caKeys() []string { return []string{"client-ca-file", "requestheader-client-ca-file"} }

// cleanse removes the former CAs from what API servers publish for aggregated ones: upstream only adds to it.
func (s *Server) cleanse(ctx context.Context) error {
	former, err := pki.FormerCAs(s.opts.Dir)
	if err != nil {
		return err
	}
	maps := s.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	cm, err := maps.Get(ctx, authentication, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	changed := false
	for _, key := range caKeys() {
		text, dropped, err := without(cm.Data[key], former)
		if err != nil {
			return fmt.Errorf("ConfigMap %s/%s: %s: %w", cm.Namespace, cm.Name, key, err)
		}
		if dropped {
			cm.Data[key], changed = text, true
		}
	}
	if !changed {
		return nil
	}
	_, err = maps.Update(ctx, cm, metav1.UpdateOptions{})
	return err
}

// without removes certificates from a bundle.
func without(bundle string, former []*x509.Certificate) (text string, dropped bool, err error) {
	if bundle == "" {
		return "", false, nil
	}
	all, err := certutil.ParseCertsPEM([]byte(bundle))
	if err != nil {
		return "", false, err
	}
	kept := slices.DeleteFunc(slices.Clone(all), func(c *x509.Certificate) bool { return slices.ContainsFunc(former, c.Equal) })
	if len(kept) == 0 {
		return "", false, errors.New("no CA would be left")
	}
	var out []byte
	for _, c := range kept {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return string(out), len(kept) < len(all), nil
}
