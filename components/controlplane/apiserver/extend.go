package apiserver

import (
	"errors"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"

	"kubelith.io/kubelith/components/worker/policy/peers"
)

// Extension is an API group that the process serves in addition to upstream's. The aggregator routes requests for it to
// kube-apiserver, and so to Install's storage, when its APIService names no Service.
type Extension struct {
	// Scheme has the types of the group, for the OpenAPI documents. Upstream's generated definitions must have them
	// too.
	Scheme *runtime.Scheme
	// Install adds the group to kube-apiserver, before anything is served or any informer runs.
	Install func(core *genericapiserver.GenericAPIServer, shared informers.SharedInformerFactory) error
}

// extend installs the extension, if there is one.
func (s *Server) extend(chain *aggregator.APIAggregator) error {
	if s.opts.Extend == nil {
		return nil
	}
	core, err := coreOf(chain)
	if err != nil {
		return err
	}
	return s.opts.Extend.Install(core, s.shared)
}

// schemes are those of the extension.
func (s *Server) schemes() []*runtime.Scheme {
	if s.opts.Extend == nil {
		return nil
	}
	return []*runtime.Scheme{s.opts.Extend.Scheme}
}

// coreOf is kube-apiserver in the chain of the three servers.
func coreOf(chain *aggregator.APIAggregator) (*genericapiserver.GenericAPIServer, error) {
	core, ok := chain.GenericAPIServer.NextDelegate().(*genericapiserver.GenericAPIServer)
	if !ok {
		return nil, errors.New("the API aggregator does not delegate to kube-apiserver: this release of Kubernetes composes its servers differently")
	}
	return core, nil
}

// serveConfigurations lets Initializers send requests for their custom resource to the server of custom resources.
func (s *Server) serveConfigurations(chain *aggregator.APIAggregator) error {
	core, err := coreOf(chain)
	if err != nil {
		return err
	}
	s.initializers.ServeExtensions(core.NextDelegate().UnprotectedHandler())
	return nil
}

// tellPeers serves what agents know of pods for network policies, and what the process serves in addition.
func (s *Server) tellPeers(build func(http.Handler, *genericapiserver.Config) http.Handler) func(http.Handler, *genericapiserver.Config) http.Handler {
	return func(next http.Handler, c *genericapiserver.Config) http.Handler {
		if s.opts.Handle != nil {
			next = s.opts.Handle(next)
		}
		return build(peers.Handler(s.Informers, next), c)
	}
}
