package controllermanager

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"

	"kubelith.io/kubelith/base/pki"
)

// TestVolumeControllers: a name that upstream no longer has would leave a nil descriptor, and the kubelet's CSI state
// to chance.
func TestVolumeControllers(t *testing.T) {
	all := app.NewControllerDescriptors()
	for _, name := range volumeControllers {
		if all[name] == nil {
			t.Errorf("upstream has no controller %s", name)
		}
	}
}

// TestJoinDefaults: bootstrap tokens are signed and removed, and certificates are valid for 90 days, unless the user
// sets something else.
func TestJoinDefaults(t *testing.T) {
	for _, tc := range []struct {
		args   []string
		signer bool
		life   time.Duration
	}{
		{nil, true, 90 * 24 * time.Hour},
		{[]string{"controllers=*", "cluster-signing-duration=3m"}, false, 3 * time.Minute},
	} {
		s, err := New(Options{ClusterCIDRs: []string{"10.42.0.0/16"}, ServiceCIDRs: []string{"10.43.0.0/16"}, PKI: &pki.Bundle{}, Args: tc.args})
		if err != nil {
			t.Fatal(err)
		}
		c := s.Upstream().ComponentConfig
		for _, name := range []string{names.BootstrapSignerController, names.TokenCleanerController} {
			if got := slices.Contains(c.Generic.Controllers, name); got != tc.signer {
				t.Errorf("%v: %s runs: %v", tc.args, name, got)
			}
			if app.NewControllerDescriptors()[name] == nil {
				t.Errorf("upstream has no controller %s", name)
			}
		}
		if !slices.Contains(c.Generic.Controllers, "*") {
			t.Errorf("%v: the others do not run: %v", tc.args, c.Generic.Controllers)
		}
		if got := c.CSRSigningController.ClusterSigningDuration.Duration; got != tc.life {
			t.Errorf("%v: certificates live for %s, want %s", tc.args, got, tc.life)
		}
	}
}

// TestOptions: what upstream would take from flags comes from the cluster: networks of both families, a CA for each
// signer, and neither an election nor a port.
func TestOptions(t *testing.T) {
	s, err := New(Options{
		ClusterCIDRs: []string{"10.42.0.0/16", "fd00:42::/56"}, ServiceCIDRs: []string{"10.43.0.0/16", "fd00:43::/112"},
		PKI: &pki.Bundle{ClusterSigner: "cluster.pem", ClusterTrust: "trust.crt", KubeletSigner: "kubelet.pem", ServiceAccountKey: "sa.key"},
	})
	if err != nil {
		t.Fatal(err)
	}
	c := s.Upstream().ComponentConfig
	signing := c.CSRSigningController
	for what, pair := range map[string][2]string{
		"pod networks":                 {c.KubeCloudShared.ClusterCIDR, "10.42.0.0/16,fd00:42::/56"},
		"Service network":              {c.NodeIPAMController.ServiceCIDR, "10.43.0.0/16"},
		"second Service network":       {c.NodeIPAMController.SecondaryServiceCIDR, "fd00:43::/112"},
		"signer of serving kubelets":   {signing.KubeletServingSignerConfiguration.CertFile, "kubelet.pem"},
		"its key":                      {signing.KubeletServingSignerConfiguration.KeyFile, "kubelet.pem"},
		"signer of kubelets' clients":  {signing.KubeletClientSignerConfiguration.CertFile, "cluster.pem"},
		"signer of clients":            {signing.KubeAPIServerClientSignerConfiguration.CertFile, "cluster.pem"},
		"signer of others":             {signing.LegacyUnknownSignerConfiguration.CertFile, "cluster.pem"},
		"key of the service accounts":  {c.SAController.ServiceAccountKeyFile, "sa.key"},
		"CA in Secrets of such tokens": {c.SAController.RootCAFile, "trust.crt"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %q, want %q", what, pair[0], pair[1])
		}
	}
	if c.Generic.LeaderElection.LeaderElect {
		t.Error("upstream's election is on")
	}
	if !c.KubeCloudShared.AllocateNodeCIDRs {
		t.Error("nodes get no pod network")
	}
	if s.Upstream().SecureServing != nil {
		t.Error("it serves on its own port")
	}
}

// TestRefused: a flag that would have no effect is refused, with what to do instead.
func TestRefused(t *testing.T) {
	for arg, want := range map[string]string{
		"cluster-cidr=10.0.0.0/8":         "--cluster-cidr",
		"leader-elect=true":               "leader-elect",
		"cluster-signing-cert-file=x":     "cluster-signing-legacy-unknown",
		"kubeconfig=/etc/x":               "kubeconfig",
		"no-such-flag=1":                  "no-such-flag",
		"concurrent-gc-syncs=many":        "many",
		"controllers=no-such-controller":  "no-such-controller",
		"terminated-pod-gc-threshold=1 2": "1 2",
	} {
		_, err := New(Options{ClusterCIDRs: []string{"10.42.0.0/16"}, ServiceCIDRs: []string{"10.43.0.0/16"}, PKI: &pki.Bundle{}, Args: []string{arg}})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--controller-manager-arg") {
			t.Errorf("%s: %v", arg, err)
		}
	}
}

// asked records the identities that clients are created for.
type asked struct{ who []string }

func (a *asked) Config(name string, _ ...string) *rest.Config {
	a.who = append(a.who, name)
	return &rest.Config{Host: "memory"}
}

func (a *asked) ServiceAccountConfig(namespace, name string) *rest.Config {
	return a.Config(namespace + "/" + name)
}

// TestClients: each controller is the service account that upstream's RBAC has a role for, in whatever way it asks for
// a client.
func TestClients(t *testing.T) {
	a := &asked{}
	b := clientBuilder{a}
	for _, err := range []error{
		second(b.Config("job-controller")), second(b.Client("job-controller")), second(b.DiscoveryClient("job-controller")),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	b.ConfigOrDie("job-controller")
	b.ClientOrDie("job-controller")
	b.DiscoveryClientOrDie("job-controller")
	if want := slices.Repeat([]string{"kube-system/job-controller"}, 6); !slices.Equal(a.who, want) {
		t.Errorf("asked for %q", a.who)
	}
}

func second[T any](_ T, err error) error { return err }

// TestHealth: one controller that is not well is named, and those of an earlier run are forgotten.
func TestHealth(t *testing.T) {
	s := &Server{}
	s.checks.AddHealthChecker(healthz.PingHealthz, healthz.NamedCheck("node-controller", func(*http.Request) error { return errors.New("stuck") }))
	if err := s.Healthy(context.Background()); err == nil || err.Error() != "node-controller: stuck" {
		t.Errorf("Healthy: %v", err)
	}
	s.checks.reset()
	if err := s.Healthy(context.Background()); err != nil {
		t.Errorf("in the next run: %v", err)
	}
}
