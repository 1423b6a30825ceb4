package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/trace/record"
)

// namespaced lets users get objects in the namespace with their name, and nodes their pod "mine".
func namespaced(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetVerb() == "get" && (a.GetNamespace() == a.GetUser().GetName() || a.GetUser().GetName() == "system:node:n1" && a.GetName() == "mine") {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func serve(t *testing.T, store *record.Store, caller user.Info) *Client {
	t.Helper()
	beside := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.NotFound(w, nil) })
	h := NewHandler(store, authorizer.AuthorizerFunc(namespaced), beside)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		h.ServeHTTP(w, req.WithContext(apirequest.WithUser(req.Context(), caller)))
	}))
	t.Cleanup(srv.Close)
	c, err := NewClient(&rest.Config{Host: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func pod(namespace, name string) record.Ref {
	return record.Ref{UID: namespace + name, Resource: "pods", Namespace: namespace, Name: name}
}

func created(store *record.Store, r record.Ref) {
	store.Add(record.Record{Object: r, Stage: record.Request, Name: "create", Start: store.Clock().Now(), Duration: time.Millisecond, Code: 201, Spec: true, Actor: "somebody"})
}

func TestRights(t *testing.T) {
	store := record.NewStore(record.Options{})
	created(store, pod("alice", "web"))
	created(store, pod("bob", "web"))
	c := serve(t, store, &user.DefaultInfo{Name: "alice"})
	mine, err := c.Timeline(t.Context(), "pods", "alice", "web", 0)
	if err != nil || mine.Object.Name != "web" || len(mine.Spans) == 0 {
		t.Errorf("her own pod: %v, %v", mine, err)
	}
	for _, name := range []string{"web", "unknown"} { // the same answer, whether it exists or not
		if _, err := c.Timeline(t.Context(), "pods", "bob", name, 0); !apierrors.IsForbidden(err) {
			t.Errorf("another user's pod %s: %v", name, err)
		}
	}
	if _, err := c.Timeline(t.Context(), "pods", "alice", "unknown", 0); !apierrors.IsNotFound(err) || errors.Is(err, ErrNoRecorder) {
		t.Errorf("an unknown pod: %v", err)
	}
	recent, err := c.Recent(t.Context(), 10, 0)
	if err != nil || len(recent.Timelines) != 1 || recent.Timelines[0].Object.Namespace != "alice" {
		t.Errorf("recent: %+v, %v", recent, err)
	}
	slowest, err := c.Slowest(t.Context(), 10)
	if err != nil || len(slowest.Requests) != 1 {
		t.Errorf("slowest: %+v, %v", slowest, err)
	}
	if _, err := c.Stats(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestWait: a request that waits is answered when something has happened to its object.
func TestWait(t *testing.T) {
	store := record.NewStore(record.Options{})
	created(store, pod("alice", "web"))
	c := serve(t, store, &user.DefaultInfo{Name: "alice"})
	first, err := c.Timeline(t.Context(), "pods", "alice", "web", 0)
	if err != nil {
		t.Fatal(err)
	}
	answer := make(chan error, 1)
	go func() {
		next, err := c.Timeline(t.Context(), "pods", "alice", "web", first.Seq)
		if err == nil && next.Seq <= first.Seq {
			err = errors.New("it was answered without news")
		}
		answer <- err
	}()
	created(store, pod("bob", "web")) // not hers
	store.Add(record.Record{Object: pod("alice", "web"), Stage: record.Bind, Name: "n1", Start: store.Clock().Now(), Duration: time.Millisecond})
	if err := <-answer; err != nil {
		t.Error(err)
	}
}

func TestRefusals(t *testing.T) {
	off := serve(t, nil, &user.DefaultInfo{Name: "alice"})
	if _, err := off.Timeline(t.Context(), "pods", "alice", "web", 0); !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "--trace-memory") {
		t.Errorf("a recorder that is off: %v", err)
	}
	older := httptest.NewServer(http.NotFoundHandler())
	defer older.Close()
	c, err := NewClient(&rest.Config{Host: older.URL})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Timeline(t.Context(), "pods", "alice", "web", 0); !errors.Is(err, ErrNoRecorder) {
		t.Errorf("a server without a recorder: %v", err)
	}
}

// TestNode: a node reports what happens to its own pods only, and nothing that the API knows itself.
func TestNode(t *testing.T) {
	store := record.NewStore(record.Options{})
	created(store, pod("default", "mine"))
	created(store, pod("default", "other"))
	created(store, pod("default", "gone"))
	store.Add(record.Record{Object: pod("default", "gone"), Stage: record.Bind, Name: "n1"})
	claim := record.Ref{UID: "c1", Resource: "persistentvolumeclaims", Namespace: client.StorageNodePrefix + "n1", Name: "claim"}
	node := &user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup}}
	start := store.Clock().Now()
	batch := &record.Batch{Node: "n1", Sent: start, Estimated: true, Offset: time.Hour}
	wrong := pod("default", "mine")
	wrong.UID = pod("default", "other").UID
	for _, r := range []record.Record{
		{Object: pod("default", "mine"), Stage: record.Sandbox},
		{Object: pod("default", "mine"), Stage: record.Request, Name: "delete"},
		{Object: pod("default", "other"), Stage: record.Sandbox},
		{Object: pod("default", "gone"), Stage: record.StopSandbox},
		{Object: claim, Stage: record.Volume},
		{Object: wrong, Stage: record.Sandbox},
		{Object: record.Ref{Resource: "pods", Namespace: "default", Name: "mine"}, Stage: record.Sandbox},
	} {
		r.Start, r.Duration = start, time.Millisecond
		batch.Records = append(batch.Records, r)
	}
	reply, err := serve(t, store, node).Send(t.Context(), batch)
	if err != nil || reply.Now < start {
		t.Fatalf("%+v, %v", reply, err)
	}
	count := map[string]int{}
	for _, h := range store.All("") {
		count[h.Object.Name] += len(h.Records)
		for _, r := range h.Records {
			if r.Stage == record.Sandbox && (r.Node != "n1" || r.Start != start+int64(time.Hour)) {
				t.Errorf("the record has node %q and time %d", r.Node, r.Start-start)
			}
		}
	}
	if len(count) != 4 || count["mine"] != 2 || count["other"] != 1 || count["gone"] != 3 || count["claim"] != 1 {
		t.Errorf("records: %v", count)
	}
	if _, err := serve(t, store, &user.DefaultInfo{Name: "alice"}).Send(t.Context(), batch); !apierrors.IsForbidden(err) {
		t.Errorf("from a user: %v", err)
	}
	batch.Node = "n2"
	if _, err := serve(t, store, node).Send(t.Context(), batch); !apierrors.IsBadRequest(err) {
		t.Errorf("in another node's name: %v", err)
	}
}

// TestEventOfNode: an Event names its node, and is no proof that the pod was there.
func TestEventOfNode(t *testing.T) {
	store := record.NewStore(record.Options{})
	created(store, pod("default", "other"))
	store.Add(record.Record{Object: pod("default", "other"), Stage: record.Event, Name: "Lie", Node: "n1", Start: store.Clock().Now()})
	node := &user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup}}
	batch := &record.Batch{Node: "n1", Sent: store.Clock().Now(), Estimated: true, Records: []record.Record{{Object: pod("default", "other"), Stage: record.Sandbox, Start: store.Clock().Now()}}}
	if _, err := serve(t, store, node).Send(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if h, _ := store.Get(pod("default", "other").UID); len(h.Records) != 2 {
		t.Errorf("%+v", h.Records)
	}
}

// TestNodesAreHidden: a user who may get a pod, and no nodes, sees how many nodes a filter excluded and why, as in
// upstream's Event.
func TestNodesAreHidden(t *testing.T) {
	store := record.NewStore(record.Options{})
	web := pod("alice", "web")
	created(store, web)
	store.Add(record.Record{Object: web, Stage: record.Schedule, Start: store.Clock().Now(), Duration: time.Millisecond, Error: "0/1 nodes are available",
		Verdicts: []record.Verdict{{Nodes: []string{"n1"}, Count: 1, Plugin: "NodeResourcesFit", Reason: "Insufficient cpu"}}, Scores: []record.Score{{Node: "n2"}}})
	got, err := serve(t, store, &user.DefaultInfo{Name: "alice"}).Timeline(t.Context(), "pods", "alice", "web", 0)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(got)
	if err != nil || strings.Contains(string(text), `"n1"`) || strings.Contains(string(text), `"n2"`) || !strings.Contains(string(text), "Insufficient cpu") ||
		!strings.Contains(string(text), "may not get nodes") {
		t.Errorf("%s, %v", text, err)
	}
}

// TestSecrets: what is served has no content of objects, because records have none.
func TestSecrets(t *testing.T) {
	store := record.NewStore(record.Options{})
	r := record.Ref{UID: "s", Resource: "secrets", Namespace: "alice", Name: "key"}
	created(store, r)
	answer, err := serve(t, store, &user.DefaultInfo{Name: "alice"}).Timeline(t.Context(), "secrets", "alice", "key", 0)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := json.Marshal(answer); err != nil || strings.Contains(string(text), "data") {
		t.Errorf("%s, %v", text, err)
	}
}
