// Package suite runs the conformance tests of network-policy-api on the cluster of KUBECONFIG. It is a separate module:
// they need another release of client-go.
package suite

import (
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/network-policy-api/conformance/tests"
	timeouts "sigs.k8s.io/network-policy-api/conformance/utils/config"
	"sigs.k8s.io/network-policy-api/conformance/utils/suite"
)

func TestConformance(t *testing.T) {
	cfg, err := config.GetConfig()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(cfg, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := v1alpha2.Install(c.Scheme()); err != nil {
		t.Fatal(err)
	}
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := suite.New(suite.Options{
		Client: c, ClientSet: cs, KubeConfig: *cfg, EnableAllSupportedFeatures: true,
		// Each check is made twice, and waits first.
		TimeoutConfig: timeouts.TimeoutConfig{RequestTimeout: time.Second, PokeInterval: 50 * time.Millisecond},
	})
	s.Setup(t)
	s.Run(t, tests.ConformanceTests)
}
