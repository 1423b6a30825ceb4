package servers

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/integration/harness"
)

// history is what clients of the servers did to a few ConfigMaps, and what watches saw of it. check decides whether
// there is an order in which all of it can have happened: whether the cluster was linearizable, and its watches
// complete.
//
// These clients go through the API, and see its caches as well. Where the members can be reached, etcd's own robustness
// tests check the same of etcd alone (validators).
type history struct {
	names    []string // of the servers
	clients  []kubernetes.Interface
	patience time.Duration // bounds one request
	pause    time.Duration // of a client after a request, on average
	began    time.Time
	id       string // in each value, which no other history has
	start    string // the resource version of the list before the first write

	mu         sync.Mutex
	operations []porcupine.Operation
	seen       [][]stretch // by server

	quit func()
	etcd *validators // nil for servers on other machines
}

// event is one version of an object.
type event struct {
	Key, Value string
	Version    uint64
}

// stretch is what a watch saw until it had to begin again: a server that starts, or whose etcd had no leader, has
// forgotten older versions, and clients list again.
type stretch struct {
	From   uint64 // the version that was listed
	Events []event
}

// operation is what a client requests.
type operation struct {
	Kind  kind
	Key   string
	Value string // what it writes
	// Version is the one that it expects to replace, in an update.
	Version uint64
}

type kind string

const (
	create  kind = "create"
	read    kind = "read"
	update  kind = "update"  // if the version is still that
	replace kind = "replace" // whatever is there
)

// outcome is the answer to the client. Value and Version are those of the object then.
type outcome struct {
	Value    string
	Version  uint64
	Conflict bool
	// Unknown means that there was no answer, or an error: the write may have been done.
	Unknown bool
}

const (
	registers = 4
	historic  = "history" // the label of the ConfigMaps
	// clientsPerServer ask one server each, one request after the other.
	clientsPerServer = 2
)

// record starts clients and watches of the servers. A client pauses between two requests.
func record(t *testing.T, pause time.Duration, servers ...*harness.Server) *history {
	t.Helper()
	h := &history{patience: 3 * time.Second, pause: pause}
	for _, s := range servers {
		h.names, h.clients = append(h.names, s.NodeName()), append(h.clients, s.Client(t))
	}
	h.etcd = validate(t, servers)
	h.record(t)
	return h
}

func (h *history) record(t *testing.T) {
	t.Helper()
	h.began, h.id, h.seen = time.Now(), strconv.FormatUint(rand.Uint64(), 36), make([][]stretch, len(h.clients))
	list, err := h.clients[0].CoreV1().ConfigMaps(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{LabelSelector: historic})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) > 0 {
		t.Fatal("there is a history already")
	}
	h.start = list.ResourceVersion
	patience := h.patience
	h.patience = harness.Patience(30 * time.Second) // the first ones must be there
	for i := range registers {
		o := operation{Kind: create, Key: fmt.Sprintf("%s-%d", historic, i), Value: fmt.Sprintf("%s-first-%d", h.id, i)}
		if out := h.do(t.Context(), h.clients[0], -1, o); out.Unknown {
			t.Fatalf("%s was not created", o.Key)
		}
	}
	h.patience = patience
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i, client := range h.clients {
		all.Go(func() { h.watch(ctx, client, i) })
		for j := range clientsPerServer {
			all.Go(func() { h.work(ctx, client, i*clientsPerServer+j) })
		}
	}
	h.quit = func() { cancel(); all.Wait() }
	t.Cleanup(h.quit)
}

// work asks at random until ctx ends. What is written is unique: a value shows who wrote it.
func (h *history) work(ctx context.Context, client kubernetes.Interface, id int) {
	known := map[string]uint64{} // by key
	for n := 0; ctx.Err() == nil; n++ {
		o := operation{Kind: read, Key: fmt.Sprintf("%s-%d", historic, rand.IntN(registers)), Value: fmt.Sprintf("%s-client-%d-%d", h.id, id, n)}
		switch rand.IntN(4) {
		case 0, 1:
			if o.Version = known[o.Key]; o.Version != 0 {
				o.Kind = update
			}
		case 2:
			o.Kind = replace
		}
		out := h.do(ctx, client, id, o)
		if !out.Unknown && !out.Conflict {
			known[o.Key] = out.Version
		} else {
			delete(known, o.Key)
		}
		time.Sleep(h.pause/2 + rand.N(h.pause))
	}
}

// do does one operation and records it.
func (h *history) do(ctx context.Context, client kubernetes.Interface, id int, o operation) outcome {
	ctx, cancel := context.WithTimeout(ctx, h.patience)
	defer cancel()
	maps := client.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: o.Key, Labels: map[string]string{historic: ""}}, Data: map[string]string{"value": o.Value}}
	call := time.Since(h.began)
	var err error
	switch o.Kind {
	case create:
		object, err = maps.Create(ctx, object, metav1.CreateOptions{})
	case read:
		object, err = maps.Get(ctx, o.Key, metav1.GetOptions{})
	case update:
		object.ResourceVersion = strconv.FormatUint(o.Version, 10)
		object, err = maps.Update(ctx, object, metav1.UpdateOptions{})
	case replace:
		object, err = maps.Update(ctx, object, metav1.UpdateOptions{})
	}
	returned := time.Since(h.began)
	var out outcome
	switch {
	case err == nil:
		e := eventOf(object)
		out = outcome{Value: e.Value, Version: e.Version}
	case apierrors.IsConflict(err):
		out.Conflict = true
	default:
		out.Unknown = true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.operations = append(h.operations, porcupine.Operation{ClientId: id + 1, Input: o, Output: out, Call: int64(call), Return: int64(returned)})
	return out
}

func eventOf(object *corev1.ConfigMap) event {
	version, _ := strconv.ParseUint(object.ResourceVersion, 10, 64) // 0 is in no history
	return event{object.Name, object.Data["value"], version}
}

// watch goes on from the last version that it saw whenever it is interrupted.
func (h *history) watch(ctx context.Context, client kubernetes.Interface, server int) {
	objects := client.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	from := h.start
	h.begin(server, from)
	for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		w, err := objects.Watch(ctx, metav1.ListOptions{LabelSelector: historic, ResourceVersion: from})
		if err != nil {
			continue
		}
		for e := range w.ResultChan() {
			object, ok := e.Object.(*corev1.ConfigMap)
			if !ok {
				err = apierrors.FromObject(e.Object)
				break
			}
			from = object.ResourceVersion
			h.mu.Lock()
			last := &h.seen[server][len(h.seen[server])-1]
			last.Events = append(last.Events, eventOf(object))
			h.mu.Unlock()
		}
		w.Stop()
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			if list, err := objects.List(ctx, metav1.ListOptions{LabelSelector: historic}); err == nil {
				from = list.ResourceVersion
				h.begin(server, from)
			}
		}
	}
}

// begin begins a stretch of a watch.
func (h *history) begin(server int, from string) {
	version, _ := strconv.ParseUint(from, 10, 64) // 0: it must see everything
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen[server] = append(h.seen[server], stretch{From: version})
}

// check ends the clients, waits until each watch has seen the last write, and fails when the history is not possible.
func (h *history) check(t *testing.T) {
	t.Helper()
	last := map[string]uint64{}
	harness.Eventually(t, time.Minute, "a last write of each object", func() error {
		for i := range registers {
			o := operation{Kind: replace, Key: fmt.Sprintf("%s-%d", historic, i), Value: fmt.Sprintf("%s-last-%d-%s", h.id, i, time.Since(h.began))}
			out := h.do(t.Context(), h.clients[0], -1, o)
			if out.Unknown {
				return fmt.Errorf("%s cannot be written", o.Key)
			}
			last[o.Key] = out.Version
		}
		return nil
	})
	harness.Eventually(t, time.Minute, "each watch to see it", func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		for i, name := range h.names {
			now := h.seen[i][len(h.seen[i])-1]
			for key, version := range last {
				if now.From < version && !slices.ContainsFunc(now.Events, func(e event) bool { return e.Key == key && e.Version >= version }) {
					return fmt.Errorf("that of %s has not", name)
				}
			}
		}
		return nil
	})
	h.quit()
	if h.etcd != nil {
		h.etcd.check(t)
	}
	faults, checked := possible(h.operations, h.seen)
	for _, f := range faults {
		t.Error(f)
	}
	path := filepath.Join(t.ArtifactDir(), "history.html")
	if len(faults) > 0 && porcupine.VisualizePath(model, *checked, path) == nil {
		t.Logf("the history: %s", path)
	}
	unknown, stretches, versions := 0, 0, map[uint64]bool{}
	for _, o := range h.operations {
		if o.Output.(outcome).Unknown {
			unknown++
		}
	}
	for _, watch := range h.seen {
		stretches += len(watch)
		for _, s := range watch {
			for _, e := range s.Events {
				versions[e.Version] = true
			}
		}
	}
	t.Logf("history: %d operations, %d of them without an answer; %d versions; %d watches, which began %d times", len(h.operations), unknown, len(versions), len(h.seen), stretches)
}

// forget removes the objects, for the next history.
func (h *history) forget(t *testing.T) {
	t.Helper()
	harness.Eventually(t, time.Minute, "the objects of the history to be deleted", func() error {
		return h.clients[0].CoreV1().ConfigMaps(metav1.NamespaceDefault).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: historic})
	})
}

// possible returns the faults of a history. seen are the stretches of each watch, from before the first write to after
// the last.
func possible(operations []porcupine.Operation, seen [][]stretch) (faults []string, checked *porcupine.LinearizationInfo) {
	all := map[uint64]event{}
	for _, watch := range seen {
		for _, s := range watch {
			for _, e := range s.Events {
				if other, ok := all[e.Version]; ok && other != e {
					faults = append(faults, fmt.Sprintf("version %d is %v in one watch and %v in another", e.Version, other, e))
				}
				all[e.Version] = e
			}
		}
	}
	versions := slices.Sorted(maps.Keys(all))
	for i, watch := range seen {
		for _, s := range watch {
			last := s.From
			for _, e := range s.Events {
				if e.Version <= last {
					faults = append(faults, fmt.Sprintf("watch %d repeats version %d after %d", i, e.Version, last))
				}
				last = max(last, e.Version)
			}
			for _, v := range versions {
				if v > s.From && v <= last && !slices.ContainsFunc(s.Events, func(e event) bool { return e.Version == v }) {
					faults = append(faults, fmt.Sprintf("watch %d skips version %d, %v", i, v, all[v]))
				}
			}
		}
	}
	requested := map[string]bool{} // by value
	for _, o := range operations {
		if in := o.Input.(operation); in.Kind != read {
			requested[in.Value] = true
		}
	}
	written := map[string]event{} // by value
	for _, e := range all {
		written[e.Value] = e
		if !requested[e.Value] {
			faults = append(faults, fmt.Sprintf("no client wrote %v", e))
		}
	}
	for _, o := range operations { // also what no watch saw while none was open
		if out := o.Output.(outcome); !out.Unknown && !out.Conflict {
			written[out.Value] = event{o.Input.(operation).Key, out.Value, out.Version}
		}
	}
	var known []porcupine.Operation
	for _, o := range operations {
		in, out := o.Input.(operation), o.Output.(outcome)
		e, happened := written[in.Value]
		switch {
		case out.Unknown && in.Kind == read, out.Unknown && !happened:
			continue // it changed nothing
		case out.Unknown:
			o.Output, o.Return = outcome{Value: e.Value, Version: e.Version}, math.MaxInt64
		case in.Kind != read && !out.Conflict && all[out.Version].Value != in.Value && covered(seen, out.Version):
			faults = append(faults, fmt.Sprintf("%v was acknowledged as version %d, and no watch saw it", in, out.Version))
		case in.Kind != read && out.Conflict && happened:
			faults = append(faults, fmt.Sprintf("%v was refused, and written all the same as version %d; %s", in, e.Version, whoSaw(in.Value, operations, seen)))
		}
		known = append(known, o)
	}
	result, info := porcupine.CheckOperationsVerbose(model, known, harness.Patience(time.Minute))
	if result != porcupine.Ok {
		faults = append(faults, fmt.Sprintf("the history of %d operations is not linearizable: %s", len(known), result))
	}
	return faults, &info
}

// whoSaw describes what each operation and watch knows of a value.
func whoSaw(value string, operations []porcupine.Operation, seen [][]stretch) string {
	var out []string
	for _, o := range operations {
		if o.Input.(operation).Value == value || o.Output.(outcome).Value == value {
			out = append(out, fmt.Sprintf("client %d from %s to %s: %+v: %+v", o.ClientId-1, time.Duration(o.Call), time.Duration(o.Return), o.Input, o.Output))
		}
	}
	for i, watch := range seen {
		for _, s := range watch {
			for _, e := range s.Events {
				if e.Value == value {
					out = append(out, fmt.Sprintf("watch %d from %d: %+v", i, s.From, e))
				}
			}
		}
	}
	return strings.Join(out, "; ")
}

// covered reports whether a watch was open when a version was written.
func covered(seen [][]stretch, version uint64) bool {
	return slices.ContainsFunc(slices.Concat(seen...), func(s stretch) bool {
		return len(s.Events) > 0 && s.From < version && version <= s.Events[len(s.Events)-1].Version
	})
}

// model is an object of the API, whose state is its last version.
var model = porcupine.Model{
	Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, o := range all {
			key := o.Input.(operation).Key
			byKey[key] = append(byKey[key], o)
		}
		return slices.SortedFunc(maps.Values(byKey), func(a, b []porcupine.Operation) int {
			return cmp.Compare(a[0].Input.(operation).Key, b[0].Input.(operation).Key)
		})
	},
	Init: func() any { return event{} },
	Step: func(state, input, output any) (bool, any) {
		now, in, out := state.(event), input.(operation), output.(outcome)
		next := event{in.Key, out.Value, out.Version}
		switch {
		case in.Kind == read:
			return now == next, now
		case out.Conflict:
			return now.Version != in.Version, now
		case in.Kind == update && now.Version != in.Version:
			return false, now
		}
		return next.Version > now.Version, next
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v: %+v", input, output) },
}

// TestHistory: the check finds what must not be, so that it proves something when it finds nothing.
func TestHistory(t *testing.T) {
	t.Parallel()
	at := func(call, end int64, in operation, out outcome) porcupine.Operation {
		in.Key = "a"
		return porcupine.Operation{Input: in, Output: out, Call: call, Return: end}
	}
	first := at(1, 2, operation{Kind: create, Value: "1"}, outcome{Value: "1", Version: 10})
	second := at(3, 4, operation{Kind: update, Value: "2", Version: 10}, outcome{Value: "2", Version: 12})
	lost := at(5, 6, operation{Kind: replace, Value: "3"}, outcome{Unknown: true})
	type events = []event
	watches := func(all ...events) (out [][]stretch) {
		for _, events := range all {
			out = append(out, []stretch{{From: 9, Events: events}})
		}
		return out
	}
	one, two, three := event{"a", "1", 10}, event{"a", "2", 12}, event{"a", "3", 15}
	for name, tc := range map[string]struct {
		operations []porcupine.Operation
		seen       [][]stretch
		want       string // nothing: possible
	}{
		"a write after the other":        {[]porcupine.Operation{first, second}, watches(events{one, two}, events{one, two}), ""},
		"a write without an answer":      {[]porcupine.Operation{first, second, lost}, watches(events{one, two}), ""},
		"one that was done":              {[]porcupine.Operation{first, second, lost, at(7, 8, operation{Kind: read}, outcome{Value: "3", Version: 15})}, watches(events{one, two, three}), ""},
		"one that was done later":        {[]porcupine.Operation{first, second, lost, at(7, 8, operation{Kind: read}, outcome{Value: "2", Version: 12})}, watches(events{one, two, three}), ""},
		"an old read":                    {[]porcupine.Operation{first, second, at(5, 6, operation{Kind: read}, outcome{Value: "1", Version: 10})}, watches(events{one, two}), "not linearizable"},
		"a read during a write":          {[]porcupine.Operation{first, second, at(3, 6, operation{Kind: read}, outcome{Value: "1", Version: 10})}, watches(events{one, two}), ""},
		"a lost write":                   {[]porcupine.Operation{first, second, at(5, 6, operation{Kind: replace, Value: "3"}, outcome{Value: "3", Version: 15})}, watches(events{one, two, {"a", "4", 16}}), "no watch saw it"},
		"two updates of one version":     {[]porcupine.Operation{first, second, at(5, 6, operation{Kind: update, Value: "3", Version: 10}, outcome{Value: "3", Version: 15})}, watches(events{one, two, three}), "not linearizable"},
		"a needless conflict":            {[]porcupine.Operation{first, at(3, 4, operation{Kind: update, Value: "3", Version: 10}, outcome{Conflict: true})}, watches(events{one}), "not linearizable"},
		"a conflict that was written":    {[]porcupine.Operation{first, second, at(5, 6, operation{Kind: update, Value: "3", Version: 10}, outcome{Conflict: true})}, watches(events{one, two, three}), "written all the same"},
		"what no watch could see":        {[]porcupine.Operation{first, second, at(5, 6, operation{Kind: replace, Value: "3"}, outcome{Value: "3", Version: 15})}, watches(events{one, two}), ""},
		"a watch that skips":             {[]porcupine.Operation{first, second}, watches(events{one, two}, events{two}), "watch 1 skips version 10"},
		"a watch that repeats":           {[]porcupine.Operation{first, second}, watches(events{one, two, two}), "watch 0 repeats version 12"},
		"watches that differ":            {[]porcupine.Operation{first, second}, watches(events{one, two}, events{one, {"a", "x", 12}}), "in one watch"},
		"a write of nobody":              {[]porcupine.Operation{first}, watches(events{one, two}), "no client wrote {a 2 12}"},
		"a watch that was ended earlier": {[]porcupine.Operation{first, second}, watches(events{one, two}, events{one}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			faults, _ := possible(tc.operations, tc.seen)
			if got := strings.Join(faults, "\n"); (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
