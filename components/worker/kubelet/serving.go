package kubelet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/util/certificate"
	compbasemetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/metrics"

	"kubelith.io/kubelith/base/informers"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/renewal"
)

// Certificate returns the serving certificate that the kubelet has requested; nil: it has none yet.
func (s *Server) Certificate() *x509.Certificate {
	if m := s.serving.Load(); m != nil {
		return m.Leaf()
	}
	return nil
}

// Renew requests another serving certificate, and waits until the kubelet serves with it.
func (s *Server) Renew(ctx context.Context) error {
	m := s.serving.Load()
	if m == nil {
		return errors.New("the kubelet does not request a serving certificate yet")
	}
	return m.Renew(ctx)
}

// requestServing gives the kubelet a serving certificate that is requested here. Upstream's kubelet would do the same,
// but has no way to renew it at once. The returned function ends it and waits.
// Source: NewKubeletServerCertificateManager in pkg/kubelet/certificate, and NewMainKubelet.
func (s *Server) requestServing(ctx context.Context, deps *kubelet.Dependencies) (end func(), err error) {
	node := informers.One(deps.KubeClient, "", s.opts.NodeName)
	lister := node.Core().V1().Nodes().Lister()
	store, err := certificate.NewFileStore("kubelet-server", s.opts.CertDir, s.opts.CertDir, "", "")
	if err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	failures, age := servingMetrics()
	ctx, cancel := context.WithCancel(ctx)
	m, err := renewal.New(certificate.Config{
		ClientsetFn:             func(*tls.Certificate) (kubernetes.Interface, error) { return deps.KubeClient, nil },
		GetTemplate:             func() *x509.CertificateRequest { return servingRequest(s.opts.NodeName, lister) },
		SignerName:              certificatesv1.KubeletServingSignerName,
		GetUsages:               certificate.DefaultKubeletServingGetUsages,
		CertificateStore:        store,
		CertificateRotation:     age,
		CertificateRenewFailure: failures,
		Ctx:                     &ctx,
	})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	s.serving.Store(m)
	legacyregistry.RawMustRegister(compbasemetrics.NewGaugeFunc(&compbasemetrics.GaugeOpts{
		Subsystem: metrics.KubeletSubsystem, Name: "certificate_manager_server_ttl_seconds", StabilityLevel: compbasemetrics.ALPHA,
		Help: "Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate. " +
			"The value is in seconds until certificate expiry (negative if already expired). " +
			"If serving certificate is invalid or unused, the value will be +INF.",
	}, func() float64 {
		if leaf := m.Leaf(); leaf != nil {
			return math.Trunc(time.Until(leaf.NotAfter).Seconds())
		}
		return math.Inf(1)
	}))
	o := deps.TLSOptions
	deps.TLSOptions = nil // or upstream would set TLSConfig
	deps.TLSConfig = &tls.Config{
		MinVersion: o.MinVersion, CipherSuites: o.CipherSuites, CurvePreferences: o.CurvePreferences,
		// Its authentication verifies the certificate of each request, with the CAs as they are then.
		ClientAuth: tls.RequestClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			if cert := m.Current(); cert != nil {
				return cert, nil
			}
			return nil, errors.New("no serving certificate available for the kubelet")
		},
	}
	node.Start(ctx.Done())
	m.Start()
	return func() { cancel(); m.Stop(); node.Shutdown() }, nil
}

// servingMetrics are upstream's.
func servingMetrics() (failures *compbasemetrics.Counter, age *compbasemetrics.Histogram) {
	failures = compbasemetrics.NewCounter(&compbasemetrics.CounterOpts{
		Subsystem: metrics.KubeletSubsystem, Name: "server_expiration_renew_errors", StabilityLevel: compbasemetrics.ALPHA,
		Help: "Counter of certificate renewal errors.",
	})
	const hour = 3600
	age = compbasemetrics.NewHistogram(&compbasemetrics.HistogramOpts{
		Subsystem: metrics.KubeletSubsystem, Name: "certificate_manager_server_rotation_seconds", StabilityLevel: compbasemetrics.ALPHA,
		Help:    "Histogram of the number of seconds the previous certificate lived before being rotated.",
		Buckets: []float64{60, hour, 4 * hour, 24 * hour, 7 * 24 * hour, 30 * 24 * hour, 90 * 24 * hour, 180 * 24 * hour, 360 * 24 * hour, 4 * 360 * 24 * hour},
	})
	legacyregistry.MustRegister(failures, age)
	return failures, age
}

// servingRequest returns what to request for the names and addresses of the Node; nil: it has none yet.
func servingRequest(name string, nodes corelisters.NodeLister) *x509.CertificateRequest {
	node, err := nodes.Get(name)
	if err != nil {
		return nil
	}
	r := &x509.CertificateRequest{Subject: pkix.Name{CommonName: names.NodeUserPrefix + name, Organization: []string{user.NodesGroup}}}
	for _, a := range node.Status.Addresses {
		ip := net.ParseIP(a.Address)
		switch a.Type {
		case corev1.NodeInternalIP, corev1.NodeExternalIP:
		case corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeExternalDNS:
			if (ip == nil || a.Type != corev1.NodeHostName) && a.Address != "" && !slices.Contains(r.DNSNames, a.Address) {
				r.DNSNames = append(r.DNSNames, a.Address)
			}
			if a.Type != corev1.NodeHostName {
				continue
			}
		default:
			continue
		}
		if ip != nil && !slices.ContainsFunc(r.IPAddresses, ip.Equal) {
			r.IPAddresses = append(r.IPAddresses, ip)
		}
	}
	if len(r.IPAddresses) == 0 {
		return nil
	}
	// In a stable order: upstream compares requests.
	slices.Sort(r.DNSNames)
	slices.SortFunc(r.IPAddresses, func(a, b net.IP) int { return strings.Compare(a.String(), b.String()) })
	return r
}
