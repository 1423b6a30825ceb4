package kubelet

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/csi"
)

// ClaimCSI sets the package variables of upstream's CSI code (pkg/volume/csi: nim, PluginHandler) to this node, as a
// kubelet's own start does. They belong to the last volume host that initialises the plugin; if that is a
// controller-manager that is built while the kubelet runs, drivers would be registered under an empty node name.
//
// It may be called again after an error: the Node may be missing. Until it succeeds a driver that registers loses the
// CSINode, which upstream takes for another node's and deletes.
func ClaimCSI(client *rest.Config, nodeName string) error {
	cs, err := kubernetes.NewForConfig(client)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	for _, p := range csi.ProbeVolumePlugins() {
		if err := p.Init(nodeHost{client: cs, name: types.NodeName(nodeName)}); err != nil {
			return err
		}
	}
	// Only this call reads the UID of the Node, by which upstream recognises its CSINode.
	return csi.GetNodeInfoManager().InitializeCSINodeWithAnnotation()
}

// nodeHost is a volume host as far as those variables use one. It is no KubeletVolumeHost, or the plugin would manage
// the CSINode, as the kubelet's own does.
type nodeHost struct {
	volume.VolumeHost // nil
	client            kubernetes.Interface
	name              types.NodeName
}

func (h nodeHost) GetKubeClient() kubernetes.Interface { return h.client }
func (h nodeHost) GetNodeName() types.NodeName         { return h.name }
