// Package initializers restores the Initializers of Kubernetes 1.7 to 1.13: a new object of a configured type is stored
// but hidden until programs outside the API server, its initializers, have changed it one after the other.
//
// A request passes these parts, in this order:
//
//   - http.go: below all filters of the API server, it reads includeUninitialized, and lets a creator wait.
//   - body.go: in JSON, the state of an object is in metadata.initializers, where it was. Upstream's types no longer have
//     the field, so everywhere else it is an annotation.
//   - admission.go: the admission plugin Initializers fills the list of a new object, and checks each change of it.
//   - relax.go: an initializer may change what is immutable later.
//   - storage.go: everything that is stored passes it. It hides objects from reads, lists and watches; upstream's storage
//     turns the last initializer's write into an ADDED event for them.
//
// configuration.go is the type InitializerConfiguration, a custom resource; sweep.go deletes objects whose initializers
// never came. While there is no configuration and no hidden object, http.go does nothing.
//
// Source of the behaviour: Kubernetes 1.13, plugin/pkg/admission/initialization and
// k8s.io/apiserver/pkg/registry/generic/registry (WaitForInitialized).
package initializers

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/runtime"

	"kubelith.io/kubelith/base/lifecycle"
)

const (
	// creatorPatience is how long a creator waits.
	creatorPatience = 30 * time.Second
	// startPatience is how long new objects wait, at the start of the API server, for the configurations to be read.
	startPatience = 10 * time.Second
	// maxAge is when a hidden object is deleted, and sweepEvery how often one is looked for.
	maxAge     = 24 * time.Hour
	sweepEvery = 10 * time.Minute
)

// Initializers is the state that the parts share: one for each API server.
type Initializers struct {
	log            logrus.FieldLogger
	hooks          *lifecycle.Goroutines
	off            bool
	configurations configurations
	// hiding is set with the first hidden object of any type, and stays.
	hiding atomic.Bool
	// extensions serves custom resources; set before the first request.
	extensions atomic.Pointer[http.Handler]

	mu     sync.Mutex
	stores map[*store]bool // that may have hidden objects
}

// New returns Initializers without configurations. hooks owns what Start leaves running.
func New(log logrus.FieldLogger, hooks *lifecycle.Goroutines) *Initializers {
	i := &Initializers{log: log, hooks: hooks, stores: map[*store]bool{}}
	i.configurations.init()
	return i
}

// TurnOff is for an API server without the admission plugin: no object is hidden, and objects that were become visible.
// It is called before the others.
func (i *Initializers) TurnOff() { i.off = true }

// idle reports whether no request can concern an initializer, except those that request hidden objects.
func (i *Initializers) idle() bool {
	return !i.hiding.Load() && i.configurations.none()
}

// request is the state of one request that the parts share.
type request struct {
	// includes: the request sees hidden objects.
	includes bool

	mu      sync.Mutex
	created *created       // the hidden object that it created
	relaxed runtime.Object // the stored object with which its update is compared; nil: not to be changed
}

// created is a hidden object whose creator waits.
type created struct {
	store         *store
	key           string
	name, version string
}

type requestKey struct{}

func withRequest(ctx context.Context, r *request) context.Context {
	return context.WithValue(ctx, requestKey{}, r)
}

// requestFrom returns nil for requests that began while Initializers were idle, and for those that do not come from a
// client.
func requestFrom(ctx context.Context) *request {
	r, _ := ctx.Value(requestKey{}).(*request)
	return r
}

// includes reports whether hidden objects are shown.
func includes(ctx context.Context) bool {
	r := requestFrom(ctx)
	return r != nil && r.includes
}

// create notes a hidden object that the request has created.
func (r *request) create(c *created) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.created = c
}

func (r *request) setRelaxed(stored runtime.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.relaxed = stored
}

// relax lets the request's update change immutable fields, if storage has requested that.
func (r *request) relax(next runtime.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.relaxed != nil {
		relax(r.relaxed, next)
	}
}

func (r *request) creation() *created {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.created
}
