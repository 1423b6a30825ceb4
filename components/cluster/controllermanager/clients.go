package controllermanager

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/controller-manager/pkg/clientbuilder"

	"kubelith.io/kubelith/base/client"
)

// clientBuilder gives each controller the identity for which RBAC's bootstrap policy has a role: its service account in
// kube-system. Upstream uses a token per controller; in memory the name is enough.
type clientBuilder struct{ client client.Identities }

var _ clientbuilder.ControllerClientBuilder = clientBuilder{}

func (b clientBuilder) Config(name string) (*rest.Config, error) {
	return b.client.ServiceAccountConfig(metav1.NamespaceSystem, name), nil
}

func (b clientBuilder) ConfigOrDie(name string) *rest.Config {
	return b.client.ServiceAccountConfig(metav1.NamespaceSystem, name)
}

func (b clientBuilder) Client(name string) (kubernetes.Interface, error) {
	return kubernetes.NewForConfig(b.ConfigOrDie(name))
}

func (b clientBuilder) ClientOrDie(name string) kubernetes.Interface {
	return kubernetes.NewForConfigOrDie(b.ConfigOrDie(name))
}

func (b clientBuilder) DiscoveryClient(name string) (discovery.DiscoveryInterface, error) {
	return discovery.NewDiscoveryClientForConfig(b.ConfigOrDie(name))
}

func (b clientBuilder) DiscoveryClientOrDie(name string) discovery.DiscoveryInterface {
	return discovery.NewDiscoveryClientForConfigOrDie(b.ConfigOrDie(name))
}
