package dns

import (
	"context"
	"sync"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"kubelith.io/kubelith/base/events"
	"kubelith.io/kubelith/base/informers"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/reconcile"
)

// customizer follows the ConfigMap, and reports errors in it.
type customizer struct {
	client  kubernetes.Interface
	log     logrus.FieldLogger
	reports bool // with Events
	changed reconcile.Signal

	configMaps corelisters.ConfigMapNamespaceLister
	synced     cache.InformerSynced
	events     record.EventRecorder
	refused    string // the last refused text
}

func newCustomizer(client kubernetes.Interface, o Options, changed reconcile.Signal) *customizer {
	return &customizer{client: client, log: o.Log, reports: o.Events, changed: changed}
}

// watch starts the watch. The returned function ends it and waits.
func (c *customizer) watch(ctx context.Context) (stop func()) {
	factory := informers.One(c.client, customNamespace, names.DNSCustom)
	informer := factory.Core().V1().ConfigMaps()
	c.configMaps, c.synced = informer.Lister().ConfigMaps(customNamespace), informer.Informer().HasSynced
	_, _ = informer.Informer().AddEventHandler(informers.OnEvent(c.changed.Send)) // fails only on a stopped informer
	var stopEvents func()
	c.events, stopEvents = events.NewRecorder(ctx, c.client, corev1.EventSource{Component: names.DNSManager})
	end := informers.Start(ctx, factory)
	var once sync.Once
	return func() {
		once.Do(func() {
			end()
			stopEvents()
		})
	}
}

// wanted returns the ConfigMap's additions; those in use while the ConfigMap is unknown or wrong.
func (c *customizer) wanted(serving custom) custom {
	if !c.synced() {
		return serving
	}
	configMap, err := c.configMaps.Get(names.DNSCustom)
	if err != nil { // a cache's lister: it does not exist
		return custom{}
	}
	if text := textOf(configMap.Data); text == serving.text || text == c.refused {
		return serving
	}
	parsed, err := parseCustom(configMap.Data)
	if err != nil {
		c.refuse(parsed, err)
		return serving
	}
	return parsed
}

// refuse reports, once, that the ConfigMap's additions are not served, and why.
func (c *customizer) refuse(what custom, err error) {
	c.refused = what.text
	c.log.Warnf("rejected the ConfigMap %s/%s; DNS keeps its previous configuration: %v", customNamespace, names.DNSCustom, err)
	configMap, missing := c.configMaps.Get(names.DNSCustom)
	if missing == nil && c.reports {
		c.events.Eventf(configMap, corev1.EventTypeWarning, "CustomRefused", "DNS keeps its previous configuration: %v", err)
	}
}
