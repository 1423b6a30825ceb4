// Command thirdparty is a CSI driver as others build them: it runs in a pod, knows nothing of Kubelith, and does the
// work of the usual sidecars itself, with their code: csi-provisioner, and node-driver-registrar's part, which is a
// protocol of the kubelet. It creates the volumes of the built-in driver, under its own name and in its own directory.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hashicorp/go-hclog"
	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	ctrl "github.com/kubernetes-csi/external-provisioner/v6/pkg/controller"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	csitrans "k8s.io/csi-translation-lib"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"kubelith.io/kubelith/plugins/builtin/local"
)

// name of the driver.
const name = "thirdparty.example.com"

// callTimeout of a call to the driver.
const callTimeout = 10 * time.Second

func main() {
	kubelet := flag.String("kubelet", "/var/lib/kubelet", "the kubelet's directory")
	data := flag.String("data", "/var/lib/thirdparty", "directory for volumes")
	node := flag.String("node", os.Getenv("NODE_NAME"), "name of the node")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *kubelet, *data, *node); err != nil {
		fmt.Fprintln(os.Stderr, "thirdparty:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kubelet, data, node string) error {
	d := &driver{Driver: local.New()}
	if err := d.Open(node, data, local.Config{}, hclog.Default()); err != nil {
		return err
	}
	socket := filepath.Join(kubelet, "plugins", name, "csi.sock")
	ended := make(chan error, 3)
	serve := func(path string, register func(*grpc.Server)) error {
		listener, err := listen(path)
		if err != nil {
			return err
		}
		server := grpc.NewServer()
		register(server)
		go func() { ended <- server.Serve(listener) }()
		return nil
	}
	err := serve(socket, func(s *grpc.Server) {
		csi.RegisterIdentityServer(s, d)
		csi.RegisterControllerServer(s, d)
		csi.RegisterNodeServer(s, d)
	})
	if err != nil {
		return err
	}
	err = serve(filepath.Join(kubelet, "plugins_registry", name+"-reg.sock"), func(s *grpc.Server) {
		registerapi.RegisterRegistrationServer(s, &registration{socket: socket, failed: ended})
	})
	if err != nil {
		return err
	}
	go func() { ended <- provision(ctx, socket) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return nil
	}
}

// listen on a socket in place of the one that a process before left.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return net.Listen("unix", path)
}

// provision is csi-provisioner: one for all nodes, without topology, election and capacity.
func provision(ctx context.Context, socket string) error {
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	identity, err := rpc.GetPluginCapabilities(ctx, conn)
	if err != nil {
		return err
	}
	capabilities, err := rpc.GetControllerCapabilities(ctx, conn)
	if err != nil {
		return err
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	shared := informers.NewSharedInformerFactory(client, 0)
	claims, classes := shared.Core().V1().PersistentVolumeClaims(), shared.Storage().V1().StorageClasses()
	provisioner := ctrl.NewCSIProvisioner(client, callTimeout, "thirdparty", "pvc", -1, conn, nil, name, identity, capabilities, "",
		false, true, csitrans.New(), classes.Lister(), nil, nil, claims.Lister(), nil, nil, false, "", nil, false, true, nil)
	provisioning := controller.NewProvisionController(ctx, client, name, provisioner, controller.LeaderElection(false),
		controller.FailedProvisionThreshold(0), controller.FailedDeleteThreshold(0), controller.AddFinalizer(true),
		controller.ClaimsInformer(claims.Informer()), controller.ClassesInformer(classes.Informer()),
		controller.VolumesInformer(shared.Core().V1().PersistentVolumes().Informer()))
	shared.Start(ctx.Done())
	shared.WaitForCacheSync(ctx.Done())
	provisioning.Run(ctx)
	return ctx.Err()
}

// driver is the built-in one without its topology.
type driver struct{ *local.Driver }

// GetPluginInfo implements csi.IdentityServer.
func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: name, VendorVersion: "1"}, nil
}

// GetPluginCapabilities implements csi.IdentityServer.
func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{Type: &csi.PluginCapability_Service_{
		Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE},
	}}}}, nil
}

// CreateVolume implements csi.ControllerServer.
func (d *driver) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	made, err := d.Driver.CreateVolume(ctx, r)
	if err == nil {
		made.Volume.AccessibleTopology = nil
	}
	return made, err
}

// NodeGetInfo implements csi.NodeServer.
func (d *driver) NodeGetInfo(ctx context.Context, r *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	info, err := d.Driver.NodeGetInfo(ctx, r)
	if err == nil {
		info.AccessibleTopology = nil
	}
	return info, err
}

// registration answers the kubelet as node-driver-registrar does.
type registration struct {
	registerapi.UnimplementedRegistrationServer
	socket string
	failed chan<- error
}

// GetInfo implements registerapi.RegistrationServer.
func (r *registration) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: name, Endpoint: r.socket, SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus implements registerapi.RegistrationServer.
func (r *registration) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	if !s.GetPluginRegistered() {
		r.failed <- fmt.Errorf("the kubelet refuses the driver: %s", s.GetError())
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}
