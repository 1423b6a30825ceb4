package kubelith

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"kubelith.io/kubelith/trace"
	"kubelith.io/kubelith/trace/api"
	"kubelith.io/kubelith/trace/record"
	"kubelith.io/kubelith/trace/render"
)

// takeTrace returns the arguments without our flag --trace, and whether it was there. What follows -- is a command for
// a container.
func takeTrace(args []string) (rest []string, traced bool) {
	for i, arg := range args {
		if arg == "--" {
			return append(rest, args[i:]...), traced
		}
		if arg == "--trace" {
			traced = true
			continue
		}
		rest = append(rest, arg)
	}
	return rest, traced
}

// kubectlTraced runs kubectl as the command line has it, and then follows on standard error what it set off. kubectl's
// output and exit code stay.
func kubectlTraced(streams genericiooptions.IOStreams) error {
	writes := &writes{}
	status := caught(streams.ErrOut, func() {
		if err := runKubectl(streams, writes.wrap); err != nil {
			cmdutil.CheckErr(err)
		}
	})
	if err := writes.follow(context.Background(), streams.ErrOut); err != nil {
		fmt.Fprintln(streams.ErrOut, "kubelith: --trace:", err)
	}
	if status != 0 {
		return answered(status)
	}
	return nil
}

// caught calls run, in which kubectl would end the process, prints why on errOut, and returns the exit code.
func caught(errOut io.Writer, run func()) (status int) {
	type fatal struct{ code int }
	cmdutil.BehaviorOnFatal(func(message string, code int) {
		if message != "" {
			fmt.Fprintln(errOut, strings.TrimSuffix(message, "\n"))
		}
		panic(fatal{code})
	})
	defer cmdutil.DefaultBehaviorOnFatal()
	defer func() {
		switch r := recover().(type) {
		case nil:
		case fatal:
			status = r.code
		default:
			panic(r)
		}
	}()
	run()
	return 0
}

// writes are the objects that kubectl's requests wrote.
type writes struct {
	mu     sync.Mutex
	config *rest.Config
	all    []write
}

// write is an object, and the earliest time of the request that wrote it, on the server's clock; zero: unknown.
type write struct {
	ref   record.Ref
	since time.Time
}

// wrap inspects the requests of a client configuration. Its unwrapped copy queries the recorder.
func (w *writes) wrap(c *rest.Config) *rest.Config {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.config == nil {
		w.config = rest.CopyConfig(c)
	}
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return &writesTripper{writes: w, next: next} })
	return c
}

func (w *writes) add(one write) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = slices.DeleteFunc(w.all, func(known write) bool { return known.ref == one.ref }) // the last time counts
	w.all = append(w.all, one)
}

type writesTripper struct {
	writes *writes
	next   http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *writesTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	begin := time.Now()
	resp, err := t.next.RoundTrip(req)
	if err != nil || resp.StatusCode >= 300 {
		return resp, err
	}
	ref, ok := written(req)
	if ok && ref.Name == "" {
		ref.Name, err = nameIn(resp)
		ok = ref.Name != ""
	}
	if ok {
		one := write{ref: ref}
		if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil { // a full second
			one.since = date.Add(-time.Since(begin) - time.Second)
		}
		t.writes.add(one)
	}
	return resp, err
}

// written returns the object that a request wrote, without its name if the server gave it one; ok is false if it wrote
// nothing that sets anything off.
func written(req *http.Request) (ref record.Ref, ok bool) {
	if req.Method == http.MethodGet || req.URL.Query().Has("dryRun") {
		return ref, false
	}
	paths := apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	info, err := paths.NewRequestInfo(req)
	if err != nil || !info.IsResourceRequest || info.Resource == "events" || strings.HasSuffix(info.Resource, "reviews") {
		return ref, false
	}
	if !slices.Contains([]string{"create", "update", "patch", "delete"}, info.Verb) ||
		!slices.Contains([]string{"", "scale", "eviction", "ephemeralcontainers", "resize"}, info.Subresource) {
		return ref, false
	}
	ref = record.Ref{Resource: schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}.String(), Namespace: info.Namespace, Name: info.Name}
	if info.Resource == "namespaces" {
		ref.Namespace = ""
	}
	return ref, true
}

// nameIn returns the name of the object that the server answered with; "": none is found.
func nameIn(resp *http.Response) (string, error) {
	content, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(content))
	return nameOf(content), err
}

// nameOf returns the name of an object in JSON, as most of kubectl's commands ask for it, or in protobuf, as those do
// that create an object of one type.
func nameOf(content []byte) string {
	if object, _, err := scheme.Codecs.UniversalDeserializer().Decode(content, nil, nil); err == nil {
		if o, err := meta.Accessor(object); err == nil {
			return o.GetName()
		}
	}
	var object struct{ Metadata struct{ Name string } }
	_ = json.Unmarshal(content, &object) // a custom resource; without a name, nothing is followed
	return object.Metadata.Name
}

// How long to wait for what was written: until it is in the record, and until it has settled.
const (
	untilRecorded = 3 * time.Second
	untilBound    = 5 * time.Second // a claim
	untilSettled  = 10 * time.Minute
)

// follow shows what the writes set off, one object after the other.
func (w *writes) follow(ctx context.Context, out io.Writer) error {
	if w.config == nil || len(w.all) == 0 {
		return errors.New("the command has changed nothing to follow")
	}
	client, err := api.NewClient(w.config)
	if err != nil {
		return err
	}
	return followWrites(ctx, client, w.all, &follower{client: client, out: out, options: textOptions(out)})
}

func followWrites(ctx context.Context, client recorder, all []write, f *follower) error {
	ctx, cancel := context.WithTimeout(ctx, untilSettled)
	defer cancel()
	shown := map[string]bool{} // UIDs
	// Claims come last: those that a pod uses are in its timeline, and one that waits for its first consumer may do so
	// for ever.
	isClaim := func(one write) int {
		if one.ref.Resource == "persistentvolumeclaims" {
			return 1
		}
		return 0
	}
	all = slices.SortedStableFunc(slices.Values(all), func(a, b write) int { return isClaim(a) - isClaim(b) })
	for _, one := range all {
		t, err := one.recorded(ctx, client)
		switch {
		case err != nil:
			return recorderError(err, one.ref)
		case shown[t.Object.UID]:
			continue // in the timeline of another one
		case t.Begin.Before(one.since):
			fmt.Fprintf(f.out, "%s: unchanged\n", render.Object(one.ref))
			continue
		case t.Settled && len(t.Spans) > 0 && !slices.ContainsFunc(t.Spans, func(s trace.Span) bool { return s.Wait || s.Object != t.Object }):
			fmt.Fprintf(f.out, "%s: %s, %s\n", render.Object(one.ref), t.Outcome, render.Took(t.End.Sub(t.Begin)))
			continue
		}
		patience := untilSettled
		if isClaim(one) != 0 {
			patience = untilBound
		}
		limited, cancel := context.WithTimeout(ctx, patience)
		t, err = f.follow(limited, one.ref)
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return recorderError(err, one.ref)
		} else if err != nil && isClaim(one) != 0 {
			continue // its state is printed
		} else if err != nil {
			return fmt.Errorf("%s has not settled within %s", render.Object(one.ref), untilSettled)
		}
		for i := range t.Spans {
			if uid := t.Spans[i].Object.UID; uid != "" {
				shown[uid] = true
			}
		}
	}
	return nil
}

// recorded returns the timeline that the write set off. The record comes after the answer; if it does not, an older
// timeline is what there is.
func (one *write) recorded(ctx context.Context, client recorder) (t *trace.Timeline, err error) {
	for begin := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		t, err = client.Timeline(ctx, one.ref.Resource, one.ref.Namespace, one.ref.Name, 0)
		if err == nil && !t.Begin.Before(one.since) || err != nil && !apierrors.IsNotFound(err) || time.Since(begin) > untilRecorded {
			return t, err
		}
	}
}
