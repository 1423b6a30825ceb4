package node

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"time"

	"k8s.io/component-base/metrics/legacyregistry"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/components/controlplane/carotation"
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
		Name:     p.cfg.NodeName,
		File:     encryptionConfig(p.cfg),
		Foreign:  foreign,
		Socket:   socket,
		Prefix:   upstream.StorageConfig.Prefix,
		Servers:  membersOf(store),
		Leads:    leads(store),
		Identity: p.identity,
		Loaded:   encryption.LoadedBy(legacyregistry.DefaultGatherer),
		Client:   p.clients.Config(client.Encryption),
		Log:      p.logFor("encryption"),
	})
}

// rotationOfCAs returns the component that replaces the CAs.
func rotationOfCAs(p *plane, store *etcd.Server) (*carotation.Server, error) {
	log := p.logFor("ca-rotation")
	return carotation.New(carotation.Options{
		Name: p.cfg.NodeName,
		Dir:  tlsDir(p.cfg),
		URL:  p.cfg.URL(),
		Change: func(do func() error) error {
			changed, err := p.machine.rotate(p.cfg, do)
			for _, name := range changed {
				log.Infof("renewed %s", name)
			}
			return err
		},
		Servers:  membersOf(store),
		Leads:    leads(store),
		Identity: p.identity,
		Client:   p.clients.Config(client.CARotation),
		Log:      log,
	})
}

// identity is how this server calls others.
func (p *plane) identity() (tls.Certificate, *x509.CertPool, error) {
	return pki.ServerClient(tlsDir(p.cfg), p.cfg.NodeName, time.Now())
}

// membersOf returns a function that names all servers; one that joins may have no name yet. A witness has no keys that rotate.
func membersOf(store *etcd.Server) func() []string {
	return func() (names []string) {
		for _, m := range store.Members() {
			if !m.Witness {
				names = append(names, m.Name)
			}
		}
		return names
	}
}

// leads returns a function that reports whether this server's etcd leads.
func leads(store *etcd.Server) func() bool {
	return func() bool {
		return slices.ContainsFunc(store.Members(), func(m etcd.Member) bool { return m.Self && m.Leader })
	}
}
