package proxy

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	corelisters "k8s.io/client-go/listers/core/v1"
	kubeproxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/config"
	"k8s.io/kubernetes/pkg/proxy/healthcheck"
	"k8s.io/kubernetes/pkg/proxy/nftables"
	"k8s.io/kubernetes/pkg/proxy/runner"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"

	"kubelith.io/kubelith/base/lifecycle"
)

// family is upstream's proxier of one address family and the loop that makes it write its rules. The loop replaces the
// proxier's SyncLoop, which never ends; it is the same runner with the same intervals.
type family struct {
	name    corev1.IPFamily
	proxier *nftables.Proxier
	runner  *runner.BoundedFrequencyRunner
	health  *healthcheck.ProxyHealthServer
	work    *lifecycle.Watchdog
	first   func() // called after each success
}

func newFamily(
	name corev1.IPFamily, p *nftables.Proxier, c *kubeproxyconfig.KubeProxyConfiguration,
	health *healthcheck.ProxyHealthServer, work *lifecycle.Watchdog, first func(),
) *family {
	f := &family{name: name, proxier: p, health: health, work: work, first: first}
	f.runner = runner.NewBoundedFrequencyRunner("proxy-"+string(name), f.sync,
		c.MinSyncPeriod.Duration, c.SyncPeriod.Duration, proxyutil.FullSyncPeriod)
	return f
}

// sync writes the rules now, through the proxier's exported method OnServiceSynced. It does nothing before both
// Services and EndpointSlices have arrived, and it reports success only through the health server.
func (f *family) sync() error {
	defer f.work.Begin("writing " + string(f.name) + " rules")()
	began := time.Now()
	f.proxier.OnServiceSynced()
	if f.health.Health().Status[f.name].LastUpdated.Before(began) {
		return fmt.Errorf("cannot write %s rules", f.name)
	}
	f.first()
	return nil
}

// families passes events to every family's proxier and then makes it write.
type families struct {
	each   []*family
	synced [2]atomic.Bool // Services, EndpointSlices

	events  sync.RWMutex // read-held while one is passed on
	stopped bool
	end     chan struct{} // closed to end the loops
	looping sync.WaitGroup
}

var (
	_ config.ServiceHandler       = (*families)(nil)
	_ config.EndpointSliceHandler = (*families)(nil)
	_ config.ServiceCIDRHandler   = (*families)(nil)
	_ config.NodeTopologyHandler  = (*families)(nil)
)

func (a *families) add(f *family) { a.each = append(a.each, f) }

// loop starts the loops.
func (a *families) loop() {
	a.end = make(chan struct{})
	for _, f := range a.each {
		a.looping.Go(func() {
			defer utilruntime.HandleCrash()
			f.runner.Loop(a.end)
		})
	}
}

// stop drops later events, because the watch of the Node outlives a session, and then ends the loops: upstream's runner
// panics on a request to write after its end.
func (a *families) stop() {
	a.events.Lock()
	a.stopped = true
	a.events.Unlock()
	close(a.end)
	a.looping.Wait()
}

// closeHealthChecks closes the health-check ports of Services, which another session could not open otherwise. Upstream
// closes a Service's port when the Service no longer has one, and the rules do not depend on it.
func (a *families) closeHealthChecks(services corelisters.ServiceLister) {
	all, err := services.List(labels.Everything())
	if err != nil {
		return // a lister fails only when its index is broken
	}
	for _, f := range a.each {
		found := false
		for _, s := range all {
			if s.Spec.HealthCheckNodePort == 0 {
				continue
			}
			found = true
			without := s.DeepCopy()
			without.Spec.HealthCheckNodePort = 0
			f.proxier.OnServiceUpdate(s, without)
		}
		if found {
			_ = f.sync() // the next session logs the error
		}
	}
}

// do passes on one event. Nothing is written before the first lists are complete: the rules of an earlier process are
// better than a part of the new ones.
func (a *families) do(event func(*nftables.Proxier)) {
	a.events.RLock()
	defer a.events.RUnlock()
	if a.stopped {
		return
	}
	write := a.synced[0].Load() && a.synced[1].Load()
	for _, f := range a.each {
		event(f.proxier)
		if write {
			f.runner.Run()
		}
	}
}

func (a *families) OnServiceAdd(s *corev1.Service) {
	a.do(func(p *nftables.Proxier) { p.OnServiceAdd(s) })
}

func (a *families) OnServiceUpdate(old, s *corev1.Service) {
	a.do(func(p *nftables.Proxier) { p.OnServiceUpdate(old, s) })
}

func (a *families) OnServiceDelete(s *corev1.Service) {
	a.do(func(p *nftables.Proxier) { p.OnServiceDelete(s) })
}

func (a *families) OnServiceSynced() {
	// family.sync notifies the proxier.
	a.synced[0].Store(true)
	a.do(func(*nftables.Proxier) {})
}

func (a *families) OnEndpointSliceAdd(s *discoveryv1.EndpointSlice) {
	a.do(func(p *nftables.Proxier) { p.OnEndpointSliceAdd(s) })
}

func (a *families) OnEndpointSliceUpdate(old, s *discoveryv1.EndpointSlice) {
	a.do(func(p *nftables.Proxier) { p.OnEndpointSliceUpdate(old, s) })
}

func (a *families) OnEndpointSliceDelete(s *discoveryv1.EndpointSlice) {
	a.do(func(p *nftables.Proxier) { p.OnEndpointSliceDelete(s) })
}

func (a *families) OnEndpointSlicesSynced() {
	a.synced[1].Store(true)
	a.do(func(p *nftables.Proxier) { p.OnEndpointSlicesSynced() })
}

func (a *families) OnTopologyChange(labels map[string]string) {
	a.do(func(p *nftables.Proxier) { p.OnTopologyChange(labels) })
}

func (a *families) OnServiceCIDRsChanged(cidrs []string) {
	a.do(func(p *nftables.Proxier) { p.OnServiceCIDRsChanged(cidrs) })
}
