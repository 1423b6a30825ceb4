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

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"kubelith.io/kubelith/base/unixsocket"
	"kubelith.io/kubelith/plugins/storage"
)

const (
	// registrations is the directory in the kubelet's root in which the kubelet watches for sockets.
	registrations = "plugins_registry"
	// ours begins and socketSuffix ends the names of our sockets there.
	ours, socketSuffix = "kubelith-", ".sock"
	// maxSocket is the maximum length of a unix socket's path.
	maxSocket = 107
)

// registrationSocket returns the socket by which the kubelet finds the driver.
func registrationSocket(root, driver string) string {
	return filepath.Join(root, registrations, ours+driver+socketSuffix)
}

// fits returns an error if the paths of the driver's sockets are too long.
func fits(root, driver string) error {
	longest := max(len(registrationSocket(root, driver)), len(storage.Socket(root, driver)))
	if longest <= maxSocket {
		return nil
	}
	return fmt.Errorf("the driver name %s is too long: at most %d characters fit with the kubelet's directory %s: use a shorter --kubelet-root-dir",
		driver, len(driver)-(longest-maxSocket), root)
}

// removeRegistrations removes the sockets of an earlier process before the kubelet looks: it would try to connect to
// each for ten seconds, and only then use the new one of that name.
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

// registration answers the kubelet when it finds the socket.
type registration struct {
	registerapi.UnimplementedRegistrationServer
	driver, endpoint string
	log              logrus.FieldLogger

	server *grpc.Server
	served sync.WaitGroup
}

// register registers the driver with the kubelet. The kubelet keeps it as long as the socket's file exists; it refuses
// the same name a second time, so that one registration serves all processes of the plugin.
func register(root, driver string, log logrus.FieldLogger) (*registration, error) {
	l, err := listen(registrationSocket(root, driver))
	if err != nil {
		return nil, fmt.Errorf("register with the kubelet: %w", err)
	}
	r := &registration{driver: driver, endpoint: storage.Socket(root, driver), log: log, server: grpc.NewServer()}
	registerapi.RegisterRegistrationServer(r.server, r)
	r.served.Go(func() { serveGRPC(r.server, l, log) })
	return r, nil
}

// kubelet is the kubelet that a driver registers with.
type kubelet struct {
	root   string
	driver *storage.Driver

	registration *registration            // nil: it is not registered
	node         *csi.NodeGetInfoResponse // the one that it is registered with
}

// register registers the driver with the kubelet, again when its place in the topology has changed.
func (k *kubelet) register(node *csi.NodeGetInfoResponse) error {
	if k.registration != nil && proto.Equal(k.node, node) {
		return nil
	}
	k.unregister()
	r, err := register(k.root, k.driver.Name(), k.driver.Log) // creates a new socket, for which the kubelet watches
	if err != nil {
		return err
	}
	k.registration, k.node = r, node
	return nil
}

// unregister ends the registration's server; the kubelet keeps the driver.
func (k *kubelet) unregister() {
	if k.registration != nil {
		k.registration.stop()
		k.registration = nil
	}
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

// NotifyRegistrationStatus implements registerapi.RegistrationServer. The kubelet retries by itself.
func (r *registration) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	if s.GetPluginRegistered() {
		r.log.Infof("the kubelet registered the driver %s", r.driver)
	} else {
		r.log.Warnf("the kubelet refuses the driver %s: %s", r.driver, s.GetError())
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

// serveGRPC serves until the server is stopped.
func serveGRPC(s *grpc.Server, l net.Listener, log logrus.FieldLogger) {
	if err := s.Serve(l); err != nil {
		log.Errorf("serve %s: %v", l.Addr(), err)
	}
}

// listen listens on a unix socket that only root may use, and replaces one of an earlier process. Closing it leaves the
// file: to the kubelet, a removed socket is a removed driver.
func listen(socket string) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		return nil, fmt.Errorf("create the directory of the socket: %w", err)
	}
	l, err := unixsocket.Listen(socket)
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	return l, nil
}
