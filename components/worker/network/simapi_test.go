package network

import (
	"encoding/json"
	"maps"
	"net/http"
	"path"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/base/names"
)

// fakeAPI serves Nodes to informers.
type fakeAPI struct {
	mu       sync.Mutex
	version  int
	nodes    map[string]*corev1.Node
	watchers map[chan watchEvent]bool
}

type watchEvent struct {
	Type   string       `json:"type"`
	Object *corev1.Node `json:"object"`
}

func (a *fakeAPI) set(n *corev1.Node) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	n = n.DeepCopy()
	n.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	n.ResourceVersion = strconv.Itoa(a.version)
	kind := "ADDED"
	if _, there := a.nodes[n.Name]; there {
		kind = "MODIFIED"
	}
	a.nodes[n.Name] = n
	for w := range a.watchers {
		w <- watchEvent{kind, n}
	}
}

// key is the WireGuard key in the Node.
func (a *fakeAPI) key(name string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.nodes[name].Annotations[names.WireGuardKeyAnnotation]
}

func (a *fakeAPI) remove(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	n := a.nodes[name].DeepCopy()
	n.ResourceVersion = strconv.Itoa(a.version)
	delete(a.nodes, name)
	for w := range a.watchers {
		w <- watchEvent{"DELETED", n}
	}
}

// annotate answers a merge patch of annotations.
func (a *fakeAPI) annotate(w http.ResponseWriter, r *http.Request) {
	var patch corev1.Node
	err := json.NewDecoder(r.Body).Decode(&patch)
	a.mu.Lock()
	n, there := a.nodes[path.Base(r.URL.Path)]
	a.mu.Unlock()
	if err != nil || !there {
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
		return
	}
	n = n.DeepCopy()
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	maps.Copy(n.Annotations, patch.Annotations)
	a.set(n)
	_ = json.NewEncoder(w).Encode(n)
}

func (a *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	out := json.NewEncoder(w)
	if r.Method == http.MethodPatch {
		a.annotate(w, r)
		return
	}
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		w.WriteHeader(http.StatusUnprocessableEntity) // no streaming lists here: list, then watch
		return
	}
	a.mu.Lock()
	list := corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(a.version)}}
	since, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	events := make(chan watchEvent, 1000)
	for _, n := range a.nodes {
		list.Items = append(list.Items, *n)
		if v, _ := strconv.Atoi(n.ResourceVersion); v > since {
			events <- watchEvent{"MODIFIED", n}
		}
	}
	if r.URL.Query().Get("watch") == "" {
		a.mu.Unlock()
		_ = out.Encode(list)
		return
	}
	a.watchers[events] = true
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.watchers, events)
		a.mu.Unlock()
	}()
	w.(http.Flusher).Flush()
	for {
		select {
		case e := <-events:
			if out.Encode(e) != nil {
				return
			}
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}
