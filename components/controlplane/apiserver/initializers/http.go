package initializers

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// parameter is the query parameter with which a request sees hidden objects.
const parameter = "includeUninitialized"

// maxBody is what the API server reads of a request at most.
// Source: MaxRequestBodyBytes in k8s.io/apiserver/pkg/server/config.go.
const maxBody = 3 << 20

// answerTime is left to answer a creator before its request ends.
const answerTime = 200 * time.Millisecond

// BuildHandlerChain builds the filters of the API server.
type BuildHandlerChain func(http.Handler, *genericapiserver.Config) http.Handler

// Wrap puts the handler of this package below all filters.
func (i *Initializers) Wrap(build BuildHandlerChain) BuildHandlerChain {
	return func(api http.Handler, c *genericapiserver.Config) http.Handler { return build(i.handler(api), c) }
}

// ServeExtensions sets the server of custom resources. Upstream's kube-apiserver answers 404 for all in its own groups,
// so requests for the configurations go past it.
func (i *Initializers) ServeExtensions(extensions http.Handler) { i.extensions.Store(&extensions) }

var versionPath = "/apis/" + configurationVersion.String()

func ofConfigurations(path string) bool {
	rest, ok := strings.CutPrefix(path, versionPath)
	return ok && (rest == "" || rest == "/" || strings.HasPrefix(rest, "/"+configurationResource.Resource))
}

func (i *Initializers) handler(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next := api
		if ofConfigurations(r.URL.Path) {
			if extensions := i.extensions.Load(); extensions != nil {
				next = *extensions
			}
		}
		if i.off || i.idle() && !asksForHidden(r.URL) { // a watch that requests them goes on when objects are hidden
			next.ServeHTTP(w, r)
			return
		}
		i.serve(next, w, r)
	})
}

// serve handles a request that may concern a hidden object.
func (i *Initializers) serve(next http.Handler, w http.ResponseWriter, r *http.Request) {
	info, ok := apirequest.RequestInfoFrom(r.Context())
	if !ok || !info.IsResourceRequest {
		next.ServeHTTP(w, r)
		return
	}
	asked := asksForHidden(r.URL)
	writes := info.Subresource == "" && slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, info.Verb)
	own := &request{includes: asked || writes}
	r = r.WithContext(withRequest(r.Context(), own))
	switch {
	case writes:
		i.write(next, w, r, info, own, asked)
	case asked && info.Verb == "watch" && r.Header.Get("Upgrade") == "":
		events := &lines{ResponseWriter: w}
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(events), plain(r))
		events.end()
	case asked && (info.Verb == "get" || info.Verb == "list") && (info.Subresource == "" || info.Subresource == "status"):
		held := &held{ResponseWriter: w}
		next.ServeHTTP(held, plain(r))
		held.send()
	default:
		next.ServeHTTP(w, r)
	}
}

// asksForHidden reads the query parameter as upstream reads a boolean: given without a value, it is true.
func asksForHidden(u *url.URL) bool {
	if !strings.Contains(u.RawQuery, parameter) {
		return false
	}
	values, ok := u.Query()[parameter]
	return ok && len(values) > 0 && values[0] != "0" && !strings.EqualFold(values[0], "false")
}

// plain requests an uncompressed answer.
func plain(r *http.Request) *http.Request {
	if r.Header.Get("Accept-Encoding") == "" {
		return r
	}
	r = r.Clone(r.Context())
	r.Header.Del("Accept-Encoding")
	return r
}

// write handles a request that creates, changes or deletes objects. Its creator waits.
func (i *Initializers) write(next http.Handler, w http.ResponseWriter, r *http.Request, info *apirequest.RequestInfo, own *request, asked bool) {
	if r.Body != nil && (info.Verb == "create" || info.Verb == "update" || info.Verb == "patch") {
		body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
		if err != nil {
			fail(w, r, info, apierrors.NewBadRequest(fmt.Sprintf("read the body: %v", err)))
			return
		}
		rest := r.Body
		if len(body) <= maxBody {
			if body, err = incoming(body, r.Header.Get("Content-Type")); err != nil {
				fail(w, r, info, apierrors.NewBadRequest(err.Error()))
				return
			}
		}
		r = r.Clone(r.Context())
		r.ContentLength = -1
		r.Header.Del("Content-Length")
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(body), rest), rest}
	}
	answer := &held{ResponseWriter: w}
	next.ServeHTTP(answer, plain(r))
	c := own.creation()
	if c == nil || asked || answer.status() >= 300 {
		answer.send()
		return
	}
	if err := c.wait(r.Context()); err != nil {
		answer.drop()
		fail(w, r, info, err)
		return
	}
	created := &held{ResponseWriter: w, header: http.Header{}}
	next.ServeHTTP(created, read(r, info, c.name))
	if created.status() == http.StatusOK {
		created.code = answer.status()
	}
	created.send()
}

// read turns a request that created an object into one that gets it: as its creator may see what it has created, this
// is below authorization.
func read(r *http.Request, info *apirequest.RequestInfo, name string) *http.Request {
	path := r.URL.Path
	if info.Verb == "create" {
		path = strings.TrimSuffix(path, "/") + "/" + name
	}
	get := *info
	get.Verb, get.Name, get.Path = "get", name, path
	ctx := withRequest(apirequest.WithRequestInfo(r.Context(), &get), &request{})
	out := r.Clone(ctx)
	out.Method, out.Body, out.ContentLength = http.MethodGet, http.NoBody, 0
	out.Header.Del("Content-Type")
	out.URL = &url.URL{Path: path}
	if pretty := r.URL.Query().Get("pretty"); pretty != "" {
		out.URL.RawQuery = url.Values{"pretty": {pretty}}.Encode()
	}
	out.RequestURI = out.URL.RequestURI()
	return plain(out)
}

func fail(w http.ResponseWriter, r *http.Request, info *apirequest.RequestInfo, err error) {
	responsewriters.ErrorNegotiated(err, legacyscheme.Codecs, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, w, r)
}

// wait returns when the object is initialized, or the reason why it is not.
func (c *created) wait(ctx context.Context) error {
	patience := creatorPatience
	if deadline, ok := ctx.Deadline(); ok { // then upstream answers, without the initializer's name
		patience = min(patience, time.Until(deadline)-answerTime)
	}
	ctx, cancel := context.WithTimeout(withRequest(ctx, &request{includes: true}), patience)
	defer cancel()
	timeout := func(state *State) error {
		return apierrors.NewTimeoutError(fmt.Sprintf("%s %q is stored, but is not visible yet: initializer %q has not finished within %s",
			c.store.resource, c.name, state.head(), patience.Round(time.Second)), 0)
	}
	state, err := c.look(ctx)
	if err != nil || state == nil {
		return err
	}
	from := storage.ListOptions{ResourceVersion: c.version, Predicate: storage.SelectionPredicate{
		Label: labels.Everything(), Field: fields.Everything(), GetAttrs: storage.DefaultClusterScopedAttr,
	}}
	w, err := c.store.Watch(ctx, c.key, from)
	if err != nil {
		return err
	}
	defer func() { w.Stop() }()
	for {
		select {
		case <-ctx.Done():
			return timeout(state)
		case event, ok := <-w.ResultChan():
			if !ok {
				if ctx.Err() != nil {
					return timeout(state)
				}
				next, err := c.store.Watch(ctx, c.key, from) // the watch cache ends one that is slow
				if err != nil {
					return err
				}
				w = next
				continue
			}
			switch event.Type {
			case watch.Added, watch.Modified, watch.Deleted:
			case watch.Error:
				return apierrors.FromObject(event.Object)
			default:
				continue
			}
			s, err := stateOf(unwrap(event.Object))
			switch {
			case err != nil:
				return apierrors.NewInternalError(err)
			case s != nil && s.Result != nil:
				return s.status()
			case event.Type == watch.Deleted:
				return apierrors.NewInternalError(fmt.Errorf("%s %q was deleted before it was initialized: initializer %q was next",
					c.store.resource, c.name, state.head()))
			case s == nil:
				return nil
			}
			state = s
		}
	}
}

// look reads the current state, which names the initializer that the object waits for.
func (c *created) look(ctx context.Context) (*State, error) {
	object := c.store.newFunc()
	switch err := c.store.Get(ctx, c.key, storage.GetOptions{}, object); {
	case storage.IsNotFound(err): // the watch has the reason
		return &State{}, nil
	case err != nil:
		return nil, err
	}
	state, err := stateOf(object)
	if state != nil && state.Result != nil {
		return nil, state.status()
	}
	return state, err
}

// held keeps an answer until it is sent.
type held struct {
	http.ResponseWriter
	header http.Header // its own; nil: the answer's
	code   int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (h *held) Header() http.Header {
	if h.header != nil {
		return h.header
	}
	return h.ResponseWriter.Header()
}

// WriteHeader implements http.ResponseWriter.
func (h *held) WriteHeader(code int) {
	if h.code == 0 {
		h.code = code
	}
}

// Write implements http.ResponseWriter.
func (h *held) Write(p []byte) (int, error) { return h.body.Write(p) }

// Flush implements http.Flusher.
func (h *held) Flush() {}

func (h *held) status() int {
	if h.code == 0 {
		return http.StatusOK
	}
	return h.code
}

// drop forgets an answer for another one.
func (h *held) drop() {
	for _, name := range []string{"Content-Type", "Content-Length"} {
		h.Header().Del(name)
	}
}

func (h *held) send() {
	header := h.ResponseWriter.Header()
	for name, values := range h.header {
		header[name] = values
	}
	body := h.body.Bytes()
	if isJSON(header.Get("Content-Type")) {
		body = outgoing(body)
	}
	if header.Get("Content-Length") != "" {
		header.Set("Content-Length", strconv.Itoa(len(body)))
	}
	h.ResponseWriter.WriteHeader(h.status())
	_, _ = h.ResponseWriter.Write(body) // the client is gone
}

func isJSON(contentType string) bool {
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && kind == runtime.ContentTypeJSON
}

// lines rewrites the events of a watch: each is a line of JSON.
type lines struct {
	http.ResponseWriter
	rest []byte
}

// Write implements http.ResponseWriter.
func (l *lines) Write(p []byte) (int, error) {
	if !isJSON(l.Header().Get("Content-Type")) {
		return l.ResponseWriter.Write(p)
	}
	l.rest = append(l.rest, p...)
	for {
		end := bytes.IndexByte(l.rest, '\n')
		if end < 0 {
			return len(p), nil
		}
		if _, err := l.ResponseWriter.Write(outgoing(l.rest[:end+1])); err != nil {
			return 0, err
		}
		l.rest = append(l.rest[:0], l.rest[end+1:]...)
	}
}

func (l *lines) end() { _, _ = l.ResponseWriter.Write(l.rest) }

// Unwrap implements responsewriter.UserProvidedDecorator: each event is written at once, so that only the inner writer
// flushes.
func (l *lines) Unwrap() http.ResponseWriter { return l.ResponseWriter }
