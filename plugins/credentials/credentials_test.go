package credentials

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/plugins/process"
)

// A plugin gets a kubeconfig where it looks for it; what is renewed is what still runs.
func TestIssuer(t *testing.T) {
	bundle, err := pki.Ensure(pki.Options{Dir: t.TempDir(), NodeName: "n", ClusterDomain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	var users Issuer
	dir, seen := t.TempDir(), filepath.Join(t.TempDir(), "seen")
	if err := os.Symlink(dir, seen); err != nil {
		t.Fatal(err)
	}
	o := Options{CA: bundle.ClusterCA, Trust: bundle.ClusterTrust, Server: "https://127.0.0.1:6443"}
	env, err := users.Credentials(o)(&process.Spec{Name: "x"}, dir, seen)
	if err != nil || len(env) != 1 {
		t.Fatalf("%v, %v", env, err)
	}
	path, ok := strings.CutPrefix(env[0], "KUBELITH_KUBECONFIG=")
	if !ok || !strings.HasPrefix(path, seen+"/") {
		t.Fatalf("%q is not below %s", env[0], seen)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil || config.Host != "https://127.0.0.1:6443" {
		t.Fatalf("%+v, %v", config, err)
	}
	if err := os.Remove(config.CertFile); err != nil {
		t.Fatal(err)
	}
	if err := users.Renew(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(config.CertFile); err != nil {
		t.Errorf("it was not created again: %v", err)
	}
	if err := os.RemoveAll(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := users.Renew(); err != nil || len(users.made) > 0 {
		t.Errorf("a process that has ended has credentials: %v, %v", users.made, err)
	}
}
