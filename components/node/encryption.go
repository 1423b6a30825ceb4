package node

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"time"

	"k8s.io/component-base/metrics/legacyregistry"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/components/controlplane/encryption"
	"kubelith.io/kubelith/components/controlplane/etcd"
)

// rotationOfKeys returns the component that replaces the key for Secrets.
func rotationOfKeys(p *plane, store *etcd.Server, socket string) (*encryption.Server, error) {
	upstream, foreign := p.api.Upstream().Etcd, ""
	if upstream.EncryptionProviderConfigFilepath != p.machine.encryptionConfig || !upstream.EncryptionProviderConfigAutomaticReload {
		foreign = "an --apiserver-arg encryption-provider-config or encryption-provider-config-automatic-reload replaces the keys that Kubelith keeps: rotate those of your file by hand"
	}
	return encryption.New(encryption.Options{
		Name:    p.cfg.NodeName,
		File:    encryptionConfig(p.cfg),
		Foreign: foreign,
		Socket:  socket,
		Prefix:  upstream.StorageConfig.Prefix,
		Servers: func() (names []string) {
			for _, m := range store.Members() {
				if !m.Witness { // it has no keys for Secrets
					names = append(names, m.Name)
				}
			}
			return names
		},
		Leads: func() bool {
			return slices.ContainsFunc(store.Members(), func(m etcd.Member) bool { return m.Self && m.Leader })
		},
		Identity: func() (tls.Certificate, *x509.Certificate, error) {
			return pki.ServerClient(tlsDir(p.cfg), p.cfg.NodeName, time.Now())
		},
		Loaded: encryption.LoadedBy(legacyregistry.DefaultGatherer),
		Client: p.clients.Config(client.Encryption),
		Log:    p.logFor("encryption"),
	})
}
