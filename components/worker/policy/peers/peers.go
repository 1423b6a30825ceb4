// Package peers sends agents what network policies must know about pods: namespace, labels, named ports, node and
// addresses. Agents may not read other nodes' pods, whose specs have more than that.
//
// A GET request for names.PolicyPodsPath is answered line by line, in JSON, for as long as it lasts: first all pods,
// then Synced, then changes.
package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	sharedinformers "kubelith.io/kubelith/base/informers"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/components/worker/policy/rules"
)

const (
	// writeTimeout is how long an agent may take to read a line.
	writeTimeout = 10 * time.Second
	// idle is how often something is sent while nothing changes: an agent that is gone is noticed.
	idle = 30 * time.Second
)

// line is one of the answer.
type line struct {
	Set    *Pod      `json:"set,omitempty"`
	Gone   types.UID `json:"gone,omitempty"`
	Synced bool      `json:"synced,omitempty"`
}

// Pod is a pod and its node. A static pod has the UID that its kubelet uses.
type Pod struct {
	rules.Pod
	Node string
}

// Of returns what agents get about a pod; nil if policies do not know it (rules.PodOf).
func Of(pod *corev1.Pod) *Pod {
	p := rules.PodOf(pod)
	if p == nil {
		return nil
	}
	p.UID = UID(pod)
	return &Pod{Pod: *p, Node: pod.Spec.NodeName}
}

// UID returns the UID that the kubelet uses for a pod: that of a static pod is not its mirror's.
func UID(pod *corev1.Pod) types.UID {
	if static := pod.Annotations[corev1.MirrorPodAnnotationKey]; static != "" {
		return types.UID(static)
	}
	return pod.UID
}

// Handler serves names.PolicyPodsPath from the informers of the process, and passes on other requests. Requests have
// been authorized.
func Handler(shared func() informers.SharedInformerFactory, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != names.PolicyPodsPath {
			next.ServeHTTP(w, req)
			return
		}
		if req.Method != http.MethodGet {
			http.Error(w, "only GET", http.StatusMethodNotAllowed)
			return
		}
		serve(w, req, shared().Core().V1().Pods().Informer())
	})
}

func serve(w http.ResponseWriter, req *http.Request, pods cache.SharedIndexInformer) {
	ctx, cancel := context.WithCancel(req.Context())
	defer cancel()
	control, encoder := http.NewResponseController(w), json.NewEncoder(w)
	w.Header().Set("Content-Type", "application/json")
	var mu sync.Mutex
	send := func(l line) {
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		_ = control.SetWriteDeadline(time.Now().Add(writeTimeout)) // in the process there is none
		err := encoder.Encode(l)
		if err == nil {
			err = control.Flush()
		}
		if err != nil {
			cancel()
		}
	}
	set := func(o any) {
		pod, ok := o.(*corev1.Pod)
		if !ok {
			return
		}
		if p := Of(pod); p != nil {
			send(line{Set: p})
		} else {
			send(line{Gone: UID(pod)})
		}
	}
	handler, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: set,
		UpdateFunc: func(before, after any) {
			a, okA := before.(*corev1.Pod)
			b, okB := after.(*corev1.Pod)
			if !okA || !okB || !same(a, b) {
				set(after)
			}
		},
		DeleteFunc: func(o any) {
			if pod, ok := sharedinformers.As[*corev1.Pod](o); ok {
				send(line{Gone: UID(pod)})
			}
		},
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer func() {
		cancel()
		_ = pods.RemoveEventHandler(handler) // fails only for a handler that does not exist
		mu.Lock()                            // nothing writes to w any more
		defer mu.Unlock()
	}()
	if !cache.WaitFor(ctx, "", handler.HasSyncedChecker()) {
		return
	}
	send(line{Synced: true})
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(idle):
			send(line{})
		}
	}
}

// same reports whether policies cannot tell two states of a pod apart: most changes of a pod are of its conditions.
func same(a, b *corev1.Pod) bool {
	x, errX := json.Marshal(Of(a))
	y, errY := json.Marshal(Of(b))
	return errX == nil && errY == nil && a.UID == b.UID && string(x) == string(y)
}

// Follow reads the pods from an API server until the connection ends, with an error that says why. Pods that are not
// sent before Synced are gone: known are those from an earlier connection.
func Follow(ctx context.Context, client rest.Interface, known map[types.UID]bool, set func(*Pod), gone func(types.UID), synced func()) error {
	body, err := client.Get().AbsPath(names.PolicyPodsPath).Stream(ctx)
	if err != nil {
		return err
	}
	defer body.Close()
	told := map[types.UID]bool{}
	lines := json.NewDecoder(body) // of any length: a pod may have more than a MiB of labels
	for {
		var l line
		switch err := lines.Decode(&l); {
		case errors.Is(err, io.EOF):
			return io.ErrUnexpectedEOF
		case err != nil:
			return fmt.Errorf("the API server's answer: %w", err)
		}
		switch {
		case l.Set != nil:
			told[l.Set.UID], known[l.Set.UID] = true, true
			set(l.Set)
		case l.Gone != "":
			delete(known, l.Gone)
			gone(l.Gone)
		case l.Synced:
			for uid := range known {
				if !told[uid] {
					delete(known, uid)
					gone(uid)
				}
			}
			synced()
		}
	}
}
