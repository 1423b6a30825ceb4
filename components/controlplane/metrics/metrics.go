// Package metrics serves the resource metrics API (metrics.k8s.io), which `kubectl top` and the horizontal pod
// autoscaler use.
//
// It is metrics-server as a library: its scraper reads /metrics/resource from every kubelet, its storage keeps the last
// two results and computes rates, and its API group is installed into the process's own apiserver (Install), behind the
// same authentication, authorization and flow control as the rest. There is no pod, no port, no proxying and no
// informer: nodes and pods are read from the shared ones.
//
// Our own code reads from kubelets (kubelet.go, decode.go). The APIService that makes the aggregator route requests
// back into the process is one for all servers (components/cluster/metricspublisher).
package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	typedv1 "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	"sigs.k8s.io/metrics-server/pkg/api"
	"sigs.k8s.io/metrics-server/pkg/scraper"
	"sigs.k8s.io/metrics-server/pkg/scraper/client"
	"sigs.k8s.io/metrics-server/pkg/storage"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
)

const (
	// resolution is the time between two rounds, as in metrics-server's manifests. Kubelets measure every 10 s.
	resolution = 15 * time.Second
	// patience is the timeout of one round: it ends before the next one.
	patience = 10 * time.Second
)

// Options configures the component.
type Options struct {
	// Client calls the apiserver. Its identity gets one APIService.
	Client *rest.Config
	// PKI has the certificate with which the apiserver calls kubelets, and the CA of the kubelets' certificates.
	PKI *pki.Bundle
	// Dial connects to kubelets: a Node may name any address. nil: to any.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Log receives the component's own messages; metrics-server writes to klog.
	Log logrus.FieldLogger
}

// Server is the component.
type Server struct {
	opts  Options
	store storage.Storage
	nodes corelisters.NodeLister // set by Install
	work  lifecycle.Watchdog
}

var (
	_ lifecycle.Component = (*Server)(nil)
	_ lifecycle.Health    = (*Server)(nil)
)

// New returns the component; nothing is started.
func New(o Options) *Server { return &Server{opts: o, store: storage.NewStorage(resolution)} }

// Scheme has the types of the API group.
func Scheme() *runtime.Scheme { return api.Scheme }

// Install adds the API group to kube-apiserver, before it serves. The informers need not run yet.
func (s *Server) Install(core *genericapiserver.GenericAPIServer, shared informers.SharedInformerFactory) error {
	s.nodes = shared.Core().V1().Nodes().Lister()
	if err := api.Install(s.store, podLister{shared.Core().V1().Pods().Lister()}, s.nodes, core, nil); err != nil {
		return fmt.Errorf("install the resource metrics API: %w", err)
	}
	return nil
}

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "metrics-server" }

// Needs implements lifecycle.Component. This node's kubelet is needed so that the first round finds it.
func (s *Server) Needs() []string { return []string{"apiserver", "kubelet"} }

// RestartPolicy implements lifecycle.Restarter.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartBeside }

// Healthy implements lifecycle.Health: no round takes too long.
func (s *Server) Healthy(ctx context.Context) error { return s.work.Healthy(ctx) }

// Run implements lifecycle.Component. It is ready at once: metrics exist after the second round, and no component waits
// for them.
func (s *Server) Run(ctx context.Context, ready func()) error {
	s.work.Reset()
	if s.nodes == nil {
		return errors.New("the API group is not installed in the apiserver")
	}
	c, err := clientset.NewForConfig(s.opts.Client)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	kubelets, err := newKubelets(s.opts, s.nodes)
	if err != nil {
		return err
	}
	defer kubelets.client.CloseIdleConnections()
	ready()
	s.rounds(ctx, c.ApiregistrationV1().APIServices(), kubelets)
	return nil
}

// rounds reads from all kubelets repeatedly until ctx ends.
func (s *Server) rounds(ctx context.Context, apiServices typedv1.APIServiceInterface, kubelets client.KubeletMetricsGetter) {
	all := scraper.NewScraper(s.nodes, kubelets, patience, nil)
	tick := time.NewTicker(resolution)
	defer tick.Stop()
	for {
		done := s.work.Begin("scraping the kubelets")
		ours, err := isOurs(ctx, apiServices)
		if err != nil && ctx.Err() == nil {
			s.opts.Log.Warnf("cannot read APIService %s, retrying in %s: %v", names.MetricsAPIService, resolution, err)
		}
		// When a user's own metrics-server serves the API, no request comes to us.
		if ours {
			s.store.Store(all.Scrape(ctx))
		}
		done()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// isOurs reports whether requests come to this process: not when a user's own metrics-server has an APIService, which
// names its Service. One that is missing will be ours.
func isOurs(ctx context.Context, c typedv1.APIServiceInterface) (bool, error) {
	got, err := c.Get(ctx, names.MetricsAPIService, metav1.GetOptions{ResourceVersion: "0"}) // from the watch cache
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return err == nil && got.Spec.Service == nil, err
}
