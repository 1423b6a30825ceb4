// Package credentials gives the process of each plugin an identity: a user of the API whose only rights are those that
// an operator binds (docs/adr/025-rights-of-plugins.md).
package credentials

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/plugins/process"
	"kubelith.io/kubelith/plugins/proto"
)

// userDir is where a plugin's credentials are, in the directory of its process.
const userDir = "user"

// Issuer creates and renews the credentials of this server's plugins. The zero value is ready for use.
type Issuer struct {
	mu   sync.Mutex
	made map[string]pki.UserOptions // by directory, which is removed with the process
}

// Options are of the cluster.
type Options struct {
	// CA signs the certificates; Trust is the file with the CAs of the API.
	CA    pki.Pair
	Trust string
	// Server is the URL of the API.
	Server string
	// Life is how long a certificate is valid, as in pki.UserOptions.
	Life time.Duration
}

// Credentials returns process.Options.Credentials. The files belong to the server: a plugin that runs as another user
// reads them through its group.
func (i *Issuer) Credentials(o Options) func(spec *process.Spec, dir, seen string) ([]string, error) {
	return func(spec *process.Spec, dir, seen string) ([]string, error) {
		opts := pki.UserOptions{
			Dir: filepath.Join(dir, userDir), Name: client.PluginPrefix + spec.Name, CA: o.CA, Trust: o.Trust, Server: o.Server,
			Group: spec.Limits.Group(), Life: o.Life,
		}
		kubeconfig, err := pki.EnsureUser(opts)
		if err != nil {
			return nil, err
		}
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.made == nil {
			i.made = map[string]pki.UserOptions{}
		}
		i.made[opts.Dir] = opts
		return []string{proto.KubeconfigVariable + "=" + filepath.Join(seen, userDir, filepath.Base(kubeconfig))}, nil
	}
}

// Renew renews the certificates of processes that outlive them.
func (i *Issuer) Renew() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	var errs []error
	for dir, opts := range i.made {
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			delete(i.made, dir)
			continue
		}
		if _, err := pki.EnsureUser(opts); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Certificates returns those of the running plugins below a server's run directory.
func Certificates(runDir string) (out []pki.Certificate, err error) {
	var errs []error
	for _, path := range process.Files(runDir, filepath.Join(userDir, "client.crt")) {
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
