package controllermanager

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/informers"
)

// controllerContext wraps upstream's, which has value receivers.
type controllerContext struct{ app.ControllerContext }

// mapperReset is how often the RESTMapper forgets what it discovered, as in upstream.
const mapperReset = 30 * time.Second

// controllerContext is upstream's CreateControllerContext, on the shared informers and with in-process clients.
// Source: cmd/kube-controller-manager/app/controllermanager.go. Handlers of its informers are called once the factory
// is started.
//
// end is called after ctx has ended, and waits for the goroutines of the context.
func (s *Server) controllerContext(ctx context.Context) (_ controllerContext, end func(), err error) {
	own := s.opts.Client.Config(client.ControllerManager)
	metadataClient, err := metadata.NewForConfig(own)
	if err != nil {
		return controllerContext{}, nil, err
	}
	discoveryClient, err := discovery.NewDiscoveryClientForConfig(own)
	if err != nil {
		return controllerContext{}, nil, err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discoveryClient))
	var resetting sync.WaitGroup
	resetting.Go(func() { wait.Until(mapper.Reset, mapperReset, ctx.Done()) })

	shared := informers.NewView(s.opts.Informers())
	ofMetadata := metadatainformer.NewSharedInformerFactoryWithOptions(metadataClient, s.resync(), metadatainformer.WithTransform(informers.Trim))
	cc := app.ControllerContext{
		ClientBuilder:                   clientBuilder{s.opts.Client},
		InformerFactory:                 shared,
		ObjectOrMetadataInformerFactory: informerfactory.NewInformerFactory(shared, ofMetadata),
		ComponentConfig:                 s.config.ComponentConfig,
		RESTMapper:                      mapper,
		InformersStarted:                make(chan struct{}),
		ResyncPeriod:                    s.resync,
		ControllerManagerMetrics:        controllersmetrics.NewControllerManagerMetrics("kube-controller-manager"),
	}
	gc := s.config.ComponentConfig.GarbageCollectorController
	if gc.EnableGarbageCollector {
		ignored := map[schema.GroupResource]struct{}{}
		for _, r := range gc.GCIgnoredResources {
			ignored[schema.GroupResource{Group: r.Group, Resource: r.Resource}] = struct{}{}
		}
		cc.GraphBuilder = garbagecollector.NewDependencyGraphBuilder(ctx, metadataClient, mapper, ignored,
			cc.ObjectOrMetadataInformerFactory, cc.InformersStarted)
	}
	controllersmetrics.Register()
	return controllerContext{cc}, func() { shared.Close(); ofMetadata.Shutdown(); resetting.Wait() }, nil
}

// resync is between one and two times --min-resync-period, as in upstream.
func (s *Server) resync() time.Duration {
	least := s.config.ComponentConfig.Generic.MinResyncPeriod.Duration
	return least + rand.N(least)
}
