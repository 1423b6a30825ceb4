package storage

import (
	"context"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/external-attacher/v4/pkg/attacher"
	"github.com/kubernetes-csi/external-attacher/v4/pkg/controller"
	csitrans "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
)

// reconcileEvery is how often a driver that can list its attached volumes is queried for them.
const reconcileEvery = time.Minute

// addAttaching adds what attaches volumes to nodes, as external-attacher's main does (cmd/csi-attacher).
func (c *controllers) addAttaching(ctx context.Context) error {
	if !c.facts.Attaches(c.Declaration) {
		return nil
	}
	volumes, attachments := c.view.Core().V1().PersistentVolumes(), c.view.Storage().V1().VolumeAttachments()
	csiNodes := c.view.Storage().V1().CSINodes()
	c.needs(csiNodes.Informer())
	timeout := callTimeout
	handler := controller.NewCSIHandler(c.Client, c.Name(), attacher.NewAttacher(c.conn), attacher.NewVolumeLister(c.conn, 0),
		volumes.Lister(), csiNodes.Lister(), attachments.Lister(), &timeout,
		c.facts.can(csi.ControllerServiceCapability_RPC_PUBLISH_READONLY),
		c.facts.can(csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER),
		csitrans.New(), "")
	listsAttachments := c.facts.can(csi.ControllerServiceCapability_RPC_LIST_VOLUMES) &&
		c.facts.can(csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES)
	attaching := controller.NewCSIAttachController(klog.FromContext(ctx), c.Client, c.Name(), handler, attachments, volumes,
		backoff(), backoff(), listsAttachments, reconcileEvery)
	c.run(func(ctx context.Context) { attaching.Run(ctx, workers, nil) })
	return nil
}
