package approver

import (
	"testing"

	"kubelith.io/kubelith/base/names"
)

// TestRoles: the Nodes of servers, and no others, have the label of the control plane; what has it is not written.
func TestRoles(t *testing.T) {
	const label = "node-role.kubernetes.io/control-plane"
	labelled := node("server-1")
	labelled.Labels = map[string]string{label: "true"}
	for name, tc := range map[string]struct {
		writes  int
		objects []string
	}{
		"a server":    {1, []string{"server-1"}},
		"an agent":    {0, []string{"agent"}},
		"both":        {1, []string{"agent", "server-1"}},
		"nobody":      {0, nil},
		"it has that": {0, []string{"labelled"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			for _, o := range tc.objects {
				n := node(o)
				if o == "labelled" {
					n = labelled
				}
				if c = newCluster(t, n); c.lacksRole(n) != (o == "server-1") {
					t.Errorf("%s lacks its role: %v", o, c.lacksRole(n))
				}
			}
			c.labelServers(t.Context())
			writes := 0
			for _, a := range c.client.Actions() {
				if a.GetVerb() == "patch" {
					writes++
				}
			}
			if writes != tc.writes {
				t.Errorf("%d writes, want %d", writes, tc.writes)
			}
		})
	}
}

// TestOtherServer: a server is known by its Node as well, on whichever server this runs.
func TestOtherServer(t *testing.T) {
	other, agent := node("server-2"), node("agent")
	other.Labels = map[string]string{names.RoleLabel: names.RoleServer}
	agent.Labels = map[string]string{names.RoleLabel: "agent"}
	c := newCluster(t, other, agent)
	for name, want := range map[string]bool{"server-2": true, "agent": false} {
		if n, err := c.nodes.Get(name); err != nil || c.isServer(name, n) != want || c.lacksRole(n) != want {
			t.Errorf("%s: %v, %v", name, n, err)
		}
	}
	if c.isServer("nobody", nil) {
		t.Error("a name without a Node is a server's")
	}
}
