package controllermanager

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/config"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	csrsigningconfig "k8s.io/kubernetes/pkg/controller/certificates/signer/config"

	"kubelith.io/kubelith/base/args"
)

// upstreamConfig translates Options into upstream's component configuration
// and applies the user's arguments on top.
func upstreamConfig(o Options) (*config.Config, error) {
	s, err := options.NewKubeControllerManagerOptions()
	if err != nil {
		return nil, err
	}
	// First: defining the flags resets some fields to the flags' own defaults.
	all, disabled, aliases := app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases()
	sets := s.Flags(all, disabled, aliases)
	s.SecureServing.BindPort = 0 // metrics and health are served once, by the apiserver
	s.Generic.LeaderElection.LeaderElect = false
	s.KubeCloudShared.UseServiceAccountCredentials = true
	s.KubeCloudShared.AllocateNodeCIDRs = true
	s.KubeCloudShared.ClusterCIDR = strings.Join(o.ClusterCIDRs, ",")
	s.NodeIPAMController.ServiceCIDR = strings.Join(o.ServiceCIDRs, ",") // upstream splits it
	s.SAController.ServiceAccountKeyFile = o.PKI.ServiceAccountKey
	s.SAController.RootCAFile = o.PKI.ClusterTrust
	signing := s.CSRSigningController
	for signer, file := range map[*csrsigningconfig.CSRSigningConfiguration]string{
		&signing.KubeletServingSignerConfiguration:      o.PKI.KubeletSigner,
		&signing.KubeletClientSignerConfiguration:       o.PKI.ClusterSigner,
		&signing.KubeAPIServerClientSignerConfiguration: o.PKI.ClusterSigner,
		&signing.LegacyUnknownSignerConfiguration:       o.PKI.ClusterSigner,
	} {
		signer.CertFile, signer.KeyFile = file, file
	}
	// A certificate cannot be revoked: a deleted node's stays valid for this long. Nodes renew theirs in time.
	s.CSRSigningController.ClusterSigningDuration.Duration = 90 * 24 * time.Hour
	// All controllers that upstream enables by default and, for machines that join, the two that sign and remove
	// bootstrap tokens.
	s.Generic.Controllers = []string{"*", names.BootstrapSignerController, names.TokenCleanerController}

	if err := args.Apply("--controller-manager-arg", sets, Refused(), o.Args); err != nil {
		return nil, err
	}
	s.ParsedFlags = &sets
	if err := s.Validate(all, disabled, aliases); err != nil {
		return nil, fmt.Errorf("--controller-manager-arg: %w", err)
	}
	c := &config.Config{}
	if err := s.ApplyTo(c, all, disabled, aliases); err != nil {
		return nil, err
	}
	return c, nil
}

// Refused are the upstream flags that Kubelith sets itself or does not use.
func Refused() args.Refused {
	cloud := "cloud controllers run outside the process"
	owned := "Kubelith generates and renews it"
	one := "kubelets have their own CA: use the flags of a signer, cluster-signing-kube-apiserver-client-... or cluster-signing-legacy-unknown-..."
	return args.Merge(args.Logging(), args.FeatureGates(), args.Clients(), args.Serving(), args.Election(), args.Refused{
		"cluster-cidr":                              "use Kubelith's own --cluster-cidr",
		"service-cluster-ip-range":                  "use Kubelith's own --service-cidr",
		"root-ca-file":                              owned,
		"service-account-private-key-file":          owned,
		"cluster-signing-cert-file":                 one,
		"cluster-signing-key-file":                  one,
		"cluster-signing-kubelet-client-cert-file":  owned,
		"cluster-signing-kubelet-client-key-file":   owned,
		"cluster-signing-kubelet-serving-cert-file": owned,
		"cluster-signing-kubelet-serving-key-file":  owned,
		"use-service-account-credentials":           "every controller has its own identity",
		"cloud-provider":                            cloud,
		"cloud-config":                              cloud,
		"cluster-name":                              cloud,
		"allow-untagged-cloud":                      cloud,
		"configure-cloud-routes":                    cloud,
		"route-reconciliation-period":               cloud,
		"external-cloud-volume-plugin":              cloud,
		"node-sync-period":                          "upstream ignores it",
		"leader-migration-config":                   "Kubelith elects its leading server itself",
		"enable-leader-migration":                   "Kubelith elects its leading server itself",
		"controller-shutdown-timeout":               "controllers stop within 5 s, the process within 30 s",
	})
}
