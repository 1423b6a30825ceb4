package servers

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestRestoreOfSeveral: two servers are lost. The snapshot of the one that did not lead restores the cluster to a new
// machine; the other server joins it as docs/backup.md says. Etcd has a disk of its own on both.
func TestRestoreOfSeveral(t *testing.T) {
	t.Parallel()
	c := start(t, harness.Options{Args: []string{noNode}, NoWait: true})
	c.servers[0].WaitAPI(t)
	second := harness.New(t, harness.Options{Network: c.network, Args: []string{noNode}})
	disk(t, second)
	join := func() {
		put(t, second, tokenFile, c.token(t))
		put(t, second, "/etc/kubelith/config.yaml", fmt.Sprintf("apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\nserver: %s\ntokenFile: %s\n", c.servers[0].URL(), tokenFile))
		second.Launch(t)
		second.WaitAPI(t)
		c.servers = append(c.servers, second)
		c.leader(t)
	}
	join()
	second.Kubectl(t, "create", "configmap", "kept")
	r := second.RunBinary(t, "snapshot", "save", "-")
	if r.Code != 0 {
		t.Fatalf("%s", r.Stderr)
	}
	for _, s := range c.servers {
		s.Kill9(t)
	}

	third := harness.New(t, harness.Options{Network: c.network, Args: []string{noNode}})
	disk(t, third)
	restore := third.BinaryCommand("snapshot", "restore", "--node-name="+third.NodeName(), "-")
	restore.Stdin = strings.NewReader(r.Stdout)
	if out, err := restore.CombinedOutput(); err != nil {
		t.Fatalf("restore: %v\n%s", err, out)
	}
	third.Launch(t)
	third.WaitAPI(t)
	if all, err := roles(t.Context(), t, third); err != nil || len(all) != 1 {
		t.Errorf("the restored cluster has %v, %v", all, err)
	}
	c.servers = []*harness.Server{third}

	if r := second.RunBinary(t, "reset", "--data", "--yes"); r.Code != 0 {
		t.Fatalf("reset: %s%s", r.Stdout, r.Stderr)
	}
	join()
	for _, s := range c.servers {
		if _, err := s.Client(t).CoreV1().ConfigMaps(metav1.NamespaceDefault).Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
			t.Errorf("%s: %v", s.NodeName(), err)
		}
	}
	r = third.RunBinary(t, "etcd", "members")
	if r.Code != 0 || !strings.Contains(r.Stdout, third.NodeName()) || !strings.Contains(r.Stdout, second.NodeName()) {
		t.Errorf("etcd members: %+v", r)
	}
	harness.Eventually(t, time.Minute, "writes on both", func() error {
		var errs []error
		for i, s := range c.servers {
			errs = append(errs, write(t.Context(), t, s, fmt.Sprint("after-", i)))
		}
		return errors.Join(errs...)
	})
	for _, s := range c.servers {
		s.Exec(t, "test", "-d", harness.DataDir+"/server/db/member")
		s.Exec(t, "mountpoint", harness.DataDir+"/server/db")
	}
}

// disk gives etcd a disk of its own.
func disk(t *testing.T, s *harness.Server) {
	t.Helper()
	s.Exec(t, "mkdir", "-p", harness.DataDir+"/server/db")
	s.Exec(t, "mount", "-t", "tmpfs", "none", harness.DataDir+"/server/db")
}
