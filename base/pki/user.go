package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"
	certutil "k8s.io/client-go/util/cert"
	"sigs.k8s.io/yaml"

	"kubelith.io/kubelith/base/atomicfile"
)

// UserOptions say for whom EnsureUser creates credentials.
type UserOptions struct {
	Dir    string // of these files only, created for one process; only we change it and its parent
	Name   string // of the user, who is in no group
	CA     Pair   // the cluster's, which signs
	Trust  string // file with the CAs of the API
	Server string // URL of the API
	Group  *int   // that may read the files; nil: none
	Now    func() time.Time
	Life   time.Duration // of the certificate, as in Options
}

// userCA is the file with the CAs of the API.
const userCA = "ca.crt"

// EnsureUser keeps a kubeconfig, and the CAs, the certificate and the key that it names, and returns its path. A
// program that rereads these files, as client-go does, never needs a restart: call EnsureUser again in time.
//
// The process that reads the files may be hostile, and never owns them: everything goes through the checked directory,
// and a link in its place is refused.
func EnsureUser(opts UserOptions) (kubeconfig string, err error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	dir, err := openOwn(opts.Dir, opts.Group)
	if err != nil {
		return "", fmt.Errorf("pki: directory of %s: %w", opts.Name, err)
	}
	defer dir.Close()
	s := &store{dir: fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), now: opts.Now(), life: opts.Life, files: atomicfile.Options{Group: opts.Group, Passing: true}}
	ca, err := s.authority(opts.CA, "kubelith-cluster-ca")
	if err != nil {
		return "", err
	}
	trust, err := os.ReadFile(opts.Trust)
	if err != nil {
		return "", fmt.Errorf("pki: %w", err)
	}
	known, err := certutil.ParseCertsPEM(trust)
	if err != nil {
		return "", fmt.Errorf("pki: %s is damaged: %w", opts.Trust, err)
	}
	if err := s.replace(userCA, trust); err != nil {
		return "", err
	}
	pair := s.pair("client")
	if err := s.ensureLeaf(leaf{pair: pair, ca: ca, cn: opts.Name, usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, others: known}); err != nil {
		return "", err
	}
	const name = "kubeconfig"
	if err := writeUserKubeconfig(filepath.Join(s.dir, name), opts, pair, s.files); err != nil {
		return "", err
	}
	return filepath.Join(opts.Dir, name), nil
}

// openOwn opens a directory that only we can have changed, and creates it if need be. The group may read it.
func openOwn(path string, group *int) (_ *os.File, err error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	around, err := unix.Open(filepath.Dir(path), flags, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: filepath.Dir(path), Err: err}
	}
	defer unix.Close(around)
	if err := ours(around, filepath.Dir(path)); err != nil {
		return nil, err
	}
	if err := unix.Mkdirat(around, filepath.Base(path), 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, &os.PathError{Op: "mkdir", Path: path, Err: err}
	}
	fd, err := unix.Openat(around, filepath.Base(path), flags, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	dir := os.NewFile(uintptr(fd), path)
	defer func() {
		if err != nil {
			dir.Close()
		}
	}()
	if err := ours(fd, path); err != nil || group == nil {
		return dir, err
	}
	if err := dir.Chown(-1, *group); err != nil {
		return nil, err
	}
	return dir, dir.Chmod(0o750)
}

// ours refuses a directory whose entries another user may replace.
func ours(fd int, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	switch {
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d, not to %d: refusing to write credentials there", path, st.Uid, os.Geteuid())
	case st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0:
		return fmt.Errorf("%s can be changed by others (mode %#o): refusing to write credentials there", path, st.Mode&0o7777)
	}
	return nil
}

// writeUserKubeconfig names the pair by its files, unlike WriteKubeconfig: they are replaced while in use. The paths
// are relative, as the user may know the directory by another path.
func writeUserKubeconfig(path string, opts UserOptions, pair Pair, files atomicfile.Options) error {
	const name = "kubelith"
	cluster := clientcmdv1.Cluster{Server: opts.Server, CertificateAuthority: userCA}
	user := clientcmdv1.AuthInfo{ClientCertificate: filepath.Base(pair.Cert), ClientKey: filepath.Base(pair.Key)}
	out, err := yaml.Marshal(clientcmdv1.Config{
		APIVersion:     "v1",
		Kind:           "Config",
		Clusters:       []clientcmdv1.NamedCluster{{Name: name, Cluster: cluster}},
		AuthInfos:      []clientcmdv1.NamedAuthInfo{{Name: name, AuthInfo: user}},
		Contexts:       []clientcmdv1.NamedContext{{Name: name, Context: clientcmdv1.Context{Cluster: name, AuthInfo: name}}},
		CurrentContext: name,
	})
	if err != nil {
		return fmt.Errorf("pki: kubeconfig: encode: %w", err)
	}
	return atomicfile.WriteWith(path, out, files)
}
