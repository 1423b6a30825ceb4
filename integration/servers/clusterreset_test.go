package servers

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// TestClusterResetOfLiving: a server whose others have a majority is not made the only one: it catches up instead. Once
// they have none it is, although one of them still answers and its own address has changed meanwhile.
func TestClusterResetOfLiving(t *testing.T) {
	t.Parallel()
	c := startTwo(t)
	first, second := c.servers[0], c.servers[1]
	w := c.prepare(t, "--witness", "--token="+c.token(t))
	w.Launch(t)
	c.witnessVotes(t, w)
	reset := func(args ...string) harness.Result {
		return second.RunBinary(t, append([]string{"server", "--cluster-reset", noNode, "--node-name=" + second.NodeName()}, args...)...)
	}

	second.Stop(t)
	if err := write(t.Context(), t, first, "meanwhile"); err != nil {
		t.Fatal(err)
	}
	r := reset()
	if r.Code == 0 || !strings.Contains(r.Stderr, "answers and has a majority: start this server without --cluster-reset") || strings.Count(r.Stderr, "\n") != 1 {
		t.Fatalf("while the others have a majority: %d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	second.Launch(t)
	second.WaitAPI(t)
	if out := second.Kubectl(t, "get", "configmap", "meanwhile", "-o", "name"); !strings.Contains(out, "meanwhile") {
		t.Errorf("it has not caught up: %s", out)
	}

	second.Stop(t)
	first.Kill9(t)
	moved := second.NodeIP[:strings.LastIndex(second.NodeIP, ".")] + ".99"
	second.AddAddress(t, moved)
	if err := os.WriteFile(second.Path("/etc/kubelith/config.yaml"), []byte(emptyConfig+"nodeIP: ["+moved+"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := reset(); r.Code != 0 || !strings.Contains(r.Stdout, "only one of its cluster") {
		t.Fatalf("when only the witness answers: %d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	w.Kill9(t)
	second.NodeIP = moved
	second.Launch(t)
	second.WaitAPI(t)
	if err := write(t.Context(), t, second, "alone"); err != nil {
		t.Error(err)
	}
	harness.Eventually(t, time.Minute, "its etcd to have the new address", func() error {
		r := second.RunBinary(t, "etcd", "status")
		if r.Code != 0 || strings.Count(r.Stdout, "https://") != 1 || !strings.Contains(r.Stdout, "https://"+moved+":2380") {
			return fmt.Errorf("status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
		return nil
	})
}
