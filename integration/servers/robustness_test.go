package servers

import (
	"bufio"
	"bytes"
	"io"
	"os/exec"
	"strings"
	"testing"

	"kubelith.io/kubelith/integration/harness"
)

// validators is a running tools/robustness: clients and watches of etcd's own robustness tests, and later their model
// and validators. What history checks through the API, these check of etcd itself, with transactions and reads at
// old revisions.
type validators struct {
	command *exec.Cmd
	end     io.Closer
	said    *bufio.Reader
	failure bytes.Buffer
}

// validate starts the validators on the servers' etcd.
func validate(t *testing.T, servers []*harness.Server) *validators {
	t.Helper()
	v := &validators{command: exec.Command(harness.Tool(t, "robustness"))}
	for _, s := range servers {
		v.command.Args = append(v.command.Args, s.Path(harness.RunDir+"/etcd/etcd.sock")+"="+s.Path(harness.DataDir+"/server/db"))
	}
	v.command.Stderr = &v.failure
	end, err := v.command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := v.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	v.end, v.said = end, bufio.NewReader(out)
	if err := v.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = v.command.Process.Kill() // unless it has ended
		_ = v.command.Wait()
	})
	if line, err := v.said.ReadString('\n'); err != nil {
		_ = v.command.Wait() // so that all that it said is there
		t.Fatalf("the validators do not begin: %s%s", line, v.failure.String())
	}
	return v
}

// check ends the clients, and fails if what they saw is not possible.
func (v *validators) check(t *testing.T) {
	t.Helper()
	if err := v.end.Close(); err != nil {
		t.Error(err)
	}
	counts, _ := v.said.ReadString('\n') // without one it has failed
	if err := v.command.Wait(); err != nil {
		t.Errorf("etcd: %v: %s", err, v.failure.String())
	}
	t.Logf("etcd: %s", strings.TrimSpace(counts))
}
