package nodes

import (
	"testing"

	"kubelith.io/kubelith/integration/harness"
)

// TestAgent takes one cluster with an agent through what needs no other settings: plugins and volumes of agents, an
// agent whose credentials an attacker has, and the deletion of its Node.
func TestAgent(t *testing.T) {
	t.Parallel()
	c := harness.StartCluster(t, harness.ClusterOptions{
		Agents: 1,
		// By default a node that is gone is Unknown after 50 s, and its addresses leave the Services.
		Server: harness.Options{Args: []string{"--controller-manager-arg=node-monitor-grace-period=10m"}},
	})
	ns := c.Namespace(t) // of the volumes
	// These two want the plugin that comes with Kubelith, and no other.
	harness.Step(t, "plugins", func(t *testing.T) { testPlugins(t, c) })
	harness.Step(t, "volumes", func(t *testing.T) { testVolumes(t, c, ns) })
	harness.Step(t, "FUSE volume", func(t *testing.T) { testFUSEVolume(t, c) })
	harness.Step(t, "compromised", func(t *testing.T) { testCompromised(t, c) })
	c.Agents[0].Restart(t)
	harness.Step(t, "volumes after a restart", func(t *testing.T) { testVolumesAfterRestart(t, c, ns) })
	harness.Step(t, "space of a deleted node", func(t *testing.T) { testSpaceOfDeleted(t, c) })
}
