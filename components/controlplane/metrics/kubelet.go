package metrics

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	nodeutil "k8s.io/kubernetes/pkg/util/node"
	"sigs.k8s.io/metrics-server/pkg/scraper/client"
	"sigs.k8s.io/metrics-server/pkg/storage"

	"kubelith.io/kubelith/base/pki"
)

// kubelets reads the CPU and memory usage from kubelets.
type kubelets struct {
	client *http.Client
	nodes  corelisters.NodeLister
	log    logrus.FieldLogger

	mu      sync.Mutex
	failing map[string]bool // by name, the nodes that failed last time; true: it is logged
}

var _ client.KubeletMetricsGetter = (*kubelets)(nil)

// newKubelets checks the CAs. They and the certificate are read for each connection, so that renewed ones are used.
func newKubelets(o Options, nodes corelisters.NodeLister) (*kubelets, error) {
	if _, err := kubeletCAs(o.PKI.KubeletTrust); err != nil {
		return nil, err
	}
	transport := &http.Transport{ // nodes are never behind a proxy
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return dialKubelet(ctx, o, network, address)
		},
		IdleConnTimeout:    4 * resolution,
		DisableCompression: true, // one of the kubelets is in this process
	}
	return &kubelets{
		client: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		nodes: nodes, log: o.Log, failing: map[string]bool{},
	}, nil
}

func kubeletCAs(path string) (*x509.CertPool, error) {
	pool, err := pki.Pool(path)
	if err != nil {
		return nil, fmt.Errorf("read the kubelets' CAs: %w", err)
	}
	return pool, nil
}

// dialKubelet connects with the CAs and the certificate as they are now.
func dialKubelet(ctx context.Context, o Options, network, address string) (net.Conn, error) {
	roots, err := kubeletCAs(o.PKI.KubeletTrust)
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(o.PKI.KubeletClient.Cert, o.PKI.KubeletClient.Key)
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	dial := o.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	conn, err := dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	secure := tls.Client(conn, &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: host,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil },
	})
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return secure, nil
}

// GetMetrics implements client.KubeletMetricsGetter. A failure is logged here, when it is no single one, and is no
// error to metrics-server, which would log it in every round.
func (k *kubelets) GetMetrics(ctx context.Context, node *corev1.Node) (*storage.MetricsBatch, error) {
	from := resourceURL(node)
	if from == "" {
		return nil, nil // it has not registered completely, or is a simulated node without a kubelet
	}
	batch, err := k.get(ctx, from, node.Name)
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, nil // stopped
	}
	k.note(node, err)
	return batch, nil
}

func (k *kubelets) get(ctx context.Context, from, node string) (*storage.MetricsBatch, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	asked := time.Now()
	resp, err := k.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		// A kubelet that no longer accepts our certificate may accept the current one.
		k.client.CloseIdleConnections()
		return nil, fmt.Errorf("GET %s: %s", from, resp.Status)
	}
	batch, err := decode(resp.Body, node, asked)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", from, err)
	}
	return batch, nil
}

// note logs when a node that should answer fails for the second time in a row, and when it recovers: a kubelet that has
// just started may not know its Node yet.
func (k *kubelets) note(node *corev1.Node, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	logged, failing := k.failing[node.Name]
	switch {
	case err == nil:
		delete(k.failing, node.Name)
		if logged {
			k.log.Infof("node %s serves metrics again", node.Name)
		}
	case logged || !nodeutil.IsNodeReady(node):
	case failing:
		k.failing[node.Name] = true
		k.log.Warnf("cannot scrape the metrics of node %s, retrying every %s: %v", node.Name, resolution, err)
	default:
		maps.DeleteFunc(k.failing, func(name string, _ bool) bool {
			_, err := k.nodes.Get(name)
			return err != nil // it is gone
		})
		k.failing[node.Name] = false
	}
}

// resourceURL returns where the node's kubelet serves resource metrics; empty if the node does not report its kubelet's
// address. The order of addresses is the apiserver's: a name may resolve to anything.
func resourceURL(node *corev1.Node) string {
	port := node.Status.DaemonEndpoints.KubeletEndpoint.Port
	if port == 0 {
		return ""
	}
	for _, kind := range []corev1.NodeAddressType{
		corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeInternalDNS, corev1.NodeExternalDNS, corev1.NodeHostName,
	} {
		for _, a := range node.Status.Addresses {
			if a.Type == kind {
				u := url.URL{Scheme: "https", Host: net.JoinHostPort(a.Address, strconv.Itoa(int(port))), Path: "/metrics/resource"}
				return u.String()
			}
		}
	}
	return ""
}
