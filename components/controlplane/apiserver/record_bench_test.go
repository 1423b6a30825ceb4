package apiserver

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	core "k8s.io/kubernetes/pkg/apis/core"

	"kubelith.io/kubelith/trace/record"
)

// noStorage stores nothing.
type noStorage struct{ storage.Interface }

func (noStorage) Create(_ context.Context, _ string, _, _ runtime.Object, _ uint64) error { return nil }

type noPlugin struct{ admission.Interface }

func (noPlugin) Admit(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	return nil
}

func (noPlugin) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	return nil
}

// BenchmarkRecord is what the recorder adds to the creation of a pod and to a read: everything else does nothing, the
// admission plugins are as many as upstream's.
func BenchmarkRecord(b *testing.B) {
	resource := schema.GroupResource{Resource: "pods"}
	pod := &core.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", OwnerReferences: []metav1.OwnerReference{{UID: "owner"}}},
		Spec:       core.PodSpec{Containers: []core.Container{{Name: "main"}}},
	}
	somebody := &user.DefaultInfo{Name: "somebody"}
	attributes := admission.NewAttributesRecord(pod, nil, core.Kind("Pod").WithVersion("v1"), "ns", "p", corev1.SchemeGroupVersion.WithResource("pods"), "", admission.Create, nil, false, somebody)
	for _, method := range []string{http.MethodPost, http.MethodGet} {
		for _, recorded := range []bool{false, true} {
			b.Run(method+"/recorded="+strconv.FormatBool(recorded), func(b *testing.B) {
				var r *flight
				if recorded {
					r = newFlight(record.NewStore(record.Options{}))
				}
				plugins := make([]noPlugin, 25)
				admit := make([]admission.MutationInterface, len(plugins))
				for i := range plugins {
					admit[i] = plugins[i]
					if recorded {
						admit[i] = r.admit(plugins[i], "Plugin"+strconv.Itoa(i)).(admission.MutationInterface)
					}
				}
				var store storage.Interface = noStorage{}
				if recorded {
					store = &recordedStorage{Interface: store, recorder: r, resource: resource, name: "pods"}
				}
				n := 0
				build := func(api http.Handler, c *genericapiserver.Config) http.Handler {
					return filters.WithRequestInfo(filters.WithLatencyTrackers(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
						api.ServeHTTP(w, req.WithContext(apirequest.WithUser(req.Context(), somebody)))
					})), c.RequestInfoResolver)
				}
				chain := r.wrap(build)(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					if req.Method == http.MethodPost {
						for _, a := range admit {
							_ = a.Admit(req.Context(), attributes, nil)
							_ = a.(admission.ValidationInterface).Validate(req.Context(), attributes, nil)
						}
						n++
						made := *pod
						made.Name = strconv.Itoa(n)
						made.UID = types.UID(made.Name)
						_ = store.Create(req.Context(), "", &made, &made, 0)
					}
					w.WriteHeader(http.StatusCreated)
					_, _ = io.WriteString(w, "answer")
				}), &genericapiserver.Config{RequestInfoResolver: &apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("api"), GrouplessAPIPrefixes: sets.NewString("api")}})
				req := httptest.NewRequest(method, "/api/v1/namespaces/ns/pods", nil)
				req.Header.Set("User-Agent", "kubectl/v1 (linux/amd64)")
				b.ReportAllocs()
				for b.Loop() {
					chain.ServeHTTP(discard{}, req)
				}
			})
		}
	}
}

// discard is a ResponseWriter that writes nothing.
type discard struct{}

func (discard) Header() http.Header            { return http.Header{} }
func (discard) Write(data []byte) (int, error) { return len(data), nil }
func (discard) WriteHeader(int)                {}
