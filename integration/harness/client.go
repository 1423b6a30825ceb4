package harness

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// API is a cluster as its clients meet it. A Server has it, and so has a Library.
type API struct {
	config  func() (*rest.Config, error)
	kubectl func(args ...string) *exec.Cmd
	logs    func() string
}

// RESTConfig returns the admin kubeconfig with the server's address as seen from the test process.
func (a API) RESTConfig(t testing.TB) *rest.Config {
	t.Helper()
	cfg, err := a.config()
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func (s *Server) restConfig() (*rest.Config, error) {
	s = s.api()
	content, err := os.ReadFile(s.Path(AdminKubeconfig))
	if err != nil {
		return nil, err
	}
	cfg, err := clientcmd.RESTConfigFromKubeConfig(content)
	if err != nil {
		return nil, fmt.Errorf("admin kubeconfig: %w", err)
	}
	cfg.Host = s.URL()
	cfg.QPS, cfg.Burst = 200, 400
	return cfg, nil
}

// URL returns the API's address for the test process.
func (s *Server) URL() string { return "https://" + net.JoinHostPort(s.api().NodeIP, "6443") }

// Client returns a client with the admin's rights.
func (a API) Client(t testing.TB) kubernetes.Interface {
	t.Helper()
	client, err := a.client()
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func (a API) client() (kubernetes.Interface, error) {
	cfg, err := a.config()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(cfg)
}

// Dynamic returns a client for any resource, with the admin's rights.
func (a API) Dynamic(t testing.TB) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(a.RESTConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	return client
}
