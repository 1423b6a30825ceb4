package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/trace"
	"kubelith.io/kubelith/trace/record"
)

const (
	// pause is how long a request that waits lets further records gather.
	pause = 150 * time.Millisecond
	// defaultCount and maxCount are how many summaries a list has.
	defaultCount, maxCount = 10, 500
)

// Handler serves the paths of this package, and passes on what is not its own.
type Handler struct {
	store *record.Store
	rules authorizer.Authorizer
	next  http.Handler
}

// NewHandler returns a handler of a store; without one it answers that the recorder is off.
func NewHandler(store *record.Store, rules authorizer.Authorizer, next http.Handler) *Handler {
	return &Handler{store: store, rules: rules, next: next}
}

// ServeHTTP implements http.Handler. The request has been authenticated and authorized.
func (h *Handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if !strings.HasPrefix(req.URL.Path, Prefix) {
		h.next.ServeHTTP(w, req)
		return
	}
	method, serve := http.MethodGet, map[string]func(*http.Request) (any, error){
		TracePath: h.timeline, RecentPath: h.recent, SlowestPath: h.slowest, StatsPath: h.stats, RecordsPath: h.records,
	}[req.URL.Path]
	if req.URL.Path == RecordsPath {
		method = http.MethodPost
	}
	var answer any
	var err error
	switch {
	case serve == nil:
		h.next.ServeHTTP(w, req)
		return
	case h.store == nil:
		err = apierrors.NewServiceUnavailable("the recorder is off: start the server without --trace-memory=0")
	case req.Method != method:
		err = apierrors.NewMethodNotSupported(schema.GroupResource{Resource: strings.TrimPrefix(req.URL.Path, Prefix)}, req.Method)
	default:
		answer, err = serve(req)
	}
	status := http.StatusOK
	if err != nil {
		failure := apierrors.NewInternalError(err)
		if known, ok := err.(apierrors.APIStatus); ok {
			failure = &apierrors.StatusError{ErrStatus: known.Status()}
		}
		failure.ErrStatus.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		answer, status = failure.ErrStatus, int(failure.ErrStatus.Code)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // a client that is gone
}

// may returns what reports whether the caller may get an object. It remembers answers for the request.
func (h *Handler) may(ctx context.Context) func(record.Ref) bool {
	caller, _ := apirequest.UserFrom(ctx)
	known := map[record.Ref]bool{}
	return func(r record.Ref) bool {
		r.UID = ""
		answer, ok := known[r]
		if !ok {
			answer = h.allows(ctx, caller, r)
			known[r] = answer
		}
		return answer
	}
}

func (h *Handler) allows(ctx context.Context, caller user.Info, r record.Ref) bool {
	gr := schema.ParseGroupResource(r.Resource)
	decision, _, _ := h.rules.Authorize(ctx, authorizer.AttributesRecord{
		User: caller, Verb: "get", APIGroup: gr.Group, APIVersion: "*", Resource: gr.Resource, Namespace: r.Namespace, Name: r.Name, ResourceRequest: true,
	})
	return decision == authorizer.DecisionAllow
}

func (h *Handler) timeline(req *http.Request) (any, error) {
	query := req.URL.Query()
	ref := record.Ref{Resource: query.Get("resource"), Namespace: query.Get("namespace"), Name: query.Get("name")}
	after, err := number(query.Get("after"), "after")
	if err != nil {
		return nil, err
	}
	if ref.Resource == "" || ref.Name == "" {
		return nil, apierrors.NewBadRequest("resource and name are required")
	}
	may := h.may(req.Context())
	if !may(ref) { // before the lookup: not every user may know whether it exists
		caller, _ := apirequest.UserFrom(req.Context())
		return nil, apierrors.NewForbidden(schema.ParseGroupResource(ref.Resource), ref.Name,
			fmt.Errorf("user %q may not get the object, so not its record", caller.GetName()))
	}
	var t *trace.Timeline
	found := h.await(req.Context(), after, func() (uint64, bool) {
		history, ok := h.store.Lookup(ref.Resource, ref.Namespace, ref.Name)
		if !ok {
			return 0, false
		}
		t = trace.Assemble(h.store, history, may, h.store.Clock().Now())
		return t.Seq, t.Pending
	})
	if t == nil || !found && after == 0 {
		return nil, apierrors.NewNotFound(schema.ParseGroupResource(ref.Resource), ref.Name)
	}
	if !may(record.Ref{Resource: "nodes"}) {
		withoutNodes(t)
	}
	if set := h.store.Clock().Set(); set.Abs() > time.Second {
		t.Notices = append(t.Notices, fmt.Sprintf("the clock of the server was set by %s since it started; these times follow the old clock",
			set.Round(time.Second)))
	}
	return t, nil
}

// withoutNodes removes what the scheduler found out about nodes by their names: upstream's Event counts them.
func withoutNodes(t *trace.Timeline) {
	hidden := false
	for i := range t.Spans {
		s := &t.Spans[i]
		hidden = hidden || len(s.Scores) > 0 || len(s.Verdicts) > 0
		s.Scores, s.Verdicts = nil, slices.Clone(s.Verdicts)
		for j := range s.Verdicts {
			s.Verdicts[j].Nodes = nil
		}
	}
	if hidden {
		t.Notices = append(t.Notices, "the scheduler's verdicts are shown without the nodes, and without scores: you may not get nodes")
	}
}

// await calls see until it returns a Seq over after, whenever something was recorded, for Patience at most. It reports
// whether see did. pending: time alone will change the answer, so see is called again until that is over.
func (h *Handler) await(ctx context.Context, after uint64, see func() (seq uint64, pending bool)) bool {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	var last uint64
	waited := false
	for {
		seq, pending := see()
		if seq > after || waited && !pending {
			return true
		}
		if after == 0 {
			return false
		}
		waited = pending
		wait, done := ctx, context.CancelFunc(func() {})
		if pending {
			wait, done = context.WithTimeout(ctx, time.Second)
		}
		last = h.store.Wait(wait, max(last, after))
		done()
		if !reconcile.Sleep(ctx, pause) {
			return false
		}
	}
}

func number(text, name string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("%s=%s is not a number", name, text))
	}
	return n, nil
}

// count returns how many summaries a request wants.
func count(req *http.Request) (int, error) {
	n, err := number(req.URL.Query().Get("n"), "n")
	if n == 0 {
		n = defaultCount
	}
	return int(min(n, maxCount)), err
}

func (h *Handler) recent(req *http.Request) (any, error) {
	n, err := count(req)
	if err != nil {
		return nil, err
	}
	after, err := number(req.URL.Query().Get("after"), "after")
	if err != nil {
		return nil, err
	}
	may := h.may(req.Context())
	var recent Recent
	h.await(req.Context(), after, func() (uint64, bool) {
		recent.Seq = h.store.Last()
		return recent.Seq, false
	})
	recent.Timelines = trace.Recent(h.store, h.store.All(""), may, h.store.Clock().Now(), n)
	return recent, nil
}

func (h *Handler) slowest(req *http.Request) (any, error) {
	n, err := count(req)
	if err != nil {
		return nil, err
	}
	may := h.may(req.Context())
	return Slowest{
		Starts:   trace.SlowestStarts(h.store, h.store.All("pods"), may, h.store.Clock().Now(), n),
		Requests: trace.SlowestRequests(h.store.All(""), may, n),
	}, nil
}

func (h *Handler) stats(req *http.Request) (any, error) {
	return Stats{
		Stages: trace.Stats(h.store, h.store.All("pods"), h.may(req.Context()), h.store.Clock().Now()),
		Usage:  h.store.Usage(),
	}, nil
}

// nodeStages are what a node may report.
var nodeStages = []record.Stage{
	record.Sync, record.Terminate, record.Volume, record.Sandbox, record.CNI, record.Pull, record.Create, record.Start, record.Run,
	record.Hook, record.Probe, record.Stop, record.StopSandbox,
}

// records takes the batch of a node: of the pods that are bound to it, and their volumes. What it may get, it may
// report on. What a node knows of objects beside their records, the API knows better.
func (h *Handler) records(req *http.Request) (any, error) {
	caller, _ := apirequest.UserFrom(req.Context())
	node, ok := strings.CutPrefix(caller.GetName(), names.NodeUserPrefix)
	if !ok || !slices.Contains(caller.GetGroups(), user.NodesGroup) {
		return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "records"}, "", fmt.Errorf("only nodes report records"))
	}
	now := h.store.Clock().Now()
	content, err := io.ReadAll(io.LimitReader(req.Body, record.MaxBody+1))
	if err != nil {
		return nil, apierrors.NewBadRequest("read the batch: " + err.Error())
	}
	if len(content) > record.MaxBody {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("a batch has at most %d bytes", record.MaxBody))
	}
	var batch record.Batch
	if err := json.Unmarshal(content, &batch); err != nil {
		return nil, apierrors.NewBadRequest("not a batch of records: " + err.Error())
	}
	if len(batch.Records) > record.MaxBatch || batch.Node != node {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("a batch has at most %d records, of the node that sends it", record.MaxBatch))
	}
	may := h.mayReport(req.Context(), node)
	batch.Records = slices.DeleteFunc(batch.Records, func(r record.Record) bool {
		return !slices.Contains(nodeStages, r.Stage) || r.Object.UID == "" || !may(r.Object)
	})
	h.store.Merge(node, batch.Behind(now), batch.Records)
	return record.Reply{Now: now, Store: h.store.ID()}, nil
}

// mayReport returns what reports whether a node may report on an object: one that it may get, as itself or, with a
// claim, as the storage controllers on it; or a pod that ran there and may be gone by now. It remembers answers for the
// request.
func (h *Handler) mayReport(ctx context.Context, node string) func(record.Ref) bool {
	may := h.may(ctx)
	storage := &user.DefaultInfo{Name: client.StorageNodePrefix + node, Groups: []string{client.StorageNodes, user.AllAuthenticated}}
	known := map[record.Ref]bool{}
	return func(r record.Ref) bool {
		answer, ok := known[r]
		if !ok {
			history, recorded := h.store.Get(r.UID)
			switch {
			case recorded && history.Object.Ref != r: // it does not know whose UID that is
			case ranOn(history, node), may(r):
				answer = true
			default:
				answer = r.Resource == "persistentvolumeclaims" && h.allows(ctx, storage, r)
			}
			known[r] = answer
		}
		return answer
	}
}

// ranOn reports whether an object was on a node.
func ranOn(history record.History, node string) bool {
	return slices.ContainsFunc(history.Records, func(r record.Record) bool {
		// The writer of an Event names its node.
		return r.Node == node && slices.Contains(nodeStages, r.Stage) || r.Stage == record.Bind && r.Name == node && r.Error == ""
	})
}
