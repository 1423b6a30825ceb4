package node

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"k8s.io/component-base/metrics/legacyregistry"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/components/worker/join"
	componentstatus "kubelith.io/kubelith/components/worker/status"
	"kubelith.io/kubelith/plugins/credentials"
)

// Certificates returns the certificates of the server or agent on this machine, whether it runs or not. With an error
// it returns those that can be read.
func Certificates(cfg *config.Node) ([]pki.Certificate, error) {
	all, err := pki.Inventory(pki.Dir(cfg.DataDir))
	ofAgent, agentErr := join.Certificates(cfg.DataDir)
	ofPlugins, pluginsErr := credentials.Certificates(cfg.SocketDir())
	all = append(append(all, ofAgent...), ofPlugins...)
	err = errors.Join(err, agentErr, pluginsErr)
	if len(all) == 0 && err == nil {
		return nil, fmt.Errorf("%s has no certificates: run it as root on a server or an agent, with its --data-dir", cfg.DataDir)
	}
	return all, err
}

// exportCertificates adds the metric of this machine's certificates.
func exportCertificates(cfg *config.Node) error {
	metrics := componentstatus.CertificateMetrics(func() ([]pki.Certificate, error) { return Certificates(cfg) })
	if err := legacyregistry.Registerer().Register(metrics); err != nil {
		return fmt.Errorf("metrics of certificates: %w", err)
	}
	return nil
}

// credentials generates or renews all keys and certificates.
func (h *machine) credentials(cfg *config.Server) (err error) {
	if h.pki, err = ensureCertificates(cfg); err != nil {
		return err
	}
	h.encryptionConfig = encryptionConfig(cfg)
	_, err = os.Stat(filepath.Join(cfg.DataDir, datadir.Member))
	return pki.EnsureEncryption(h.encryptionConfig, err == nil)
}

// ensureCertificates creates or renews keys, certificates and the admin kubeconfig; valid ones stay.
func ensureCertificates(cfg *config.Server, furtherSANs ...string) (*pki.Bundle, error) {
	bundle, err := pki.Ensure(pki.Options{
		Dir:           tlsDir(cfg),
		NodeName:      cfg.NodeName,
		NodeIPs:       append(cfg.NodeIPs(), cfg.ExternalIPs()...),
		SANs:          slices.Concat(cfg.APIAddresses(), cfg.TLSSAN, furtherSANs),
		ServiceIPs:    cfg.APIServiceIPs(),
		ClusterDomain: cfg.ClusterDomain,
		Life:          testedLife(),
	})
	if err != nil {
		return nil, err
	}
	return bundle, pki.WriteKubeconfig(cfg.WriteKubeconfig, cfg.URL(), bundle.ClusterTrust, bundle.Admin)
}

func tlsDir(cfg *config.Server) string { return pki.Dir(cfg.DataDir) }

func encryptionConfig(cfg *config.Server) string {
	return filepath.Join(cfg.DataDir, datadir.Encryption)
}

// liveCertificates are those of a server, while it runs.
type liveCertificates struct {
	mu sync.Mutex // pki.Ensure is for one caller at a time
	// vip is a virtual address that came from the other servers; the zero Addr: none did.
	vip netip.Addr
}

// certify renews the certificates of a running server, and adds the virtual address to the API's if it is valid. It
// returns the names of changed files.
func (h *machine) certify(cfg *config.Server, vip netip.Addr) ([]string, error) {
	c := &h.certificates
	c.mu.Lock()
	defer c.mu.Unlock()
	if vip.IsValid() {
		c.vip = vip
	}
	return h.certifyLocked(cfg)
}

// rotate calls do, which may change the rotation of the CAs, and brings the certificates of a running server in line.
// It returns the names of changed files.
func (h *machine) rotate(cfg *config.Server, do func() error) ([]string, error) {
	c := &h.certificates
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := do(); err != nil {
		return nil, err
	}
	changed, err := h.certifyLocked(cfg)
	return changed, errors.Join(err, h.pluginUsers.Renew())
}

func (h *machine) certifyLocked(cfg *config.Server) ([]string, error) {
	c := &h.certificates
	var further []string
	if c.vip.IsValid() {
		further = append(further, c.vip.String())
	}
	bundle, err := ensureCertificates(cfg, further...)
	if err != nil {
		return nil, err
	}
	return bundle.Changed, nil
}
