package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/kubernetes/pkg/proxy/apis"
	kubeproxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/config"
	"k8s.io/kubernetes/pkg/proxy/healthcheck"
	"k8s.io/kubernetes/pkg/proxy/nftables"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"

	shared "kubelith.io/kubelith/base/informers"
	"kubelith.io/kubelith/base/lifecycle"
)

// session is kube-proxy for one set of node addresses. Its first write replaces everything in the table that an earlier
// session or process left.
type session struct {
	config   *kubeproxyconfig.KubeProxyConfiguration
	client   kubernetes.Interface
	node     *node
	nodeName string
	nodeIPs  []net.IP
	recorder events.EventRecorder
	health   *healthcheck.ProxyHealthServer
	work     *lifecycle.Watchdog
	log      logrus.FieldLogger
	follows  func() bool // reports, at the end, whether another session follows in this process
}

// run writes rules until ctx ends; it calls ready after the first success of every family.
func (s *session) run(ctx context.Context, ready func()) error {
	started := time.Now()
	own := s.families()
	written := make(chan struct{}, len(own)) // one for each family, after its first success
	all := &families{}
	for _, f := range own {
		proxier, err := nftables.NewProxier(ctx, s.config, f, s.localDetector(f), s.nodeName, s.nodeIP(f), s.recorder, s.health, false)
		if err != nil {
			return fmt.Errorf("nftables for %s: %w", f, err)
		}
		first := sync.OnceFunc(func() { written <- struct{}{} })
		all.add(newFamily(f, proxier, s.config, s.health, s.work, first))
	}

	resync := s.config.ConfigSyncPeriod.Duration
	services, slices, others, err := s.factories(resync)
	if err != nil {
		return err
	}
	// As in upstream, handlers must be added before the informers start.
	serviceConfig := config.NewServiceConfig(ctx, services.Core().V1().Services(), resync)
	serviceConfig.RegisterEventHandler(all)
	sliceConfig := config.NewEndpointSliceConfig(ctx, slices.Discovery().V1().EndpointSlices(), resync)
	sliceConfig.RegisterEventHandler(all)
	cidrConfig := config.NewServiceCIDRConfig(ctx, others.Networking().V1().ServiceCIDRs(), resync)
	cidrConfig.RegisterEventHandler(all)
	topology := config.NewNodeTopologyConfig(ctx, s.node.informer(), resync)
	topology.RegisterEventHandler(all)

	var running sync.WaitGroup
	run := func(f func(stop <-chan struct{})) {
		running.Go(func() {
			defer utilruntime.HandleCrash()
			f(ctx.Done())
		})
	}
	run(serviceConfig.Run)
	run(sliceConfig.Run)
	run(cidrConfig.Run)
	all.loop()
	factories := []informers.SharedInformerFactory{services, slices, others}
	for _, f := range factories {
		f.Start(ctx.Done())
	}

	slow := time.NewTicker(10 * time.Second)
	missing := len(own)
	for missing > 0 && ctx.Err() == nil {
		select {
		case <-written:
			missing--
		case <-slow.C:
			s.log.Warnf("some Service rules are not in the kernel after %s; still trying", time.Since(started).Round(time.Second))
		case <-ctx.Done():
		}
	}
	slow.Stop()
	if missing == 0 {
		ready()
	}

	<-ctx.Done()
	all.stop()
	running.Wait()
	for _, f := range factories {
		f.Shutdown()
	}
	if s.follows() {
		all.closeHealthChecks(services.Core().V1().Services().Lister())
	}
	return nil
}

// factories creates the informers with the selectors of upstream's ProxyServer.Run: they ignore headless Services and
// those of another proxy.
func (s *session) factories(resync time.Duration) (services, slices, others informers.SharedInformerFactory, err error) {
	notForeign, err1 := labels.NewRequirement(apis.LabelServiceProxyName, selection.DoesNotExist, nil)
	notHeadless, err2 := labels.NewRequirement(corev1.IsHeadlessService, selection.DoesNotExist, nil)
	if err := errors.Join(err1, err2); err != nil {
		return nil, nil, nil, fmt.Errorf("selectors: %w", err)
	}
	factory := func(tweak func(*metav1.ListOptions)) informers.SharedInformerFactory {
		return informers.NewSharedInformerFactoryWithOptions(s.client, resync,
			informers.WithTransform(shared.Trim), informers.WithTweakListOptions(tweak))
	}
	services = factory(func(o *metav1.ListOptions) {
		o.LabelSelector = labels.NewSelector().Add(*notForeign).String()
		o.FieldSelector = fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone).String()
	})
	slices = factory(func(o *metav1.ListOptions) {
		o.LabelSelector = labels.NewSelector().Add(*notHeadless).String()
	})
	others = factory(func(*metav1.ListOptions) {})
	return services, slices, others, nil
}

// families returns the families of the node's addresses and of the pod networks that the kernel supports. Upstream
// always programs both families, at the price of idle work.
func (s *session) families() []corev1.IPFamily {
	used := map[corev1.IPFamily]bool{}
	for _, ip := range s.nodeIPs {
		used[familyOf(ip)] = true
	}
	for family := range proxyutil.MapCIDRsByIPFamily(s.config.DetectLocal.ClusterCIDRs) {
		used[family] = true
	}
	var out []corev1.IPFamily
	for _, f := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		if used[f] && (f == corev1.IPv4Protocol || kernelHasIPv6()) {
			out = append(out, f)
		}
	}
	return out
}

func kernelHasIPv6() bool {
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
		return false
	}
	off, err := os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6")
	return err != nil || strings.TrimSpace(string(off)) != "1"
}

// nodeIP is the node's first address of a family; upstream expects loopback where there is none.
func (s *session) nodeIP(family corev1.IPFamily) net.IP {
	for _, ip := range s.nodeIPs {
		if familyOf(ip) == family {
			return ip
		}
	}
	if family == corev1.IPv4Protocol {
		return net.IPv4(127, 0, 0, 1)
	}
	return net.IPv6loopback
}

// localDetector distinguishes pods' traffic from other traffic, which is masqueraded.
func (s *session) localDetector(family corev1.IPFamily) proxyutil.LocalTrafficDetector {
	local := s.config.DetectLocal
	switch s.config.DetectLocalMode {
	case kubeproxyconfig.LocalModeBridgeInterface:
		return proxyutil.NewDetectLocalByBridgeInterface(local.BridgeInterface)
	case kubeproxyconfig.LocalModeInterfaceNamePrefix:
		return proxyutil.NewDetectLocalByInterfaceNamePrefix(local.InterfaceNamePrefix)
	default:
		if cidrs := proxyutil.MapCIDRsByIPFamily(local.ClusterCIDRs)[family]; len(cidrs) > 0 {
			return proxyutil.NewDetectLocalByCIDR(cidrs[0].String())
		}
		return proxyutil.NewNoOpLocalDetector()
	}
}
