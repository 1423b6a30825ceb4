package storage

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	ctrl "github.com/kubernetes-csi/external-provisioner/v6/pkg/controller"
	"github.com/kubernetes-csi/external-resizer/v2/pkg/controller"
	resizercsi "github.com/kubernetes-csi/external-resizer/v2/pkg/csi"
	"github.com/kubernetes-csi/external-resizer/v2/pkg/modifier"
	"github.com/kubernetes-csi/external-resizer/v2/pkg/modifycontroller"
	"github.com/kubernetes-csi/external-resizer/v2/pkg/resizer"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
)

// addResizing adds what expands volumes, as external-resizer's main does (cmd/csi-resizer).
func (c *controllers) addResizing(context.Context) error {
	if !c.facts.Identity[csi.PluginCapability_Service_CONTROLLER_SERVICE] {
		return nil
	}
	driver := &csiClient{conn: c.conn, node: csi.NewNodeClient(c.conn), controller: csi.NewControllerClient(c.conn)}
	r, err := resizer.NewResizerFromClient(driver, callTimeout, c.Client, c.Name())
	switch {
	case err == nil:
		if c.NodeLocal {
			r = localResizer{r, c.facts.Info.GetAccessibleTopology()}
		}
		resizing := controller.NewResizeController(c.Name(), r, c.Client, 0, c.view, backoff(), false, retryMax)
		c.broadcasts(resizing)
		c.run(func(ctx context.Context) { resizing.Run(workers, ctx, nil) })
	case !errors.Is(err, resizer.ResizeNotSupportErr):
		return fmt.Errorf("resize: %w", err)
	}
	// A modifier has no say in whose volume it is: every node's would modify.
	if c.NodeLocal || !c.facts.can(csi.ControllerServiceCapability_RPC_MODIFY_VOLUME) {
		return nil
	}
	m, err := modifier.NewModifierFromClient(driver, callTimeout, c.Client, c.view, false, c.Name())
	if err != nil {
		return fmt.Errorf("modify: %w", err)
	}
	modifying := modifycontroller.NewModifyController(c.Name(), m, c.Client, 0, retryMax, false, c.view, backoff())
	c.broadcasts(modifying)
	c.run(func(ctx context.Context) { modifying.Run(workers, ctx, nil) })
	return nil
}

// localResizer leaves the volumes of other nodes to them; the sidecar knows no drivers that run on each node.
type localResizer struct {
	resizer.Resizer
	here *csi.Topology
}

// CanSupport implements resizer.Resizer.
func (r localResizer) CanSupport(volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	accessible, err := ctrl.VolumeIsAccessible(volume.Spec.NodeAffinity, r.here)
	return err == nil && accessible && r.Resizer.CanSupport(volume, claim)
}

// csiClient is what the resizer calls a driver through. Its own client ends the process when the connection is lost.
type csiClient struct {
	conn       *grpc.ClientConn
	node       csi.NodeClient
	controller csi.ControllerClient
}

var _ resizercsi.Client = (*csiClient)(nil)

// GetDriverName implements resizercsi.Client.
func (c *csiClient) GetDriverName(ctx context.Context) (string, error) {
	return rpc.GetDriverName(ctx, c.conn)
}

// SupportsPluginControllerService implements resizercsi.Client.
func (c *csiClient) SupportsPluginControllerService(ctx context.Context) (bool, error) {
	all, err := rpc.GetPluginCapabilities(ctx, c.conn)
	return all[csi.PluginCapability_Service_CONTROLLER_SERVICE], err
}

// SupportsControllerResize implements resizercsi.Client.
func (c *csiClient) SupportsControllerResize(ctx context.Context) (bool, error) {
	return c.can(ctx, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME)
}

// SupportsControllerModify implements resizercsi.Client.
func (c *csiClient) SupportsControllerModify(ctx context.Context) (bool, error) {
	return c.can(ctx, csi.ControllerServiceCapability_RPC_MODIFY_VOLUME)
}

// SupportsControllerSingleNodeMultiWriter implements resizercsi.Client.
func (c *csiClient) SupportsControllerSingleNodeMultiWriter(ctx context.Context) (bool, error) {
	return c.can(ctx, csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
}

func (c *csiClient) can(ctx context.Context, what csi.ControllerServiceCapability_RPC_Type) (bool, error) {
	all, err := rpc.GetControllerCapabilities(ctx, c.conn)
	return all[what], err
}

// SupportsNodeResize implements resizercsi.Client.
func (c *csiClient) SupportsNodeResize(ctx context.Context) (bool, error) {
	r, err := c.node.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		return false, err
	}
	for _, has := range r.GetCapabilities() {
		if has.GetRpc().GetType() == csi.NodeServiceCapability_RPC_EXPAND_VOLUME {
			return true, nil
		}
	}
	return false, nil
}

// Expand implements resizercsi.Client.
func (c *csiClient) Expand(ctx context.Context, id string, size int64, secrets map[string]string, capability *csi.VolumeCapability) (int64, bool, error) {
	r, err := c.controller.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, Secrets: secrets, VolumeCapability: capability,
	})
	return r.GetCapacityBytes(), r.GetNodeExpansionRequired(), err
}

// Modify implements resizercsi.Client.
func (c *csiClient) Modify(ctx context.Context, id string, secrets, parameters map[string]string) error {
	_, err := c.controller.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{VolumeId: id, Secrets: secrets, MutableParameters: parameters})
	return err
}

// CloseConnection implements resizercsi.Client. The connection is the driver's.
func (c *csiClient) CloseConnection() {}
