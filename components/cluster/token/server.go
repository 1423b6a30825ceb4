// Package token is the component that publishes what a machine reads before and after it trusts the server, and that
// keeps a valid token in a file, if there is to be one. base/jointoken has the tokens.
package token

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	certutil "k8s.io/client-go/util/cert"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstrap "k8s.io/cluster-bootstrap/token/util"

	"kubelith.io/kubelith/base/atomicfile"
	"kubelith.io/kubelith/base/jointoken"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/base/watchdir"
)

// Options of the component.
type Options struct {
	// File receives the token, mode 0600.
	File string
	// Reusable enables this token, with which any number of machines can join. Without it there is no file, and
	// machines join with tokens that an operator creates.
	Reusable bool
	// CA returns the certificates of the CAs of the API, in PEM: the first has signed what it serves with.
	CA func() ([]byte, error)
	// CADir is the directory whose changes may change what CA returns.
	CADir string
	// Server is where agents reach the API: https://ADDRESS:PORT.
	Server string
	// Cluster is what agents read after the server has admitted them.
	Cluster Document
	// Client acts as the component.
	Client *rest.Config
	// Informers returns the factory that the process shares; it is called when the apiserver is ready.
	Informers func() informers.SharedInformerFactory
	// Log receives how to join, without the secret, and what is retried.
	Log logrus.FieldLogger
}

// Document is one key of a ConfigMap.
type Document struct{ Namespace, Name, Key, Value string }

// Server is the component.
type Server struct {
	opts   Options
	client kubernetes.Interface
	work   *lifecycle.Watchdog
	made   jointoken.Token // of one run: the token in the file, once it exists in the cluster; zero before, and without one

	mu        sync.Mutex
	published map[string]map[string]string // the wanted content of our ConfigMaps, by namespace/name
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
	return newServer(o, cs), nil
}

func newServer(o Options, cs kubernetes.Interface) *Server {
	return &Server{opts: o, client: cs, work: &lifecycle.Watchdog{}, published: map[string]map[string]string{}}
}

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "token" }

// Needs implements lifecycle.Component.
func (s *Server) Needs() []string { return []string{"apiserver"} }

// RestartPolicy implements lifecycle.Restarter.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartBeside }

const (
	// ttl is how long a token in the file is valid, and renewBefore how long it is still valid, at least, when it is
	// read.
	ttl         = 24 * time.Hour
	renewBefore = time.Hour
	// checkEvery is how often everything is checked without an event; retry is the time after a failure.
	checkEvery = 10 * time.Minute
	retry      = 100 * time.Millisecond
	// settle is how long the CAs' files must be quiet before they are read again.
	settle    = 500 * time.Millisecond
	retryLate = 2 * time.Second
)

// Healthy implements lifecycle.Health: nothing takes too long.
func (s *Server) Healthy(ctx context.Context) error { return s.work.Healthy(ctx) }

// Run implements lifecycle.Component. It is ready when an agent can join with the token in the file, or with one that
// an operator creates.
func (s *Server) Run(ctx context.Context, ready func()) error {
	s.work.Reset()
	run := newServer(s.opts, s.client) // its own: an earlier run may have been abandoned
	run.work = s.work
	return run.run(ctx, ready)
}

func (s *Server) run(ctx context.Context, ready func()) error {
	changed, stop, err := s.watch(ctx)
	if err != nil {
		return err
	}
	defer stop()
	files := watchdir.New(watchdir.Options{Settle: settle, Poll: checkEvery, Log: s.opts.Log})
	defer files.Close()
	files.Add(s.opts.CADir)
	ended := make(chan struct{})
	var following sync.WaitGroup
	defer func() { close(ended); following.Wait() }()
	following.Go(func() {
		for {
			select {
			case <-files.Changed():
				changed.Send()
			case <-ended:
				return
			}
		}
	})
	announced := false
	reconcile.Loop(ctx, changed, 0, func() time.Duration {
		done := s.work.Begin("publishing the join token")
		err := s.keep(ctx)
		done()
		switch {
		case ctx.Err() != nil:
			return 0
		case err == nil:
			if !announced {
				s.opts.Log.Infof("to join a machine, create a token here: %s; then run there, with that file: %s", jointoken.MakeCommand, jointoken.Command(s.opts.Server))
				announced = true
				ready()
			}
			return checkEvery
		case apierrors.IsNotFound(err): // of a new cluster: the apiserver is just creating the namespaces
			return retry
		default:
			s.opts.Log.Warnf("cannot publish what machines need to join, retrying in %s: %v", retryLate, err)
			return retryLate
		}
	})
	return nil
}

// watch returns a channel that signals deletions and changes of our objects by others, and a function that ends it.
func (s *Server) watch(ctx context.Context) (reconcile.Signal, func(), error) {
	changed := reconcile.NewSignal()
	token := metav1.NamespaceSystem + "/" + bootstrapapi.BootstrapTokenSecretPrefix
	handler := cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, object any) {
			if c, ok := object.(*corev1.ConfigMap); ok && s.differs(c) {
				changed.Send()
			}
		},
		DeleteFunc: func(object any) {
			key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object)
			if err == nil && (s.concerns(key) || strings.HasPrefix(key, token)) {
				changed.Send()
			}
		},
	}
	factory := s.opts.Informers()
	var undo []func()
	var synced []cache.DoneChecker
	stop := func() {
		for _, f := range undo {
			f()
		}
	}
	for _, informer := range []cache.SharedIndexInformer{factory.Core().V1().Secrets().Informer(), factory.Core().V1().ConfigMaps().Informer()} {
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			stop()
			return nil, nil, err
		}
		synced = append(synced, registration.HasSyncedChecker())
		undo = append(undo, func() { _ = informer.RemoveEventHandler(registration) }) // fails only when it is already gone
	}
	factory.Start(ctx.Done())
	cache.WaitFor(ctx, "", synced...)
	return changed, stop, nil
}

// publish writes one of our ConfigMaps, and records what it must contain from now on.
func (s *Server) publish(ctx context.Context, namespace, name string, data map[string]string) error {
	s.mu.Lock()
	s.published[namespace+"/"+name] = data
	s.mu.Unlock()
	return publish(ctx, s.client, namespace, name, data)
}

func (s *Server) concerns(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.published[key] != nil
}

// differs reports whether our part of a ConfigMap was changed. Machines that read it would follow the change.
func (s *Server) differs(c *corev1.ConfigMap) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, value := range s.published[c.Namespace+"/"+c.Name] {
		if c.Data[key] != value {
			return true
		}
	}
	return false
}

// keep brings the file, the token's Secret and the published documents into the wanted state.
func (s *Server) keep(ctx context.Context) error {
	ca, err := s.opts.CA()
	if err != nil {
		return err
	}
	certs, err := certutil.ParseCertsPEM(ca)
	if err != nil {
		return fmt.Errorf("read the CAs: %w", err)
	}
	if err := s.publish(ctx, s.opts.Cluster.Namespace, s.opts.Cluster.Name, map[string]string{s.opts.Cluster.Key: s.opts.Cluster.Value}); err != nil {
		return err
	}
	if s.opts.Reusable {
		err = s.ensure(ctx, jointoken.SPKIHash(certs[0]))
	} else {
		err = s.retire(ctx)
	}
	if err != nil {
		return err
	}
	kubeconfig, err := discovery(s.opts.Server, ca)
	if err != nil {
		return err
	}
	info, err := clusterInfo(kubeconfig, s.made)
	if err != nil {
		return err
	}
	if err := s.publish(ctx, metav1.NamespacePublic, bootstrapapi.ConfigMapClusterInfo, info); err != nil || !s.opts.Reusable {
		return err
	}
	// Last: a machine that reads the file can join at once.
	text := s.made.String() + "\n"
	if old, err := os.ReadFile(s.opts.File); err == nil && string(old) == text {
		return nil
	}
	return atomicfile.Write(s.opts.File, []byte(text))
}

// ensure provides a valid token: the existing one, or a new one.
func (s *Server) ensure(ctx context.Context, caHash string) error {
	t := s.made
	if t == (jointoken.Token{}) {
		text, err := os.ReadFile(s.opts.File)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		t, _ = jointoken.Parse(string(text)) // an unreadable one, after a crash, is replaced
	}
	if t.CAHash == caHash { // otherwise the file belongs to a cluster with another CA
		secret, err := s.client.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, bootstrap.BootstrapTokenSecretName(t.ID), metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("read the token %s: %w", t.ID, err)
		}
		if err == nil && secret.DeletionTimestamp == nil && t.Valid(secret, time.Now(), renewBefore) {
			s.made = t
			return nil
		}
	}
	t, err := jointoken.Create(ctx, s.client, caHash, jointoken.Spec{TTL: ttl, Description: "of kubelith server, in " + s.opts.File})
	if err == nil {
		s.made = t
	}
	return err
}

// retire expires the token in the file, which an earlier start created, and removes the file.
func (s *Server) retire(ctx context.Context) error {
	text, err := os.ReadFile(s.opts.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if t, err := jointoken.Parse(string(text)); err == nil {
		if err := jointoken.Expire(ctx, s.client, t.ID, time.Now()); err != nil {
			return err
		}
	}
	return os.Remove(s.opts.File)
}

// Spend is jointoken.Spend with the component's client.
func (s *Server) Spend(ctx context.Context, id, machine string) (refusal string, err error) {
	return jointoken.Spend(ctx, s.client, id, machine)
}
