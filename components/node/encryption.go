package node

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"time"

	"k8s.io/component-base/metrics/legacyregistry"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/base/rotation"
	"kubelith.io/kubelith/components/controlplane/carotation"
	"kubelith.io/kubelith/components/controlplane/encryption"
	"kubelith.io/kubelith/components/controlplane/etcd"
)

// rotationOfKeys returns the component that replaces the key for Secrets.
func rotationOfKeys(p *plane, store *etcd.Server, socket string) (*encryption.Server, error) {
	upstream, foreign := p.api.Upstream().Etcd, ""
	if upstream.EncryptionProviderConfigFilepath != p.machine.encryptionConfig || !upstream.EncryptionProviderConfigAutomaticReload {
		foreign = "an --apiserver-arg encryption-provider-config or encryption-provider-config-automatic-reload replaces " +
			"the keys that Kubelith keeps: rotate those of your file by hand"
	}
	return encryption.New(encryption.Options{
		Options: p.rotation(store, client.Encryption, "encryption"),
		File:    encryptionConfig(p.cfg),
		Foreign: foreign,
		Socket:  socket,
		Prefix:  upstream.StorageConfig.Prefix,
		Loaded:  encryption.LoadedBy(legacyregistry.DefaultGatherer),
	})
}

// rotationOfCAs returns the component that replaces the CAs.
func rotationOfCAs(p *plane, store *etcd.Server) (*carotation.Server, error) {
	o := p.rotation(store, client.CARotation, "ca-rotation")
	return carotation.New(carotation.Options{
		Options: o,
		Dir:     tlsDir(p.cfg),
		URL:     p.cfg.URL(),
		Change: func(do func() error) error {
			changed, err := p.machine.rotate(p.cfg, do)
			for _, name := range changed {
				o.Log.Infof("renewed %s", name)
			}
			return err
		},
	})
}

// rotation returns what a component needs to take part in a rotation.
func (p *plane) rotation(store *etcd.Server, identity, component string) rotation.Options {
	return rotation.Options{
		NodeName: p.cfg.NodeName,
		Servers:  membersOf(store),
		Leads:    leads(store),
		Identity: p.identity,
		Client:   p.clients.Config(identity),
		Log:      p.logFor(component),
	}
}

// identity is how this server calls others.
func (p *plane) identity() (tls.Certificate, *x509.CertPool, error) {
	return pki.ServerClient(tlsDir(p.cfg), p.cfg.NodeName, time.Now())
}

// membersOf returns a function that names all servers; one that joins may have no name yet. A witness has no keys that
// rotate.
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
