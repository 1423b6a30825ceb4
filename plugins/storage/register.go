package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const (
	// registrations is the directory in the kubelet's root that it watches for sockets.
	registrations = "plugins_registry"
	// ours begins and socketSuffix ends the names of our sockets there.
	ours, socketSuffix = "kubelith-", ".sock"
	// maxSocket is how long the path of a unix socket may be.
	maxSocket = 107
)

// registrationSocket is by which the kubelet finds the driver.
func registrationSocket(root, driver string) string {
	return filepath.Join(root, registrations, ours+driver+socketSuffix)
}

// fits says whether the paths of the driver's sockets are short enough.
func fits(root, driver string) error {
	longest := max(len(registrationSocket(root, driver)), len(csiSocket(root, driver)))
	if longest <= maxSocket {
		return nil
	}
	return fmt.Errorf("the name of its driver, %s, may have %d characters with the kubelet's directory %s: give a shorter --kubelet-root-dir",
		driver, len(driver)-(longest-maxSocket), root)
}

// removeRegistrations removes the sockets that an earlier process left. Before the kubelet looks: it would
// try to reach each for ten seconds, and take the new one of that name only then.
func removeRegistrations(root string) error {
	sockets, err := filepath.Glob(filepath.Join(root, registrations, ours+"*"+socketSuffix))
	if err != nil {
		return err
	}
	for _, socket := range sockets {
		if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove a socket of an earlier process: %w", err)
		}
	}
	return nil
}

// registration is what the kubelet asks when it finds the socket.
type registration struct {
	registerapi.UnimplementedRegistrationServer
	driver, endpoint string
	log              logrus.FieldLogger

	server *grpc.Server
	served sync.WaitGroup
}

// register makes the driver known to the kubelet. As long as the socket's file is there the kubelet keeps it; it refuses
// the same name a second time, so that one registration serves all processes of the plugin.
func register(root, driver string, log logrus.FieldLogger) (*registration, error) {
	l, err := listen(registrationSocket(root, driver))
	if err != nil {
		return nil, fmt.Errorf("register with the kubelet: %w", err)
	}
	r := &registration{driver: driver, endpoint: csiSocket(root, driver), log: log, server: grpc.NewServer()}
	registerapi.RegisterRegistrationServer(r.server, r)
	r.served.Go(func() { serveGRPC(r.server, l, log) })
	return r, nil
}

// stop ends the server and leaves the registration.
func (r *registration) stop() {
	r.server.Stop()
	r.served.Wait()
}

// GetInfo implements registerapi.RegistrationServer.
func (r *registration) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: r.driver, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus implements registerapi.RegistrationServer. The kubelet tries again by itself.
func (r *registration) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	if s.GetPluginRegistered() {
		r.log.Infof("the kubelet has the driver %s", r.driver)
	} else {
		r.log.Warnf("the kubelet does not take the driver %s: %s", r.driver, s.GetError())
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

// serveGRPC serves until the server is stopped.
func serveGRPC(s *grpc.Server, l net.Listener, log logrus.FieldLogger) {
	if err := s.Serve(l); err != nil {
		log.Errorf("serve %s: %v", l.Addr(), err)
	}
}
