package process

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"kubelith.io/kubelith/integration/harness"
)

// proxySettings is what docs/configuration.md has for a company's proxy.
const proxySettings = "HTTPS_PROXY=http://127.0.0.1:3128\nNO_PROXY=registry.intra.example.com\n"

// TestProxy: images come through the proxy that the service's environment names, and nothing of the cluster does.
func TestProxy(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{NoTestImage: true, Env: strings.Fields(proxySettings)})
	servicesRead(t, s, proxySettings)
	proxy := &companyProxy{}
	listener, err := s.Listen("127.0.0.1:3128")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: proxy}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })

	s.Launch(t)
	s.WaitReady(t)
	pod := harness.Pod(s.Namespace(t), "a", "/app")
	pod.Spec.Containers[0].Image = "registry.example.com/app:1"
	s.Create(t, pod)
	const registry = "CONNECT registry.example.com:443"
	harness.Eventually(t, harness.PodTimeout, "the image to be asked for through the proxy", func() error {
		if asked := proxy.all(); !slices.Contains(asked, registry) {
			return fmt.Errorf("the proxy was asked for %q", asked)
		}
		return nil
	})
	// The API server calls the kubelet as it does for logs.
	if got := s.Kubectl(t, "get", "--raw", "/api/v1/nodes/"+s.Node(t).Name+"/proxy/healthz"); got != "ok" {
		t.Errorf("the kubelet answers %q", got)
	}
	for _, asked := range proxy.all() {
		if asked != registry {
			t.Errorf("through the proxy went %s", asked)
		}
	}
	s.Stop(t)
}

// servicesRead checks that each service gives the process what is in /etc/kubelith/env.
func servicesRead(t *testing.T, s *harness.Server, text string) {
	t.Helper()
	if err := os.MkdirAll(s.Path("/etc/kubelith"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Path("/etc/kubelith/env"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kubelith", "kubelith-agent"} {
		unit, err := os.ReadFile(filepath.Join("../../scripts", name+".service"))
		if err != nil {
			t.Fatal(err)
		}
		file := regexp.MustCompile(`(?m)^EnvironmentFile=-(/\S+)$`).FindSubmatch(unit)
		if file == nil {
			t.Errorf("%s.service names no file", name)
		} else if got, err := os.ReadFile(s.Path(string(file[1]))); err != nil || string(got) != text {
			t.Errorf("%s.service reads %q, %v", name, got, err)
		}
		script, err := filepath.Abs(filepath.Join("../../scripts", name+".openrc"))
		if err != nil {
			t.Fatal(err)
		}
		environment := strings.Fields(s.Exec(t, "env", "-i", "sh", "-c", `. "$0"; /usr/bin/env`, script))
		for _, want := range strings.Fields(text) {
			if !slices.Contains(environment, want) {
				t.Errorf("%s.openrc passes on %q, without %s", name, environment, want)
			}
		}
	}
}

// companyProxy refuses every request and keeps what it was asked for.
type companyProxy struct {
	mu    sync.Mutex
	asked []string
}

func (p *companyProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.asked = append(p.asked, r.Method+" "+r.Host)
	p.mu.Unlock()
	http.Error(w, "not from here", http.StatusBadGateway)
}

func (p *companyProxy) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}
