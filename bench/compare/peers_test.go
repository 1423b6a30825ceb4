package compare

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/bench/results"
	"kubelith.io/kubelith/runtime/payload"
)

const (
	serviceCIDR = "10.43.0.0/16"
	clusterDNS  = "10.43.0.10"
	dnsPort     = 10053 // as Kubelith's

	criSocket = "/run/containerd/containerd.sock" // inside the sandbox
)

// programs are the executables that peers are made of.
func programs() []string {
	return []string{"etcd", "containerd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "coredns", payload.Shim, payload.Runc}
}

// peers is a cluster of separate processes: certificates, kubeconfigs and configuration files that were
// made beforehand, and the command lines.
type peers struct {
	*cluster
	set settings
	// defaults: upstream's settings (product) instead of Kubelith's (composition).
	defaults bool
	dir      string // files; the same path inside and outside of the sandbox
	nodeName string
	binDir   string // the payload that Kubelith embeds
	pki      *pki.Bundle
	// kubeconfigs by program.
	kubeconfigs     map[string]string
	adminKubeconfig string
	launched        bool
	done            chan struct{} // closed with the test
}

func newPeers(t *testing.T, set settings, c *cluster) *peers {
	t.Helper()
	p := &peers{cluster: c, set: set, defaults: c.name == results.Product, dir: t.TempDir(), kubeconfigs: map[string]string{}, done: make(chan struct{})}
	t.Cleanup(func() { close(p.done) })
	steps := []func() error{p.unpack, p.certificates, p.writeConfigs}
	for _, step := range steps {
		if err := step(); err != nil {
			t.Fatalf("prepare %s: %v", c.name, err)
		}
	}
	return p
}

func (p *peers) unpack() (err error) {
	if p.nodeName, err = os.Hostname(); err != nil {
		return err
	}
	p.nodeName = strings.ToLower(p.nodeName)
	p.binDir, err = payload.Unpack(p.dir)
	return err
}

func (p *peers) certificates() (err error) {
	p.pki, err = pki.Ensure(pki.Options{
		Dir:           filepath.Join(p.dir, "pki"),
		NodeName:      p.nodeName,
		NodeIPs:       []net.IP{net.ParseIP(p.NodeIP)},
		ServiceIPs:    []net.IP{net.ParseIP("10.43.0.1")},
		ClusterDomain: "cluster.local",
	})
	if err != nil {
		return err
	}
	if err := pki.EnsureEncryption(p.file("encryption.yaml"), false); err != nil {
		return err
	}
	url := "https://127.0.0.1:6443"
	for program, subject := range map[string][]string{
		"kube-controller-manager": {"system:kube-controller-manager"},
		"kube-scheduler":          {"system:kube-scheduler"},
		"kubelet":                 {"system:node:" + p.nodeName, "system:nodes"},
		"kube-proxy":              {"system:kube-proxy"},
		// So no role has to be created for it while the cluster starts.
		"coredns": {"coredns", "system:masters"},
	} {
		if p.kubeconfigs[program], err = clientKubeconfig(p.dir, p.pki.ClusterCA, url, subject[0], subject[1:]...); err != nil {
			return err
		}
	}
	// The group of Kubelith's own administrator has no role here.
	p.adminKubeconfig, err = clientKubeconfig(p.dir, p.pki.ClusterCA, "https://"+p.NodeIP+":6443", "admin", "system:masters")
	return err
}

func (p *peers) file(name string) string { return filepath.Join(p.dir, name) }

// launch starts everything at once. The kubelet waits for containerd's socket, without which it would only exit.
func (p *peers) launch() []*process {
	var env []string
	if p.set.peerGOGC != "" && !p.defaults {
		env = append(env, "GOGC="+p.set.peerGOGC)
	}
	env = append(env, "PATH="+p.binDir+":"+os.Getenv("PATH"))
	var none func(<-chan struct{})
	store, api := none, none
	if p.set.ordered {
		store, api = p.until(p.etcdListens), p.until(p.apiserverReady)
	}
	runtimeAndAPI := func(stop <-chan struct{}) {
		p.until(p.containerdListens)(stop)
		if api != nil {
			api(stop)
		}
	}
	var all []*process
	for _, x := range []struct {
		name  string
		after func(<-chan struct{})
		args  []string
	}{
		{"etcd", nil, p.etcdArgs()},
		{"containerd", nil, []string{"--config=" + p.file("containerd.toml")}},
		{"kube-apiserver", store, p.apiserverArgs()},
		{"kube-controller-manager", api, p.controllerManagerArgs()},
		{"kube-scheduler", api, p.schedulerArgs()},
		{"kubelet", runtimeAndAPI, p.kubeletArgs()},
		{"kube-proxy", api, []string{"--config=" + p.file("kube-proxy.yaml")}},
		{"coredns", api, []string{"-conf=" + p.file("Corefile"), "-quiet"}},
	} {
		all = append(all, p.run(x.name, env, x.after, filepath.Join(p.set.peers, x.name), x.args...))
	}
	if !p.launched { // what an installer does once
		p.launched = true
		go p.importImages()
		go p.connectPods()
		go p.publishDNS()
	}
	return all
}

// until makes a gate of a condition.
func (p *peers) until(ok func() bool) func(stop <-chan struct{}) {
	return func(stop <-chan struct{}) {
		for !ok() {
			select {
			case <-stop:
				return
			case <-time.After(retryEvery):
			}
		}
	}
}

func (p *peers) containerdListens() bool {
	conn, err := net.Dial("unix", p.Path(criSocket))
	if err == nil {
		conn.Close()
	}
	return err == nil
}

func (p *peers) etcdListens() bool {
	conn, err := p.DialContext(context.Background(), "tcp", "127.0.0.1:2379")
	if err == nil {
		conn.Close()
	}
	return err == nil
}

func (p *peers) apiserverReady() bool {
	client, err := p.adminHTTP()
	if err != nil {
		return false
	}
	resp, err := client.Get(p.URL() + "/readyz")
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

func (p *peers) adminConfig() (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", p.adminKubeconfig)
	if err != nil {
		return nil, fmt.Errorf("administrator of %s: %w", p.name, err)
	}
	cfg.QPS = -1
	cfg.Wrap(impatient)
	return cfg, nil
}

func (p *peers) adminHTTP() (*http.Client, error) {
	cfg, err := p.adminConfig()
	if err != nil {
		return nil, err
	}
	return rest.HTTPClientFor(cfg)
}
