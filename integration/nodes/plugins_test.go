package nodes

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/integration/harness"
)

// testPlugins: an operator sees the plugins of an agent there, and in the cluster as conditions of its Node.
func testPlugins(t *testing.T, c *harness.Cluster) {
	agent := c.Agents[0]
	harness.Eventually(t, 30*time.Second, "the agent's plugin local ready", func() error {
		res := agent.RunBinary(t, "plugin", "list", "-o=json")
		var all []struct{ Name, Kind, Phase string }
		if err := json.Unmarshal([]byte(res.Stdout), &all); err != nil {
			return fmt.Errorf("%w: %s%s", err, res.Stdout, res.Stderr)
		}
		if len(all) != 1 || all[0].Name != "local" || all[0].Kind != "storage" || all[0].Phase != "ready" {
			return fmt.Errorf("%+v", all)
		}
		return nil
	})
	harness.Eventually(t, 30*time.Second, "a condition of the agent's Node", func() error {
		for _, condition := range agent.Node(t).Status.Conditions {
			if condition.Type == "Plugin/local" && condition.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("%+v", agent.Node(t).Status.Conditions)
	})
}
