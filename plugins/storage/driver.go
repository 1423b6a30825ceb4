package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"kubelith.io/kubelith/plugins"
)

const (
	// askTimeout bounds what a driver is asked about itself.
	askTimeout = 30 * time.Second
	// retryDelay is the time after something that failed and nothing else brings on again.
	retryDelay = 2 * time.Second
)

// driver is a plugin as a CSI driver of this node, for as long as it declares the same.
//
//	start --> forwarding --facts known, objects made--> registered, controllers run --+
//	              ^                                                                   |
//	              +------------- another process that says other facts --------------+
type driver struct {
	*host
	plugin   plugins.Plugin
	declared declaration
	log      logrus.FieldLogger
	conn     *grpc.ClientConn // through the forwarder: it outlives processes

	changed chan struct{}
	cancel  context.CancelFunc
	ended   chan struct{}

	registered *registration
	node       *csi.NodeGetInfoResponse // with which it is registered
	said       string                   // the last complaint
}

func newDriver(h *host, p plugins.Plugin, d declaration) *driver {
	return &driver{host: h, plugin: p, declared: d, log: h.Log.WithField("plugin", p.Name()), changed: make(chan struct{}, 1), ended: make(chan struct{})}
}

// name is the driver's.
func (d *driver) name() string { return d.declared.driver.Name }

// same tells whether the other is made of the same plugin and declaration.
func (d *driver) same(other *driver) bool {
	return d.plugin == other.plugin && reflect.DeepEqual(d.declared, other.declared)
}

// wake has the driver asked again what it is.
func (d *driver) wake() {
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// start runs the driver until ctx ends or end is called.
func (d *driver) start(ctx context.Context) {
	ctx, d.cancel = context.WithCancel(ctx)
	go func() {
		defer close(d.ended)
		defer d.cancel()
		defer utilruntime.HandleCrash()
		for ctx.Err() == nil {
			d.complain(d.run(ctx))
			d.sleep(ctx)
		}
	}()
}

// end ends the driver and waits. gone removes it from the kubelet, which does not when only the process ends: volumes are in use.
func (d *driver) end(gone bool) {
	d.cancel()
	<-d.ended
	if !gone {
		return
	}
	for _, socket := range []string{registrationSocket(d.KubeletRootDir, d.name()), csiSocket(d.KubeletRootDir, d.name())} {
		if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.log.Warnf("remove a socket of the driver: %v", err)
		}
	}
	d.log.Infof("the driver %s is gone: its volumes and objects stay", d.name())
}

// run serves the driver's socket and keeps up with its processes.
func (d *driver) run(ctx context.Context) error {
	socket := csiSocket(d.KubeletRootDir, d.name())
	l, err := listen(socket)
	if err != nil {
		return fmt.Errorf("serve the driver: %w", err)
	}
	server, served := NewForwarder(d.plugin), make(chan struct{})
	go func() {
		defer close(served)
		serveGRPC(server, l, d.log)
	}()
	defer func() { server.Stop(); <-served }()
	if d.conn, err = grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return fmt.Errorf("reach the driver: %w", err)
	}
	defer d.conn.Close()
	defer d.unregister()
	for ctx.Err() == nil {
		now, err := d.ask(ctx)
		if err == nil {
			err = d.serve(ctx, now)
		}
		d.complain(err)
		if err != nil {
			d.sleep(ctx)
		}
	}
	return nil
}

// sleep waits for a change, or until it is time to try again.
func (d *driver) sleep(ctx context.Context) {
	select {
	case <-d.changed:
	case <-time.After(retryDelay):
	case <-ctx.Done():
	}
}

// complain says once what is wrong.
func (d *driver) complain(err error) {
	if err == nil || errors.Is(err, context.Canceled) || err.Error() == d.said {
		return
	}
	d.said = err.Error()
	d.host.complain(d.plugin.Name(), err)
}

// serve makes the objects, registers the driver and runs its controllers until it says other facts about itself.
func (d *driver) serve(ctx context.Context, now facts) error {
	if err := d.makeObjects(ctx, now); err != nil {
		return err
	}
	if err := d.register(now.info); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	end, err := d.control(ctx, now)
	if err != nil {
		return err
	}
	defer end()
	d.said = ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.changed:
		}
		// What does not answer, or answers an error, will be another process soon.
		if next, err := d.ask(ctx); err == nil && !next.equal(now) {
			d.log.Infof("the driver %s or its Node has changed", d.name())
			cancel()
		}
	}
}

// register has the kubelet know the driver, anew when its place in the topology has changed.
func (d *driver) register(node *csi.NodeGetInfoResponse) error {
	if d.registered != nil && proto.Equal(d.node, node) {
		return nil
	}
	d.unregister()
	r, err := register(d.KubeletRootDir, d.name(), d.log) // makes the socket anew, which is what the kubelet looks for
	if err != nil {
		return err
	}
	d.registered, d.node = r, node
	return nil
}

// unregister ends the registration's server; the kubelet keeps the driver.
func (d *driver) unregister() {
	if d.registered != nil {
		d.registered.stop()
		d.registered = nil
	}
}

// facts are what a driver says of itself, beyond what it declares.
type facts struct {
	identity   rpc.PluginCapabilitySet
	controller rpc.ControllerCapabilitySet
	info       *csi.NodeGetInfoResponse
	nodeUID    types.UID // of a node-local driver's Node; empty when there is none
}

func (f facts) equal(other facts) bool {
	return reflect.DeepEqual(f.identity, other.identity) && reflect.DeepEqual(f.controller, other.controller) &&
		proto.Equal(f.info, other.info) && f.nodeUID == other.nodeUID
}

// can tells whether the driver has the capability.
func (f facts) can(c csi.ControllerServiceCapability_RPC_Type) bool { return f.controller[c] }

// ask asks the driver what it is.
func (d *driver) ask(ctx context.Context) (facts, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	name, err := rpc.GetDriverName(ctx, d.conn)
	if err != nil {
		return facts{}, asking("GetPluginInfo", err)
	}
	if name != d.name() {
		return facts{}, fmt.Errorf("it says that it is the driver %s, and its CSIDriver is %s: they have to be the same", name, d.name())
	}
	var f facts
	if f.identity, err = rpc.GetPluginCapabilities(ctx, d.conn); err != nil {
		return facts{}, asking("GetPluginCapabilities", err)
	}
	if f.identity[csi.PluginCapability_Service_CONTROLLER_SERVICE] {
		if f.controller, err = rpc.GetControllerCapabilities(ctx, d.conn); err != nil {
			return facts{}, asking("ControllerGetCapabilities", err)
		}
	}
	if f.info, err = csi.NewNodeClient(d.conn).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{}); err != nil {
		return facts{}, asking("NodeGetInfo", err)
	}
	if d.declared.nodeLocal && (!f.identity[csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS] || len(f.info.GetAccessibleTopology().GetSegments()) == 0) {
		return facts{}, errors.New("it says that it is node-local, and has no VOLUME_ACCESSIBILITY_CONSTRAINTS or no accessible_topology in NodeGetInfo")
	}
	if d.declared.nodeLocal {
		f.nodeUID, err = d.uidOfNode(ctx)
	}
	return f, err
}

// uidOfNode tells this node's Node from one of that name before. It is empty without a Node: the kubelet registers after us.
func (d *driver) uidOfNode(ctx context.Context) (types.UID, error) {
	node, err := d.client.CoreV1().Nodes().Get(ctx, d.NodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read Node %s: %w", d.NodeName, err)
	}
	return node.UID, nil
}

// asking names a call that failed. A plugin that does not run is its host's to report.
func asking(method string, err error) error {
	if s := status.Convert(err); s.Code() != codes.Unavailable {
		return fmt.Errorf("%s: %s", method, s.Message())
	}
	return context.Canceled
}
