package storage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/plugins"
)

const (
	// askTimeout bounds the queries to a driver about itself.
	askTimeout = 30 * time.Second
	// RetryDelay is the time after something that failed and nothing else brings on again.
	RetryDelay = 2 * time.Second
	// firstDial is the time after which a driver's socket that is not there yet is tried again, at first.
	firstDial = 20 * time.Millisecond
)

// Driver is a plugin as a CSI driver of this node, for as long as it declares the same.
//
//	start --> asked --facts known--> served --+
//	              ^                           |
//	              +---- the facts change -----+
type Driver struct {
	// Plugin serves the driver, Declaration is what it declares.
	Plugin plugins.Plugin
	Declaration
	// Log names the plugin.
	Log logrus.FieldLogger

	drivers *Drivers
	conn    *grpc.ClientConn // through the forwarder: it outlives processes
	changed reconcile.Signal
	cancel  context.CancelFunc
	ended   chan struct{}
	said    logging.Once
}

func newDriver(s *Drivers, p plugins.Plugin, d Declaration) *Driver {
	return &Driver{Plugin: p, Declaration: d, drivers: s, Log: s.Log.WithField("plugin", p.Name()), changed: reconcile.NewSignal(), ended: make(chan struct{})}
}

// same reports whether the other is made of the same plugin and declaration.
func (d *Driver) same(other *Driver) bool {
	return d.Plugin == other.Plugin && reflect.DeepEqual(d.Declaration, other.Declaration)
}

// wake has the driver's facts queried again.
func (d *Driver) wake() { d.changed.Send() }

// start runs the driver until ctx ends or end is called.
func (d *Driver) start(ctx context.Context) {
	ctx, d.cancel = context.WithCancel(ctx)
	go func() {
		defer close(d.ended)
		defer d.cancel()
		defer utilruntime.HandleCrash()
		for ctx.Err() == nil {
			d.complain(d.drivers.Serve(ctx, d))
			d.sleep(ctx)
		}
	}()
}

// end ends the driver and waits.
func (d *Driver) end() {
	d.cancel()
	<-d.ended
}

// Keep queries the driver's facts, at its socket, and calls serve with the answer, until ctx ends. serve starts what
// the driver needs and returns a function that waits for the end of that, after its context has ended. It is called
// again when the facts have changed, and a little after it has failed.
func (d *Driver) Keep(ctx context.Context, serve func(context.Context, Facts) (wait func(), err error)) error {
	conn, err := grpc.NewClient("unix:"+Socket(d.drivers.KubeletRootDir, d.Name()), grpc.WithTransportCredentials(insecure.NewCredentials()),
		// The socket may be created later than this.
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: grpcbackoff.Config{BaseDelay: firstDial, Multiplier: 1.6, MaxDelay: RetryDelay}}))
	if err != nil {
		return fmt.Errorf("reach the driver: %w", err)
	}
	defer conn.Close()
	d.conn = conn
	for ctx.Err() == nil {
		now, err := d.ask(ctx)
		if err == nil {
			err = d.serve(ctx, now, serve)
			d.complain(err)
		} else if !d.drivers.Quiet {
			d.complain(err)
		}
		if err != nil {
			d.sleep(ctx)
		}
	}
	return nil
}

// serve has the driver served until its facts change.
func (d *Driver) serve(ctx context.Context, now Facts, serve func(context.Context, Facts) (func(), error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wait, err := serve(ctx, now)
	if err != nil {
		return err
	}
	defer func() { cancel(); wait() }()
	d.said.News("", "")
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.changed:
		}
		// What does not answer, or answers an error, will be another process soon.
		if next, err := d.ask(ctx); err == nil && !next.equal(now) {
			d.Log.Infof("the driver %s or its Node has changed", d.Name())
			return nil
		}
	}
}

// sleep waits for a change, or until it is time to try again.
func (d *Driver) sleep(ctx context.Context) {
	select {
	case <-d.changed:
	case <-time.After(RetryDelay):
	case <-ctx.Done():
	}
}

// complain reports each error once.
func (d *Driver) complain(err error) {
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	if d.said.News("", err.Error()) {
		d.drivers.Complain(d.Plugin.Name(), err)
	}
}

// Facts are what a driver reports about itself, beyond what it declares.
type Facts struct {
	// Identity and Controller are its capabilities, Info is its answer to NodeGetInfo.
	Identity   rpc.PluginCapabilitySet
	Controller rpc.ControllerCapabilitySet
	Info       *csi.NodeGetInfoResponse
	// NodeUID is of a node-local driver's Node; empty when there is none, or it was not requested.
	NodeUID types.UID
}

func (f Facts) equal(other Facts) bool {
	return reflect.DeepEqual(f.Identity, other.Identity) && reflect.DeepEqual(f.Controller, other.Controller) &&
		proto.Equal(f.Info, other.Info) && f.NodeUID == other.NodeUID
}

// can reports whether the driver has the capability.
func (f Facts) can(c csi.ControllerServiceCapability_RPC_Type) bool { return f.Controller[c] }

// Attaches reports whether the driver's volumes have to be attached to a node. Those of a node-local driver are there.
func (f Facts) Attaches(d Declaration) bool {
	return f.can(csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME) && !d.NodeLocal
}

// NodeKey is the topology key by whose value a driver names the node; empty when it names it in another way, or is not
// node-local.
func (f Facts) NodeKey(d Declaration, node string) string {
	segments := f.Info.GetAccessibleTopology().GetSegments()
	for _, key := range slices.Sorted(maps.Keys(segments)) {
		if d.NodeLocal && segments[key] == node {
			return key
		}
	}
	return ""
}

// ask queries the driver's facts.
func (d *Driver) ask(ctx context.Context) (Facts, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	name, err := rpc.GetDriverName(ctx, d.conn)
	if err != nil {
		return Facts{}, asking("GetPluginInfo", err)
	}
	if name != d.Name() {
		return Facts{}, fmt.Errorf("it reports the driver name %s, but its CSIDriver is %s: they must be the same", name, d.Name())
	}
	var f Facts
	if f.Identity, err = rpc.GetPluginCapabilities(ctx, d.conn); err != nil {
		return Facts{}, asking("GetPluginCapabilities", err)
	}
	if f.Identity[csi.PluginCapability_Service_CONTROLLER_SERVICE] {
		if f.Controller, err = rpc.GetControllerCapabilities(ctx, d.conn); err != nil {
			return Facts{}, asking("ControllerGetCapabilities", err)
		}
	}
	if f.Info, err = csi.NewNodeClient(d.conn).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{}); err != nil {
		return Facts{}, asking("NodeGetInfo", err)
	}
	if d.NodeLocal && (!f.Identity[csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS] || len(f.Info.GetAccessibleTopology().GetSegments()) == 0) {
		return Facts{}, errors.New("it declares node_local, but has no VOLUME_ACCESSIBILITY_CONSTRAINTS or no accessible_topology in NodeGetInfo")
	}
	if d.NodeLocal && d.drivers.NodeUID != nil {
		f.NodeUID, err = d.drivers.NodeUID(ctx)
	}
	return f, err
}

// asking names a call that failed. A plugin that does not run is its host's to report.
func asking(method string, err error) error {
	if s := status.Convert(err); s.Code() != codes.Unavailable {
		return fmt.Errorf("%s: %s", method, s.Message())
	}
	return context.Canceled
}
