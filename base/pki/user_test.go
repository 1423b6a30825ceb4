package pki

import (
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// A user's kubeconfig has an identity without groups; its certificate is renewed in its file, with the same key.
func TestEnsureUser(t *testing.T) {
	now := time.Now()
	clock := func() time.Time { return now }
	bundle, err := Ensure(Options{Dir: t.TempDir(), NodeName: "n", ClusterDomain: "cluster.local", Now: clock})
	if err != nil {
		t.Fatal(err)
	}
	opts := UserOptions{
		Dir: filepath.Join(t.TempDir(), "x"), Name: "system:kubelith:plugin:x", CA: bundle.ClusterCA, Trust: bundle.ClusterTrust,
		Server: "https://127.0.0.1:6443", Now: clock,
	}
	read := func() (cert *x509.Certificate, key string) {
		t.Helper()
		path, err := EnsureUser(opts)
		if err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.BuildConfigFromFlags("", path)
		if err != nil || config.Host != opts.Server || config.CertFile == "" || config.CAFile == "" {
			t.Fatalf("%+v, %v", config, err)
		}
		data, err := os.ReadFile(config.CertFile)
		if err != nil {
			t.Fatal(err)
		}
		if cert, err = parseCert(data); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{path, config.CAFile, config.CertFile, config.KeyFile} {
			if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v, %v", file, info, err)
			}
		}
		text, err := os.ReadFile(config.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		return cert, string(text)
	}
	first, key := read()
	if first.Subject.CommonName != opts.Name || len(first.Subject.Organization) > 0 {
		t.Errorf("subject %s", first.Subject)
	}
	if again, _ := read(); again.SerialNumber.Cmp(first.SerialNumber) != 0 {
		t.Error("a valid certificate was made again")
	}
	now = first.NotAfter.Add(-renewBefore)
	renewed, sameKey := read()
	if renewed.SerialNumber.Cmp(first.SerialNumber) == 0 || sameKey != key {
		t.Error("the certificate was not renewed, or its key was not kept")
	}
}

// The process that reads the credentials does not own them, and a renewal, which root does, writes nowhere else: not
// through a link, nor where another user may put one.
func TestEnsureUserWritesNowhereElse(t *testing.T) {
	bundle, err := Ensure(Options{Dir: t.TempDir(), NodeName: "n", ClusterDomain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	for name, attack := range map[string]func(t *testing.T, dir, victim string) error{
		"a link to a directory": func(t *testing.T, dir, victim string) error {
			return errors.Join(os.Rename(dir, dir+".away"), os.Symlink(victim, dir))
		},
		"a link to the directory around": func(t *testing.T, dir, victim string) error {
			around := filepath.Dir(dir)
			return errors.Join(os.Rename(around, around+".away"), os.Symlink(victim, around))
		},
		"others may write":                  func(t *testing.T, dir, _ string) error { return os.Chmod(dir, 0o777) },
		"others may write around":           func(t *testing.T, dir, _ string) error { return os.Chmod(filepath.Dir(dir), 0o777) },
		"the directory of another":          func(t *testing.T, dir, _ string) error { return chown(t, dir) },
		"around it is what another one has": func(t *testing.T, dir, _ string) error { return chown(t, filepath.Dir(dir)) },
	} {
		t.Run(name, func(t *testing.T) {
			victim := t.TempDir()
			group := os.Getgid()
			opts := UserOptions{Dir: filepath.Join(t.TempDir(), "x", "user"), Name: "x", CA: bundle.ClusterCA, Trust: bundle.ClusterTrust, Server: "https://127.0.0.1:6443", Group: &group}
			if err := os.Mkdir(filepath.Dir(opts.Dir), 0o700); err != nil {
				t.Fatal(err)
			}
			if _, err := EnsureUser(opts); err != nil {
				t.Fatal(err)
			}
			if err := attack(t, opts.Dir, victim); err != nil {
				t.Fatal(err)
			}
			before, err := os.Stat(victim)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := EnsureUser(opts); err == nil {
				t.Error("the credentials were renewed")
			}
			after, err := os.Stat(victim)
			if left, _ := os.ReadDir(victim); err != nil || len(left) > 0 || after.Mode() != before.Mode() || !os.SameFile(before, after) {
				t.Errorf("the victim has now %v, mode %v (before: %v), %v", left, after.Mode(), before.Mode(), err)
			}
		})
	}
}

// chown gives a directory to another user.
func chown(t *testing.T, dir string) error {
	if os.Geteuid() != 0 {
		t.Skip("only root gives a directory away")
	}
	return os.Chown(dir, 12345, -1)
}

// The group that may read the files may read all of them, and write none.
func TestEnsureUserGroup(t *testing.T) {
	bundle, err := Ensure(Options{Dir: t.TempDir(), NodeName: "n", ClusterDomain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	group := os.Getgid()
	dir := filepath.Join(t.TempDir(), "user")
	if _, err := EnsureUser(UserOptions{Dir: dir, Name: "x", CA: bundle.ClusterCA, Trust: bundle.ClusterTrust, Server: "https://127.0.0.1:6443", Group: &group}); err != nil {
		t.Fatal(err)
	}
	want := map[string]os.FileMode{"": 0o750, "kubeconfig": 0o640, "client.crt": 0o640, "client.key": 0o640, "ca.crt": 0o640}
	for name, mode := range want {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != mode || int(info.Sys().(*syscall.Stat_t).Gid) != group {
			t.Errorf("%q: %v, %v", name, info, err)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) != len(want)-1 {
		t.Errorf("files %v", entries)
	}
}
