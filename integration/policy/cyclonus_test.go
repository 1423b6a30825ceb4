package policy

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// TestCyclonus has a subtest for each case that cyclonus generates, with TCP, UDP and SCTP, on two nodes: make
// policy-cyclonus.
func TestCyclonus(t *testing.T) {
	if os.Getenv("KUBELITH_POLICY_CYCLONUS") == "" {
		t.Skip("make policy-cyclonus runs it")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "cyclonus")
	inModule(t, "cyclonus", "build", "-o", program, ".")
	node := harness.Options{Prepare: agnhost(t, "docker.io/mfenwick100/cyclonus-worker:latest")}
	c := harness.StartCluster(t, harness.ClusterOptions{Server: node, Agent: node, Agents: 1})

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
	defer cancel()
	cmd := asAdministrator(ctx, t, c.Server, program)
	cmd.Stderr = os.Stderr
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var result struct {
		Number, Of, Pairs, Wrong int
		Name, Details, Error     string
	}
	pairs := 0
	lines := json.NewDecoder(output)
	for lines.More() {
		result.Details, result.Error = "", ""
		if err := lines.Decode(&result); err != nil {
			t.Error(err)
			break
		}
		pairs += result.Pairs
		t.Run(result.Name, func(t *testing.T) {
			if result.Wrong > 0 || result.Error != "" || result.Pairs == 0 {
				t.Errorf("case %d: %d of %d pairs wrong: %s\n%s", result.Number, result.Wrong, result.Pairs, result.Error, result.Details)
			}
		})
	}
	if err := cmd.Wait(); err != nil || result.Number == 0 || result.Number != result.Of {
		t.Errorf("%d of %d cases were run: %v", result.Number, result.Of, err)
	}
	t.Logf("%d cases, %d pairs of pods", result.Number, pairs)
}
