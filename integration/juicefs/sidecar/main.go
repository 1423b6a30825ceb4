// Command sidecar does for two sidecars of a CSI driver whose modules could not be had from the Go module proxy:
// node-driver-registrar, and livenessprobe where it is given --health-port.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const (
	// retry is how long to wait for a driver that does not answer yet.
	retry = time.Second
	// callTimeout of a call to the driver.
	callTimeout = 2 * time.Second
	// registry is where the manifest mounts the kubelet's directory of plugins.
	registry = "/registration"
)

func main() {
	address := flag.String("csi-address", "/csi/csi.sock", "the driver's socket, here")
	kubelet := flag.String("kubelet-registration-path", "", "the driver's socket, for the kubelet")
	port := flag.String("health-port", "", "be livenessprobe, on this port")
	flag.String("v", "", "ignored")
	flag.Parse()
	conn, err := grpc.NewClient("unix:"+*address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err == nil {
		if driver := csi.NewIdentityClient(conn); *port != "" {
			err = probe(driver, *port)
		} else {
			err = register(driver, *kubelet)
		}
	}
	fmt.Fprintln(os.Stderr, "sidecar:", err)
	os.Exit(1)
}

// probe answers /healthz as the driver does.
func probe(driver csi.IdentityClient, port string) error {
	http.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
		defer cancel()
		if _, err := driver.Probe(ctx, &csi.ProbeRequest{}); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	return http.ListenAndServe(":"+port, nil)
}

// register registers the driver with the kubelet.
func register(driver csi.IdentityClient, socket string) error {
	var name string
	for name == "" {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		info, err := driver.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
		cancel()
		if err != nil {
			fmt.Fprintln(os.Stderr, "sidecar:", err)
			time.Sleep(retry)
		}
		name = info.GetName()
	}
	path := filepath.Join(registry, name+"-reg.sock")
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, &registration{name: name, socket: socket})
	return server.Serve(listener)
}

// registration is what the kubelet asks.
type registration struct {
	registerapi.UnimplementedRegistrationServer
	name, socket string
}

// GetInfo implements registerapi.RegistrationServer.
func (r *registration) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: r.name, Endpoint: r.socket, SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus implements registerapi.RegistrationServer.
func (r *registration) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	if !s.GetPluginRegistered() {
		fmt.Fprintf(os.Stderr, "sidecar: the kubelet refuses the driver: %s\n", s.GetError())
		os.Exit(1)
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}
