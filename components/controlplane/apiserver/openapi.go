package apiserver

import (
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/emicklei/go-restful/v3"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// documents serves the OpenAPI documents of the built-in API. Upstream's PrepareRun builds all of them before anything
// is served, a large part of a start on one core; here the first request for a document builds it, and many servers get
// none.
type documents struct {
	config    *genericapiserver.Config
	container *restful.Container
	v3        http.Handler
	requested atomic.Bool // a client has requested a document of version 3
}

// documentOnDemand gives kube-apiserver its documents. The configuration has SkipOpenAPIInstallation for it (newConfig)
// and must be completed.
func documentOnDemand(chain *apiserver.APIAggregator, config *genericapiserver.Config) (*documents, error) {
	core, err := coreOf(chain)
	if err != nil {
		return nil, err
	}
	d := &documents{config: config, container: core.Handler.GoRestfulContainer}
	v2 := onDemand(func(m *mux.PathRecorderMux) {
		routes.OpenAPI{Config: config.OpenAPIConfig}.InstallV2(d.container, m)
	})
	d.v3 = onDemand(func(m *mux.PathRecorderMux) {
		c := *config.OpenAPIV3Config
		c.Definitions = c.GetDefinitions(func(name string) spec.Ref { // once for all documents
			name, _ = c.GetDefinitionName(name)
			return spec.MustCreateRef("#/components/schemas/" + common.EscapeJsonPointer(name))
		})
		routes.OpenAPI{V3Config: &c}.InstallV3(d.container, m)
	})
	paths := core.Handler.NonGoRestfulMux
	paths.Handle("/openapi/v2", v2)
	paths.HandleFunc("/openapi/v3", d.index)
	paths.HandlePrefix("/openapi/v3/", http.HandlerFunc(d.document))
	return d, nil
}

// forget lets go of the definitions of all types, which the server needs until it is prepared.
func (d *documents) forget() { d.config.OpenAPIV3Config.Definitions = nil }

// document serves a document of version 3.
func (d *documents) document(w http.ResponseWriter, r *http.Request) {
	d.requested.Store(true)
	d.v3.ServeHTTP(w, r)
}

// index lists the documents of version 3. The aggregator reads it in PrepareRun and every second, and clients get what
// it has read. The list has no hashes, by which clients cache the documents, until one of them requests a document: all
// are built for their hashes.
func (d *documents) index(w http.ResponseWriter, r *http.Request) {
	if d.requested.Load() {
		d.v3.ServeHTTP(w, r)
		return
	}
	all := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
	for _, service := range d.container.RegisteredWebServices() {
		name := service.RootPath()[1:]
		all.Paths[name] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: "/openapi/v3/" + name}
	}
	w.Header().Set("Content-Type", "application/json")
	// If the response cannot be written, the client is gone.
	_ = json.NewEncoder(w).Encode(all)
}

// onDemand is a handler that its first request builds.
func onDemand(install func(*mux.PathRecorderMux)) http.Handler {
	made := sync.OnceValue(func() http.Handler {
		m := mux.NewPathRecorderMux("openapi")
		install(m)
		return m
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { made().ServeHTTP(w, r) })
}
