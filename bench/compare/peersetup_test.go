package compare

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/platforms"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// importImages gives containerd the images that Kubelith embeds, as soon as it listens: as Kubelith does.
func (p *peers) importImages() {
	p.until(p.containerdListens)(p.done)
	if err := p.doImport(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: import images: %v\n", p.name, err) // the pods never become Ready
	}
}

func (p *peers) doImport() error {
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(context.Background(), "k8s.io"), time.Minute)
	defer cancel()
	c, err := client.New(p.Path(criSocket))
	if err != nil {
		return err
	}
	defer c.Close()
	f, err := os.Open(filepath.Join(p.set.repo, "runtime", "images", "embed", runtime.GOARCH, "images.tar.zst"))
	if err != nil {
		return err
	}
	defer f.Close()
	tar, err := compression.DecompressStream(f)
	if err != nil {
		return err
	}
	defer tar.Close()
	imported, err := c.Import(ctx, tar)
	if err != nil {
		return err
	}
	for _, i := range imported {
		if err := client.NewImageWithPlatform(c, i, platforms.Default()).Unpack(ctx, "overlayfs"); err != nil {
			return err
		}
	}
	return nil
}

// connectPods writes the CNI configuration when the controller-manager has given the node its CIDR, as
// Kubelith's component network does, and as every provider of a pod network has to.
func (p *peers) connectPods() {
	cs, err := p.adminClient()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", p.name, err)
		return
	}
	p.until(func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		w, err := cs.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
		if err != nil {
			return false
		}
		defer w.Stop()
		for event := range w.ResultChan() {
			if node, ok := event.Object.(*corev1.Node); ok && node.Spec.PodCIDR != "" {
				// Written in place: containerd does not look when a file is only moved into its directory.
				err := os.WriteFile(p.Path("/etc/cni/net.d/10-bridge.conflist"), []byte(conflist(node.Spec.PodCIDR)), 0o600)
				if err != nil {
					fmt.Fprintf(os.Stderr, "%s: CNI configuration: %v\n", p.name, err) // the node never becomes Ready
				}
				return true
			}
		}
		return false
	})(p.done)
}

// publishDNS creates the Service through which pods reach DNS on the node, as Kubelith does.
func (p *peers) publishDNS() {
	cs, err := p.adminClient()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", p.name, err)
		return
	}
	p.until(func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err := cs.CoreV1().Services(metav1.NamespaceSystem).Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "kube-dns"},
			Spec: corev1.ServiceSpec{ClusterIP: clusterDNS, Ports: []corev1.ServicePort{
				{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, TargetPort: intstr.FromInt32(dnsPort)},
				{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: 53, TargetPort: intstr.FromInt32(dnsPort)},
			}},
		}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return false
		}
		_, err = cs.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem).Create(ctx, &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: "kube-dns", Labels: map[string]string{discoveryv1.LabelServiceName: "kube-dns"}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{p.NodeIP}}},
			Ports: []discoveryv1.EndpointPort{
				{Name: ptr.To("dns"), Protocol: ptr.To(corev1.ProtocolUDP), Port: ptr.To(int32(dnsPort))},
				{Name: ptr.To("dns-tcp"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(int32(dnsPort))},
			},
		}, metav1.CreateOptions{})
		return err == nil || apierrors.IsAlreadyExists(err)
	})(p.done)
}

func (p *peers) adminClient() (kubernetes.Interface, error) {
	cfg, err := p.adminConfig()
	if err != nil {
		return nil, err
	}
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	return kubernetes.NewForConfig(cfg)
}
