package nodes

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/integration/harness"
)

// refusedMachines are joins with which all is well but the machine: the server never hears of them.
func refusedMachines(c *harness.Cluster) []refusal {
	fresh := func(t *testing.T) string { return c.Server.Token(t, "--once") }
	return []refusal{
		{name: "kubelet-directory-in-use", make: fresh, agent: `directory /var/lib/kubelet is in use by another server`, spoil: func(t *testing.T, a *harness.Server) {
			dir := a.Path("/var/lib/kubelet")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			f, err := os.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
			if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "payload-cannot-be-unpacked", make: fresh, agent: `payload: .*/var/lib/kubelith/data`, spoil: func(t *testing.T, a *harness.Server) {
			if err := os.MkdirAll(a.Path(harness.DataDir), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(a.Path(harness.DataDir+"/data"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "port-in-use", make: fresh, agent: `10250`, spoil: func(t *testing.T, a *harness.Server) {
			l, err := a.Listen(":10250")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
		}},
	}
}

// unheard: the server was asked for no certificate with the token, which is as good as new.
func unheard(t *testing.T, c *harness.Cluster, id string) {
	t.Helper()
	if users := c.Server.Kubectl(t, "get", "csr", "--output=jsonpath={.items[*].spec.username}"); strings.Contains(users, "system:bootstrap:"+id) {
		t.Errorf("a certificate was asked for with the token %s: %s", id, users)
	}
	if secret := c.Server.Kubectl(t, "-n", "kube-system", "get", "secret", "bootstrap-token-"+id, "--output=yaml"); strings.Contains(secret, "kubelith.io/used") {
		t.Errorf("the token %s is spent", id)
	}
}
