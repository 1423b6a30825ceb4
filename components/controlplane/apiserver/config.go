package apiserver

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/http"
	"strings"
	"time"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apiextensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericfeatures "k8s.io/apiserver/pkg/features"
	registry "k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/server/filters"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/openapi"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	aggregatoropenapi "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
	"k8s.io/kubernetes/pkg/kubeapiserver"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/informers"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/tunnel"
	"kubelith.io/kubelith/components/controlplane/apiserver/etcdconn"
)

// newConfig is upstream's app.NewConfig, recomposed from the same exported parts for one reason: upstream builds the
// apiserver's own client and informers from a TLS loopback configuration; ours go in memory.
// Source: cmd/kube-apiserver/app/config.go.
func (s *Server) newConfig(ctx context.Context, opts options.CompletedOptions) (*app.Config, error) {
	generic, storage, err := s.genericConfig(ctx, opts)
	if err != nil {
		return nil, err
	}
	own := ownInformers{s.shared, &s.served}
	core, services, initializers, err := app.CreateKubeAPIServerConfig(opts, generic, own, storage)
	if err != nil {
		return nil, err
	}
	if s.opts.SlowSync != nil {
		renewSlowly(core, s.opts.SlowSync())
	}
	if s.opts.DialKubelet != nil && s.ownEgress {
		core.Extra.KubeletClientConfig.Lookup = func(egressselector.NetworkContext) (utilnet.DialFunc, error) { return s.opts.DialKubelet, nil }
	}
	cp := &core.ControlPlane
	webhookAuth := webhook.NewDefaultAuthenticationInfoResolverWrapper(
		cp.ProxyTransport, generic.EgressSelector, generic.LoopbackClientConfig, generic.TracerProvider)
	extensions, err := controlplaneapiserver.CreateAPIExtensionsConfig(
		*generic, own, initializers, opts.CompletedOptions, opts.MasterCount, services, webhookAuth)
	if err != nil {
		return nil, err
	}
	extensions.GenericConfig.LoopbackClientConfig = reportConflicts(generic.LoopbackClientConfig)
	aggregator, err := controlplaneapiserver.CreateAggregatorConfig(
		*generic, opts.CompletedOptions, own, services, cp.ProxyTransport, cp.Extra.PeerProxy, initializers)
	if err != nil {
		return nil, err
	}
	documentFew(extensions.GenericConfig, apiextensionsopenapi.GetOpenAPIDefinitions)
	documentFew(aggregator.GenericConfig, aggregatoropenapi.GetOpenAPIDefinitions)
	// All requests go through the aggregator.
	initialized := s.initializers.Wrap(aggregator.GenericConfig.BuildHandlerChainFunc)
	aggregator.GenericConfig.BuildHandlerChainFunc = s.recorder.wrap(s.tellPeers(s.traced(s.removals.endable(initialized))))
	for _, options := range []*registry.RESTOptionsGetter{
		&cp.Generic.RESTOptionsGetter,
		&extensions.ExtraConfig.CRDRESTOptionsGetter, &extensions.GenericConfig.RESTOptionsGetter,
		&aggregator.GenericConfig.RESTOptionsGetter,
	} {
		*options = s.recorder.storage(s.initializers.Storage(*options))
	}
	// After the others have taken their copies: theirs are small, and CRDs are added to them. See documentOnDemand.
	cp.Generic.SkipOpenAPIInstallation = true
	return &app.Config{Options: opts, KubeAPIs: core, ApiExtensions: extensions, Aggregator: aggregator}, nil
}

// renewSlowly lets an API server on a slow disk renew its own records less often. It writes its address in
// default/kubernetes every 10 s, with a new lease of 15 s, and its address for other API servers likewise. Each lease
// that ends makes etcd commit, with two syncs that block all reads and writes; and the lease of such a key may end
// before the key is written. With several servers, a dead one stays in default/kubernetes for longer.
func renewSlowly(c *controlplane.Config, sync time.Duration) {
	if sync == 0 {
		return
	}
	every := max(controlplane.DefaultEndpointReconcilerInterval, 24*sync)
	c.EndpointReconcilerConfig.Interval, c.Extra.MasterEndpointReconcileTTL = every, every*5/2
	if c.ControlPlane.PeerProxy == nil { // without --peer-ca-file nothing reads it
		c.ControlPlane.PeerEndpointReconcileInterval = time.Hour
	}
}

// withTLSOptions allows TLS options in a configuration that has its own transport and does not use them. For webhooks
// and conversions at the Service default/kubernetes upstream adds their CA to the loopback configuration. client-go
// refuses that together with a transport, but not with a wrapper.
func withTLSOptions(c *rest.Config) *rest.Config {
	own := c.Transport
	c.Transport = nil
	c.WrapTransport = func(http.RoundTripper) http.RoundTripper { return own }
	return c
}

// serverID is unique among the servers of a cluster, and the same after a restart. Upstream takes the host's name,
// which is not unique.
// Source: k8s.io/apiserver/pkg/server/config.go.
func serverID(name string) string {
	hash := sha256.Sum256([]byte(name))
	return "apiserver-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(hash[:16]))
}

// genericConfig is upstream's BuildGenericConfig with the in-process loopback client. All three servers get copies of
// the result, so that the authenticator and the authorizer of the process are set here, once.
// Source: pkg/controlplane/apiserver/config.go.
func (s *Server) genericConfig(ctx context.Context, o options.CompletedOptions) (*genericapiserver.Config, *serverstorage.DefaultStorageFactory, error) {
	codecs := legacyscheme.Codecs
	if utilfeature.DefaultFeatureGate.Enabled(genericfeatures.CBORServingAndStorage) {
		codecs = serializer.NewCodecFactory(legacyscheme.Scheme, serializer.WithSerializer(cbor.NewSerializerInfo))
	}
	c := genericapiserver.NewConfig(codecs)
	c.APIServerID = serverID(s.opts.NodeName)
	c.Flagz = o.Flagz
	c.MergedResourceConfig = controlplane.DefaultAPIResourceConfigSource()
	if err := o.GenericServerRunOptions.ApplyTo(c); err != nil {
		return nil, nil, err
	}
	// The embedded options, not their WithLoopback wrapper: no self-signed
	// loopback certificate is needed.
	if err := o.SecureServing.SecureServingOptions.ApplyTo(&c.SecureServing); err != nil {
		return nil, nil, err
	}

	c.LoopbackClientConfig = withTLSOptions(s.opts.Client.Config(client.APIServer))
	own, err := kubernetes.NewForConfig(c.LoopbackClientConfig)
	if err != nil {
		return nil, nil, err
	}
	if s.shared, err = informers.NewShared(own, c.DrainedNotify()); err != nil {
		return nil, nil, err
	}
	close(s.created)
	if err := s.followRemovals(); err != nil {
		return nil, nil, err
	}
	if err := o.Features.ApplyTo(c, own, s.shared); err != nil {
		return nil, nil, err
	}
	if err := o.APIEnablement.ApplyTo(c, c.MergedResourceConfig, legacyscheme.Scheme); err != nil {
		return nil, nil, err
	}
	if err := o.EgressSelector.ApplyTo(c); err != nil {
		return nil, nil, err
	}
	s.ownEgress = c.EgressSelector == nil
	if s.opts.DialCluster != nil && s.ownEgress { // other connections do not use our dialer
		c.EgressSelector = egressselector.NewEgressSelectorWithMap(map[egressselector.EgressType]utilnet.DialFunc{egressselector.Cluster: s.opts.DialCluster})
	}
	// Tracer provider: the place to add spans of the whole process.
	if err := o.Traces.ApplyTo(c.EgressSelector, c); err != nil {
		return nil, nil, err
	}
	documentAPI(c, s.schemes()...)
	longRunning := filters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"),
		sets.NewString("attach", "exec", "proxy", "log", "portforward"),
	)
	c.LongRunningFunc = func(req *http.Request, info *apirequest.RequestInfo) bool {
		return info.Path == names.PolicyPodsPath || info.Path == tunnel.Path || strings.HasPrefix(info.Path, names.UpgradesPath) || longRunning(req, info)
	}

	if s.opts.EtcdAnswers != nil {
		select {
		case <-s.opts.EtcdAnswers:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
	storage, err := newStorage(c, o)
	if err != nil {
		return nil, nil, err
	}
	drained := wait.ContextForChannel(c.DrainedNotify())
	if err := o.Authentication.ApplyTo(
		drained, &c.Authentication, c.SecureServing, c.EgressSelector, c.OpenAPIConfig, c.OpenAPIV3Config,
		own, s.shared, c.APIServerID,
	); err != nil {
		return nil, nil, err
	}
	rbac, err := s.authorization(drained, c, o)
	if err != nil {
		return nil, nil, err
	}
	if err := s.trustProcess(c); err != nil {
		return nil, nil, err
	}
	// Audit backend: the place to add our own sink.
	if err := o.Audit.ApplyTo(c); err != nil {
		return nil, nil, err
	}
	c.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")
	if err := c.AddPostStartHook("kubelith-initializers", s.initializers.Start); err != nil {
		return nil, nil, err
	}
	return c, storage, addBootstrap(c, s.shared, &s.opts, rbac, &s.goroutines)
}

// documentAPI sets the OpenAPI documents; more are schemes in addition to upstream's.
func documentAPI(c *genericapiserver.Config, more ...*runtime.Scheme) {
	definitions := openapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(generatedopenapi.GetOpenAPIDefinitions)
	namer := apiopenapi.NewDefinitionNamer(append([]*runtime.Scheme{legacyscheme.Scheme, apiextensionsapiserver.Scheme, aggregatorscheme.Scheme}, more...)...)
	c.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	c.OpenAPIConfig.Info.Title = "Kubernetes"
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	c.OpenAPIV3Config.Info.Title = "Kubernetes"
	// By default the first document sets these to functions that keep all definitions in memory.
	c.OpenAPIConfig.GetOperationIDAndTagsFromRoute = operation
	c.OpenAPIV3Config.GetOperationIDAndTagsFromRoute = operation
}

// documentFew lets a server that has few types of its own build its document of version 2 from their definitions. It
// needs no others, and those of all types take 26 ms of CPU.
func documentFew(c *genericapiserver.RecommendedConfig, own common.GetOpenAPIDefinitions) {
	few := *c.OpenAPIConfig
	few.GetDefinitions = openapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(own)
	c.OpenAPIConfig = &few
}

// operation returns the ID and the tags of a route in the OpenAPI documents.
func operation(r common.Route) (string, []string, error) {
	route, ok := r.(*restfuladapter.RouteAdapter)
	if !ok {
		return "", nil, fmt.Errorf("%s %s: a route of type %T has no OpenAPI document", r.Method(), r.Path(), r)
	}
	return apiopenapi.GetOperationIDAndTags(route.Route)
}

// newStorage connects the API's resources to etcd.
func newStorage(c *genericapiserver.Config, o options.CompletedOptions) (*serverstorage.DefaultStorageFactory, error) {
	if c.EgressSelector != nil {
		o.Etcd.StorageConfig.Transport.EgressLookup = c.EgressSelector.Lookup
	}
	o.Etcd.StorageConfig.Transport.TracerProvider = c.TracerProvider
	fc := kubeapiserver.NewStorageFactoryConfigEffectiveVersion(c.EffectiveVersion)
	fc.APIResourceConfig = c.MergedResourceConfig
	fc.DefaultResourceEncoding.SetEffectiveVersion(c.EffectiveVersion)
	storage, err := fc.Complete(o.Etcd).New()
	if err != nil {
		return nil, err
	}
	etcdconn.Share()
	storage.StorageConfig.StorageObjectCountTracker = c.StorageObjectCountTracker
	return storage, o.Etcd.ApplyWithStorageFactoryTo(storage, c)
}

// authorization sets the authorizers, and reports whether RBAC is one of them.
func (s *Server) authorization(ctx context.Context, c *genericapiserver.Config, o options.CompletedOptions) (bool, error) {
	authorizer, rules, rbac, err := controlplaneapiserver.BuildAuthorizer(ctx, o.CompletedOptions, c.EgressSelector, c.APIServerID, s.shared)
	if err != nil {
		return false, fmt.Errorf("invalid authorization config: %w", err)
	}
	c.Authorization.Authorizer, c.RuleResolver = authorizer, rules
	return o.Authorization == nil || rbac, nil
}
