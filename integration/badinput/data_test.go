package badinput

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/integration/harness"
)

// TestData damages copies of a data directory that a server has used. Each damage is refused, what is in the
// directory stays as it is, and with the damage undone the server starts from it.
func TestData(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{NoTestImage: true})
	original := used(t, s)

	const tls = "server/tls/"
	for name, tc := range map[string]struct {
		damage func(t *testing.T, dir string)
		logs   bool   // found when components already run: there are log lines before the message
		opened string // a file that is opened for writing before the damage shows
		want   []string
	}{
		"certificate cut": {
			damage: truncate(tls+"apiserver.crt", 100),
			want:   []string{tls + "apiserver.crt is damaged", "restore it, or remove apiserver.crt and apiserver.key"},
		},
		"key is garbage": {
			damage: write(tls+"admin.key", "garbage"),
			want:   []string{tls + "admin.key is damaged", "restore it"},
		},
		"certificate of another key": {
			damage: func(t *testing.T, dir string) {
				move(t, filepath.Join(dir, tls, "admin.key"), filepath.Join(dir, tls, "apiserver.key"))
			},
			want: []string{"does not belong to the key"},
		},
		"CA key lost": {
			damage: remove(tls + "cluster-ca.key"),
			want:   []string{tls + "cluster-ca.key is missing", "backup"},
		},
		"CA expired": {
			damage: newCA(-48*time.Hour, -24*time.Hour),
			want:   []string{tls + "cluster-ca.crt expired at", "the clock says"},
		},
		"clock before the CA": {
			damage: newCA(24*time.Hour, 48*time.Hour),
			want:   []string{"the clock says", tls + "cluster-ca.crt is valid from", "set the clock"},
		},
		"token key is garbage": {
			damage: write(tls+"service-account.key", "garbage"),
			want:   []string{tls + "service-account.key is damaged"},
		},
		"encryption key is garbage": {
			damage: write("server/cred/encryption.yaml", "garbage: ["),
			want:   []string{"server/cred/encryption.yaml is damaged", "backup"},
		},
		"encryption key lost": {
			damage: remove("server/cred/encryption.yaml"),
			want:   []string{"server/cred/encryption.yaml is missing", "backup"},
		},
		"database cut": {
			damage: truncate("server/db/member/snap/db", 9000),
			want:   []string{"etcd: ", "server/db", "damaged", "restore"},
			logs:   true,
		},
		"database damaged in the middle": {
			damage: overwrite("server/db/member/snap/db", 128<<10),
			want:   []string{"etcd: ", "server/db", "damaged", "restore"},
			logs:   true,
		},
		"database is garbage": {
			damage: overwrite("server/db/member/snap/db", 0),
			want:   []string{"etcd: ", "server/db", "damaged", "restore"},
			logs:   true,
		},
		"log is garbage": {
			damage: overwrite("server/db/member/wal/*.wal", 64),
			want:   []string{"etcd: ", "server/db", "damaged", "restore"},
			logs:   true,
			opened: "/server/db/member/snap/db",
		},
		"log lost": {
			damage: func(t *testing.T, dir string) {
				for _, f := range glob(t, dir, "server/db/member/wal/*.wal") {
					os.Remove(f)
				}
			},
			want: []string{"etcd: ", "server/db", "damaged", "restore"},
			logs: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := "/var/lib/damaged"
			s.Exec(t, "rm", "-rf", dir)
			s.Exec(t, "cp", "-a", original, dir)
			path := s.Path(dir)
			tc.damage(t, path)
			before := contents(t, path)
			cmd := s.BinaryCommand("server", controlPlane, "--data-dir="+dir)
			contains(t, refusal(t, s, cmd, !tc.logs), append(tc.want, dir)...)
			delete(before, tc.opened)
			untouched(t, before, contents(t, path))
		})
	}
	t.Run("undamaged", func(t *testing.T) { // otherwise the refusals above could have another reason
		startAndStop(t, s, original)
	})
}

// used creates a data directory with the state of a cluster.
func used(t *testing.T, s *harness.Server) string {
	t.Helper()
	const dir = "/var/lib/original"
	startAndStop(t, s, dir)
	return dir
}

// startAndStop runs a control plane on a directory until its API answers.
func startAndStop(t *testing.T, s *harness.Server, dir string) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := s.BinaryCommand("server", controlPlane, "--data-dir="+dir)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() {
		cmd.Process.Signal(unix.SIGTERM)
		select {
		case err := <-ended:
			if err != nil {
				text, _ := os.ReadFile(log.Name())
				t.Errorf("stop: %v\n%s", err, tail(string(text)))
			}
		case <-time.After(harness.Patience(30 * time.Second)):
			cmd.Process.Kill()
			t.Error("the server does not stop")
		}
	}()
	harness.Eventually(t, 60*time.Second, "the API", func() error {
		select {
		case err := <-ended:
			ended <- err
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("the server ended: %v\n%s", err, text)
		default:
		}
		if _, err := os.Stat(s.Path(harness.AdminKubeconfig)); err != nil {
			return err
		}
		_, err := s.Client(t).Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context())
		return err
	})
}

func glob(t *testing.T, dir, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no file %s: %v", pattern, err)
	}
	return files
}

func truncate(pattern string, size int64) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		for _, f := range glob(t, dir, pattern) {
			if err := os.Truncate(f, size); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func write(name, content string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		if err := os.WriteFile(glob(t, dir, name)[0], []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func remove(name string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		if err := os.Remove(glob(t, dir, name)[0]); err != nil {
			t.Fatal(err)
		}
	}
}

func move(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, content, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// overwrite replaces 32 KiB of each file by random bytes.
func overwrite(pattern string, offset int64) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		noise := make([]byte, 32<<10)
		rand.Read(noise)
		for _, name := range glob(t, dir, pattern) {
			f, err := os.OpenFile(name, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt(noise, offset); err != nil {
				t.Fatal(err)
			}
			f.Close()
		}
	}
}

// newCA replaces the cluster's CA by one that is valid between two moments, counted from now.
func newCA(from, to time.Duration) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubelith-cluster-ca"},
			NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(to),
			IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		}
		cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		write("server/tls/cluster-ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})))(t, dir)
		write("server/tls/cluster-ca.key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))(t, dir)
	}
}
