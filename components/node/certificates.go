package node

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"k8s.io/component-base/metrics/legacyregistry"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/components/worker/join"
	componentstatus "kubelith.io/kubelith/components/worker/status"
	pluginprocess "kubelith.io/kubelith/plugins/process"
)

// Certificates returns the certificates of the server or agent on this machine, whether it runs or not. With an error
// it returns those that can be read.
func Certificates(cfg *config.Node) ([]pki.Certificate, error) {
	all, err := pki.Inventory(pki.Dir(cfg.DataDir))
	ofAgent, agentErr := join.Certificates(cfg.DataDir)
	ofPlugins, pluginsErr := pluginCertificates(cfg)
	all = append(append(all, ofAgent...), ofPlugins...)
	err = errors.Join(err, agentErr, pluginsErr)
	if len(all) == 0 && err == nil {
		return nil, fmt.Errorf("%s has no certificates: run it as root on a server or an agent, with its --data-dir", cfg.DataDir)
	}
	return all, err
}

// pluginCertificates returns those of the running plugins.
func pluginCertificates(cfg *config.Node) (out []pki.Certificate, err error) {
	var errs []error
	for _, path := range pluginprocess.Files(cfg.SocketDir(), filepath.Join(pluginUserDir, "client.crt")) {
		all, err := pki.Read(path, "a plugin calls the API")
		for _, c := range all {
			c.Name = "plugin-" + strings.TrimPrefix(c.Subject, client.PluginPrefix)
			out = append(out, c)
		}
		if !errors.Is(err, fs.ErrNotExist) { // its process has ended
			errs = append(errs, err)
		}
	}
	return out, errors.Join(errs...)
}

// exportCertificates adds the metric of this machine's certificates.
func exportCertificates(cfg *config.Node) error {
	metrics := componentstatus.CertificateMetrics(func() ([]pki.Certificate, error) { return Certificates(cfg) })
	if err := legacyregistry.Registerer().Register(metrics); err != nil {
		return fmt.Errorf("metrics of certificates: %w", err)
	}
	return nil
}
