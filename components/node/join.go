package node

import (
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/informers"
	"k8s.io/component-base/version"

	"kubelith.io/kubelith/components/approver"
	"kubelith.io/kubelith/components/client"
	"kubelith.io/kubelith/components/config"
	"kubelith.io/kubelith/components/controllermanager"
	"kubelith.io/kubelith/components/token"
)

// tokenFile is where a server keeps a token that is valid.
func tokenFile(cfg *config.Server) string { return filepath.Join(cfg.DataDir, "server", "token") }

// joinURL is where other machines find the API.
func joinURL(cfg *config.Server) string {
	return "https://" + net.JoinHostPort(cfg.AdvertiseAddress, fmt.Sprint(cfg.HTTPSPort))
}

// joinHint is what a person at the terminal reads.
func joinHint(cfg *config.Server) string {
	return fmt.Sprintf("to join a machine, make a token here:\n  %s\nand with that file run there:\n  %s\n", token.MakeCommand, token.Command(joinURL(cfg)))
}

// addJoining adds what lets other machines join.
func (b *builder) addJoining(cfg *config.Server, machine *machine, api client.Identities, signer *controllermanager.Server, shared func() informers.SharedInformerFactory, logFor func(string) logrus.FieldLogger) {
	cluster, err := json.Marshal(cfg.ClusterInfo(version.Get().GitVersion, machine.release))
	if err != nil {
		b.errs = append(b.errs, err)
		return
	}
	tokens, err := token.New(token.Options{
		File:      tokenFile(cfg),
		Reusable:  cfg.JoinToken == config.JoinTokenDaily,
		CA:        machine.pki.ClusterCA.Cert,
		Server:    joinURL(cfg),
		Cluster:   token.Document{Namespace: config.ClusterInfoNamespace, Name: config.ClusterInfoName, Key: config.ClusterInfoKey, Value: string(cluster)},
		Client:    api.Config(client.Token),
		Informers: shared,
		Log:       logFor("token"),
	})
	b.elect(tokens, err)

	var life time.Duration
	if signer != nil { // else it is among the errors
		life = signer.Upstream().ComponentConfig.CSRSigningController.ClusterSigningDuration.Duration
	}
	b.elect(approver.New(approver.Options{
		Client:          api.Config(client.Approver),
		Informers:       shared,
		Group:           token.Group,
		Spend:           tokens.Spend,
		ServerNames:     []string{cfg.NodeName},
		ServerCert:      machine.pki.APIServer.Cert,
		Networks:        append(slices.Clone(cfg.ClusterCIDR), cfg.ServiceCIDR...),
		ClusterDomain:   cfg.ClusterDomain,
		CertificateLife: life,
		Log:             logFor("approver"),
	}))
}
