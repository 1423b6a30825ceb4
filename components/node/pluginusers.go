package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/pki"
	pluginprocess "kubelith.io/kubelith/plugins/process"
	"kubelith.io/kubelith/plugins/proto"
)

// pluginUserDir is where a plugin's credentials are, in the directory of its process.
const pluginUserDir = "user"

// pluginUsers are the identities of the plugins' processes: users whose only rights are those that an operator binds.
type pluginUsers struct {
	mu   sync.Mutex
	made map[string]pki.UserOptions // by directory, which is removed with the process
}

// credentials is pluginprocess.Options.Credentials. The files belong to the server: a plugin that runs as another user
// reads them through its group.
func (u *pluginUsers) credentials(ca pki.Pair, trust, server string) func(*pluginprocess.Spec, string, string) ([]string, error) {
	return func(spec *pluginprocess.Spec, dir, seen string) ([]string, error) {
		opts := pki.UserOptions{
			Dir: filepath.Join(dir, pluginUserDir), Name: client.PluginPrefix + spec.Name, CA: ca, Trust: trust, Server: server, Group: spec.Limits.Group(), Life: testedLife(),
		}
		kubeconfig, err := pki.EnsureUser(opts)
		if err != nil {
			return nil, err
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.made == nil {
			u.made = map[string]pki.UserOptions{}
		}
		u.made[opts.Dir] = opts
		return []string{proto.KubeconfigVariable + "=" + filepath.Join(seen, pluginUserDir, filepath.Base(kubeconfig))}, nil
	}
}

// renew renews the certificates of processes that outlive them.
func (u *pluginUsers) renew() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	var errs []error
	for dir, opts := range u.made {
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			delete(u.made, dir)
			continue
		}
		if _, err := pki.EnsureUser(opts); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
