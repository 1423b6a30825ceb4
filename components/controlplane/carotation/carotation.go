// Package carotation is the component "ca-rotation" of each server: it replaces the CAs of the cluster with new ones, on all
// servers and agents and without restarting one.
//
//	trust   every machine trusts the new CAs, too; this lasts until pods have read the new one
//	sign    the new CAs sign everything, except the API's serving certificate
//	serve   the API serves with a certificate of the new CA
//	drop    every machine forgets the former CAs
//
// A phase begins when every server and every agent has reported that it has done what the phase before asks for; one that
// is missing holds up the rotation. The phase and the servers' reports are in a ConfigMap; an agent's is at its Node
// (components/worker/catrust). The CAs' keys are not: they are in files of each server (base/pki), and travel from server
// to server over TLS, encrypted for a key that the receiving server has just made. Everything can be repeated, so that a
// server that dies goes on where it was.
package carotation

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/base/sealed"
)

const (
	// stepEvery is how often a rotation looks for its next step, and checkEvery how often a server looks without one.
	stepEvery, checkEvery = time.Second, time.Minute
	// stepTimeout bounds one step: requests to the API and to other servers.
	stepTimeout = 30 * time.Second
	// Reload is how often clients of this process look whether their certificate has changed, and close the connections
	// that were opened with another one; upstream looks every five minutes. A rotation waits for it.
	Reload = 10 * time.Second
	// settle is how long a phase lasts at least after the certificates of the machines have changed.
	settle = 2*Reload + 5*time.Second
)

// Options configures the component.
type Options struct {
	// Name of this server.
	Name string
	// Dir has the CAs and certificates (base/pki).
	Dir string
	// URL of this server's API.
	URL string
	// Change calls do, which may change the rotation in Dir, and then brings all certificates in line with it. Nothing
	// else changes Dir meanwhile.
	Change func(do func() error) error
	// Servers returns the names of all servers; one that joins may have none yet.
	Servers func() []string
	// Leads reports whether this server's etcd leads.
	Leads func() bool
	// Identity is how this server calls others.
	Identity sealed.Identity
	// Client acts as client.CARotation.
	Client *rest.Config
	Log    logrus.FieldLogger
}

// Server is the component.
type Server struct {
	opts   Options
	client kubernetes.Interface
	work   lifecycle.Watchdog
	wake   reconcile.Signal // another server, an agent or an administrator has changed something
	said   logging.Once     // of Run
	proven pki.Rotation     // what the API server of this process is known to have loaded; of Run
	called time.Time        // when refresh last called a kubelet; of Run
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
func (s *Server) Name() string { return "ca-rotation" }

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
	defer s.work.Begin("a step of the rotation of the CAs")()
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	active, err := s.step(ctx)
	problem := ""
	if err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) { // another server was faster
		problem = "the rotation of the CAs waits: " + sealed.OneLine(err)
	}
	if s.said.News("", problem) {
		s.opts.Log.Warn(problem)
	}
	if active || err != nil {
		return stepEvery
	}
	return checkEvery
}

// step brings this server in line with the phase, reports what its API server has loaded and, where etcd leads, begins the
// next phase.
func (s *Server) step(ctx context.Context) (active bool, err error) {
	record, err := s.read(ctx)
	if err != nil {
		return false, err
	}
	st := record.State
	problem := s.arrange(ctx, st)
	if st.active() || time.Since(st.Finished) < refreshFor {
		s.refresh(ctx)
	}
	if !st.active() {
		return false, problem
	}
	report := Report{Rotation: s.prove(ctx)}
	if problem != nil {
		report.Problem = sealed.OneLine(problem)
	}
	if report != record.Reports[s.opts.Name] {
		if err := s.publish(ctx, report); err != nil {
			return true, err
		}
		record.Reports[s.opts.Name] = report
	}
	if problem != nil || !s.opts.Leads() {
		return true, problem
	}
	nodes, err := s.nodes(ctx)
	if err != nil {
		return true, err
	}
	next, waiting := st.next(s.opts.Servers(), record.Reports, nodes, time.Now())
	if waiting != "" {
		return true, nil // Status says what for
	}
	if st.Phase == pki.Drop {
		if err := s.cleanse(ctx); err != nil {
			return true, err
		}
	}
	if err := s.advance(ctx, record, next); err != nil {
		return true, err
	}
	s.opts.Log.Infof("rotation %s of the CAs: %s", next.ID, next.described())
	return next.active(), nil
}

// arrange moves this server to the phase, one after the other, or ends its rotation.
func (s *Server) arrange(ctx context.Context, st State) error {
	local, err := pki.ReadRotation(s.opts.Dir)
	if err != nil {
		return err
	}
	if !st.active() {
		if local == nil || local.ID != st.ID || local.Phase != pki.Drop {
			return nil // one that has not begun, or whose state was deleted: the next rotate-ca goes on with it
		}
		return s.opts.Change(func() error { return pki.EndRotation(s.opts.Dir) })
	}
	if local == nil || local.ID != st.ID {
		var next map[string][]byte
		if err := sealed.Fetch(ctx, s.client, s.opts.Identity, KeyPath, st.ID, &next); err != nil {
			return fmt.Errorf("get the new CAs from another server: %w", err)
		}
		if err := s.opts.Change(func() error { return pki.BeginRotation(s.opts.Dir, st.ID, next) }); err != nil {
			return err
		}
		local = &pki.Rotation{ID: st.ID, Phase: pki.Trust}
	}
	for !local.Phase.Reached(st.Phase) {
		if err := s.opts.Change(func() error { return pki.AdvanceRotation(s.opts.Dir) }); err != nil {
			return err
		}
		if local, err = pki.ReadRotation(s.opts.Dir); err != nil {
			return err
		}
		s.opts.Log.Infof("rotation %s of the CAs: this server is in phase %s", local.ID, local.Phase)
	}
	return nil
}

// prove returns the phase of this server whose certificates its API server is known to use: the one before, until it has
// loaded the files.
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
	list, err := s.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
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
// request, at most every five minutes; but it opens connections for exec and port-forward with the CAs that it has read.
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
		if n := &nodes[i]; n.Labels[names.RoleLabel] != "" && (name == "" || n.Name == s.opts.Name) {
			name = n.Name
		}
	}
	if name == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	// Whatever it answers: the request is what counts.
	_, _ = s.client.CoreV1().RESTClient().Get().Resource("nodes").Name(name).SubResource("proxy").Suffix("healthz").DoRaw(ctx)
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
	maps := s.client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
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
