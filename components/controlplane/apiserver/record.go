package apiserver

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/utils/lru"

	"kubelith.io/kubelith/trace/record"
)

// The flight recorder's view of the API. A request that writes carries a pending record in its context, from the first
// filter until the answer is written. On its way these add to it:
//
//	handler chain (here)            who, what, the answer, and upstream's latency trackers
//	admission (recordadmission.go)  each plugin, webhook and plugin process
//	storage (recordstorage.go)      the objects that were written, before and after, and etcd's part
//
// Reads do not carry one.

// flight is the flight recorder of requests. A nil one records nothing.
type flight struct {
	to    record.Sink
	clock record.Clock
	// traces has the annotation traceparent of objects by UID, for their children. See recordtrace.go.
	traces *lru.Cache
}

func newFlight(to *record.Store) *flight {
	if to == nil {
		return nil
	}
	return &flight{to: to, clock: to.Clock(), traces: lru.New(maxTraces)}
}

// pending is the record of a request that is served.
type pending struct {
	*flight
	began  time.Time
	agent  string
	parent string // the header traceparent

	mu       sync.Mutex
	done     bool // it is recorded; what comes later is too late
	skip     bool
	info     *apirequest.RequestInfo
	user     string
	trackers *apirequest.LatencyTrackers
	denied   bool      // by authorization
	tried    bool      // admission has seen the object
	entered  time.Time // when the handler began to read the request; zero: it has the object
	object   record.Object
	steps    []record.Step
	small    time.Duration // the sum of admission plugins that took too little for a step
	writes   []write
}

// write is an object that a request wrote.
type write struct {
	object  record.Object
	version string
	spec    bool
	moments []record.Record
}

type pendingKey struct{}

// pendingFrom returns the record of a request that is to be recorded, or nil.
func pendingFrom(ctx context.Context) *pending {
	p, _ := ctx.Value(pendingKey{}).(*pending)
	if p == nil || p.skipped() {
		return nil
	}
	return p
}

func (p *pending) skipped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.skip || p.done
}

// wrap wraps the handler chain of all requests.
func (r *flight) wrap(build func(http.Handler, *genericapiserver.Config) http.Handler) func(http.Handler, *genericapiserver.Config) http.Handler {
	if r == nil {
		return build
	}
	return func(api http.Handler, c *genericapiserver.Config) http.Handler {
		chain := build(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if isWrite(req) {
				if p, _ := req.Context().Value(pendingKey{}).(*pending); p != nil {
					p.authorized(req.Context())
				}
			}
			api.ServeHTTP(w, req)
		}), c)
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if !isWrite(req) || isNoise(req.URL.Path) || req.URL.Query().Has("dryRun") {
				chain.ServeHTTP(w, req)
				return
			}
			p := &pending{flight: r, began: time.Now(), parent: req.Header.Get(traceHeader)}
			p.agent, _, _ = strings.Cut(req.UserAgent(), " ")
			watched, seen := watchAnswer(w)
			defer func() {
				code, body := seen.result()
				if p.unnamed(code) {
					p.name(w, req)
				}
				p.end(c.RequestInfoResolver, req, code, body)
			}()
			chain.ServeHTTP(watched, req.WithContext(context.WithValue(req.Context(), pendingKey{}, p)))
		})
	}
}

func isWrite(req *http.Request) bool {
	return req.Method != http.MethodGet && req.Method != http.MethodHead && req.Method != http.MethodOptions
}

// isNoise reports whether nothing below a path is ever recorded: access reviews, and Leases.
func isNoise(path string) bool {
	return strings.HasPrefix(path, "/apis/coordination.k8s.io/") || strings.HasPrefix(path, "/apis/authorization.k8s.io/") ||
		strings.HasPrefix(path, "/apis/authentication.k8s.io/") || strings.HasPrefix(path, "/apis/events.k8s.io/") ||
		strings.HasPrefix(path, "/apis/discovery.k8s.io/") || !strings.HasPrefix(path, "/api")
}

var (
	writeVerbs = sets.New("create", "update", "patch", "delete", "deletecollection")
	// noTraces are resources whose requests do not explain an object's history. Events are recorded from storage.
	noTraces = sets.New("events", "endpoints", "endpointslices", "leases", "ipaddresses", "csistoragecapacities", "componentstatuses")
	// connections are subresources that do not write.
	connections = sets.New("exec", "attach", "portforward", "proxy", "log", "token")
)

func recorded(info *apirequest.RequestInfo) bool {
	return info.IsResourceRequest && writeVerbs.Has(info.Verb) && !noTraces.Has(info.Resource) && !connections.Has(info.Subresource)
}

// authorized is called when all filters have let the request pass.
func (p *pending) authorized(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.identify(ctx)
	p.entered = time.Now()
}

// decoded is called when the handler begins to work with the object: upstream does not measure how long it reads it.
func (p *pending) decoded() {
	if !p.entered.IsZero() {
		p.addStep("decode", "", p.entered, time.Since(p.entered), "")
		p.entered = time.Time{}
	}
}

// identify takes from the context who does what.
func (p *pending) identify(ctx context.Context) {
	info, ok := apirequest.RequestInfoFrom(ctx)
	if !ok || !recorded(info) {
		p.skip = true
		return
	}
	p.info = info
	if caller, ok := apirequest.UserFrom(ctx); ok {
		p.user = caller.GetName()
	}
	p.trackers, _ = apirequest.LatencyTrackersFrom(ctx)
}

// authorizer notes who was denied: such a request does not get to its handler.
func (r *flight) authorizer(all authorizer.Authorizer) authorizer.Authorizer {
	if r == nil {
		return all
	}
	return &notingAuthorizer{all}
}

type notingAuthorizer struct{ authorizer.Authorizer }

// Authorize implements authorizer.Authorizer.
func (n *notingAuthorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := n.Authorizer.Authorize(ctx, a)
	if decision == authorizer.DecisionAllow {
		return decision, reason, err
	}
	if p, _ := ctx.Value(pendingKey{}).(*pending); p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		// Admission and impersonation ask about other things in the same request.
		if info, ok := apirequest.RequestInfoFrom(ctx); ok && p.info == nil &&
			a.GetVerb() == info.Verb && a.GetResource() == info.Resource && a.GetName() == info.Name {
			p.identify(ctx)
			p.denied = true
		}
	}
	return decision, reason, err
}

// end records the request.
func (p *pending) end(resolver apirequest.RequestInfoResolver, req *http.Request, code int, body []byte) {
	over := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = true
	if p.skip || len(p.writes) == 0 && code < http.StatusBadRequest {
		return
	}
	if code == http.StatusUnauthorized || p.user == user.Anonymous {
		return // unauthenticated requests must not push out what others did
	}
	if p.info == nil { // refused before it was authorized
		info, err := resolver.NewRequestInfo(req)
		if err != nil || !recorded(info) {
			return
		}
		p.info = info
	}
	if code >= http.StatusBadRequest {
		p.refused(over, code, body)
		return
	}
	for i := range p.writes {
		w := &p.writes[i]
		r := p.request(over, code)
		r.Object, r.Version, r.Spec = w.object.Ref, w.version, w.spec
		if p.info.Subresource == "eviction" {
			r.Name, r.Message = "delete", "eviction"
		}
		if len(p.writes) == 1 {
			r.Steps = p.allSteps(over)
		}
		p.to.Describe(w.object)
		p.to.Add(r)
		for _, m := range w.moments {
			m.Object = w.object.Ref
			m.Actor = cmp.Or(m.Actor, p.user)
			p.to.Add(m)
		}
	}
}

// request returns the record without an object.
func (p *pending) request(over time.Time, code int) record.Record {
	name := p.info.Verb
	if name == "deletecollection" {
		name = "delete"
	}
	if p.info.Subresource != "" {
		name += " " + p.info.Subresource
	}
	return record.Record{
		Stage: record.Request, Name: name, Start: p.clock.At(p.began), Duration: over.Sub(p.began),
		Actor: p.user, Agent: p.agent, Code: code,
	}
}

// refused records a request that failed, also of an object that was never created.
func (p *pending) refused(over time.Time, code int, body []byte) {
	r := p.request(over, code)
	o := p.object
	if o.Resource == "" {
		o.Ref = record.Ref{
			Resource:  schema.GroupResource{Group: p.info.APIGroup, Resource: p.info.Resource}.String(),
			Namespace: p.info.Namespace, Name: p.info.Name,
		}
	}
	secret := p.info.Resource == "secrets"
	r.Object, r.Error = o.Ref, refusal(code, body, secret && !p.denied)
	if secret {
		for i := range p.steps {
			if p.steps[i].Error != "" {
				p.steps[i].Error = hidden
			}
		}
	}
	r.Steps = p.allSteps(over)
	if p.denied {
		for i := range r.Steps {
			if r.Steps[i].Name == "authorization" {
				r.Steps[i].Error = r.Error
			}
		}
	}
	if len(o.Owners) > 0 {
		p.to.Describe(o)
	}
	p.to.Add(r)
}

// Steps that take less are not worth their memory.
const (
	minAdmission = 20 * time.Microsecond
	minStep      = time.Microsecond
)

// allSteps are the request's, in the order of upstream's handler chain.
func (p *pending) allSteps(over time.Time) []record.Step {
	steps := make([]record.Step, 0, 5+len(p.steps))
	add := func(name, detail string, took time.Duration) {
		if took >= minStep {
			steps = append(steps, record.Step{Name: name, Detail: detail, Offset: -1, Duration: took})
		}
	}
	if p.trackers != nil {
		add("authentication", "", p.trackers.AuthenticationTracker.GetLatency())
		add("flow-control", "", p.trackers.APFQueueWaitTracker.GetLatency())
		add("authorization", "", p.trackers.AuthorizationTracker.GetLatency())
	}
	slices.SortStableFunc(p.steps, func(a, b record.Step) int { return cmp.Compare(a.Offset, b.Offset) })
	steps = append(steps, p.steps...)
	add("admission", "others", p.small)
	if p.trackers != nil {
		if took := p.trackers.SerializationTracker.GetLatency(); took >= minStep {
			steps = append(steps, record.Step{Name: "response", Offset: over.Sub(p.began) - took, Duration: took})
		}
	}
	return steps
}

// step adds a step that began at start.
func (p *pending) step(name, detail string, start time.Time, took time.Duration, err string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addStep(name, detail, start, took, err)
}

func (p *pending) addStep(name, detail string, start time.Time, took time.Duration, err string) {
	if !p.done {
		p.steps = append(p.steps, record.Step{Name: name, Detail: detail, Offset: start.Sub(p.began), Duration: took, Error: err})
	}
}
