package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/scheme"
	externalinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// definitions is an API with one CustomResourceDefinition, which is being deleted. Watches see one update after the
// other, and each a little later, as they do on a busy machine.
type definitions struct {
	mu      sync.Mutex
	crd     *apiextensionsv1.CustomResourceDefinition // nil when it is gone
	version int
	updates []*apiextensionsv1.CustomResourceDefinition
	lag     time.Duration
	ended   <-chan struct{}
}

func (d *definitions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/status"):
		body, _ := io.ReadAll(r.Body)
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		update := object.(*apiextensionsv1.CustomResourceDefinition)
		update.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
		if d.crd == nil || update.ResourceVersion != d.crd.ResourceVersion {
			w.WriteHeader(http.StatusConflict)
			json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonConflict, Code: http.StatusConflict})
			return
		}
		d.version++
		update.ResourceVersion = strconv.Itoa(d.version)
		d.crd = update
		d.updates = append(d.updates, update.DeepCopy())
		if len(update.Finalizers) == 0 {
			d.crd = nil
		}
		json.NewEncoder(w).Encode(update)
	case r.URL.Query().Get("sendInitialEvents") != "": // the client lists then
		w.WriteHeader(http.StatusUnprocessableEntity)
		json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity})
	case r.URL.Query().Get("watch") != "":
		d.watch(w)
	default:
		list := apiextensionsv1.CustomResourceDefinitionList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(d.version)}}
		list.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinitionList"))
		if d.crd != nil {
			list.Items = append(list.Items, *d.crd)
		}
		json.NewEncoder(w).Encode(&list)
	}
}

// watch sends the updates, late. It needs the lock.
func (d *definitions) watch(w http.ResponseWriter) {
	w.(http.Flusher).Flush()
	for sent := len(d.updates); ; {
		d.mu.Unlock()
		var over bool
		select {
		case <-time.After(d.lag):
		case <-d.ended:
			over = true
		}
		d.mu.Lock()
		if over {
			return
		}
		if sent < len(d.updates) {
			object, _ := json.Marshal(d.updates[sent])
			json.NewEncoder(w).Encode(metav1.WatchEvent{Type: "MODIFIED", Object: runtime.RawExtension{Raw: object}})
			sent++
		}
		w.(http.Flusher).Flush()
	}
}

// instances are those of the definition: none, in a storage that is not ready at the first looks.
type instances struct {
	*customresource.REST
	mu    sync.Mutex
	looks int
}

func (i *instances) GetCustomResourceListerCollectionDeleter(*apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error) {
	return i, nil
}

func (i *instances) List(context.Context, *metainternalversion.ListOptions) (runtime.Object, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.looks++; i.looks <= 1 {
		return nil, errors.New("storage is (re)initializing")
	}
	return &unstructured.UnstructuredList{}, nil
}

// TestTerminatingDefinition: upstream's finalizer finishes a definition whose storage was not ready at first, though it
// sees its own updates late.
func TestTerminatingDefinition(t *testing.T) {
	deleted := metav1.Now()
	ended := make(chan struct{})
	api := &definitions{version: 1, lag: 300 * time.Millisecond, ended: ended, crd: &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: "as.example.com", UID: "1", ResourceVersion: "1", DeletionTimestamp: &deleted, Finalizers: []string{apiextensionsv1.CustomResourceCleanupFinalizer}},
		Spec:       apiextensionsv1.CustomResourceDefinitionSpec{Group: "example.com"},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{
			{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}},
	}}
	server := httptest.NewServer(api)
	defer server.Close()
	cs, err := clientset.NewForConfig(reportConflicts(&rest.Config{Host: server.URL, QPS: -1}))
	if err != nil {
		t.Fatal(err)
	}
	factory := externalinformers.NewSharedInformerFactory(cs, 5*time.Minute) // as upstream
	ctx, cancel := context.WithCancel(t.Context())
	controller := finalizer.NewCRDFinalizer(factory.Apiextensions().V1().CustomResourceDefinitions(), cs.ApiextensionsV1(), &instances{})
	var running sync.WaitGroup
	running.Go(func() { controller.RunWithContext(1, ctx) })
	factory.Start(ctx.Done())
	defer func() { cancel(); close(ended); factory.Shutdown(); running.Wait() }()

	eventually(t, "be finished", func() error {
		api.mu.Lock()
		defer api.mu.Unlock()
		if api.crd != nil {
			return errors.New(api.crd.Status.Conditions[len(api.crd.Status.Conditions)-1].Message)
		}
		return nil
	})
}
