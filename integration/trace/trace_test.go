// Package trace tests the flight recorder and `kubelith trace` on real servers: what happens between a request and a
// running container is recorded where it happens, and shown.
package trace

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"kubelith.io/kubelith/integration/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// TestTrace: a server and an agent record, and the records are shown. Each step runs without the others too: -run
// TestTrace/way.
func TestTrace(t *testing.T) {
	spans := &collector{}
	c := harness.StartCluster(t, harness.ClusterOptions{Agents: 1, Server: recording(t, spans)})
	harness.Step(t, "node", func(t *testing.T) { testNode(t, c, spans) }) // the first: it counts what the agent has done
	harness.Step(t, "way", func(t *testing.T) { testWay(t, c) })
	c.Server.Kubectl(t, "cordon", c.Agents[0].NodeName()) // whose records come later
	harness.Step(t, "rights", func(t *testing.T) { testRights(t, c.Server) })
	harness.Step(t, "command", func(t *testing.T) { testCommand(t, c.Server) })
}

// plugin is an admission plugin that reviews pods, in the sandbox.
const plugin = "/opt/kubelith/examples/sidecar-by-label"

// recording are the options of a server that exports to a collector, with an admission plugin that adds a container to
// pods with a label.
func recording(t *testing.T, spans *collector) harness.Options {
	t.Helper()
	program := harness.BuildProgram(t, "../../plugins/examples/"+filepath.Base(plugin))
	return harness.Options{
		Args: []string{"--otlp-endpoint=http://" + collectorAddress},
		ConfigYAML: "apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\nplugins:\n- name: sidecar\n  kind: admission\n  path: " + plugin +
			"\n  config:\n    label: sidecar\n    container: {name: sidecar, image: " + harness.Container("x").Image + ", command: [sleep, \"1000\"]}\n",
		Prepare: func(s *harness.Server) error {
			content, err := os.ReadFile(program)
			if err != nil {
				return err
			}
			return errors.Join(os.MkdirAll(filepath.Dir(s.Path(plugin)), 0o755), os.WriteFile(s.Path(plugin), content, 0o755), spans.serve(t, s))
		},
	}
}
