package approver

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
				if c = newCluster(t, n); (len(c.outdated(n)) > 0) != (o == "server-1") {
					t.Errorf("%s lacks its role: %v", o, c.outdated(n))
				}
			}
			c.label(t.Context())
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
		if n, err := c.nodes.Get(name); err != nil || c.isServer(name, n) != want || (len(c.outdated(n)) > 0) != want {
			t.Errorf("%s: %v, %v", name, n, err)
		}
	}
	if c.isServer("nobody", nil) {
		t.Error("a name without a Node is a server's")
	}
}

// TestRuntimes: a Node has the labels of the runtimes that its kubelet reports, and no others of them.
func TestRuntimes(t *testing.T) {
	const crun, youki = "kubelith.io/runtime-crun", "kubelith.io/runtime-youki"
	for name, tc := range map[string]struct {
		reported []string
		has      map[string]string
		want     map[string]string // afterwards
	}{
		"new":         {[]string{"", "runc", "crun"}, nil, map[string]string{crun: "true"}},
		"all":         {[]string{"youki", "crun"}, map[string]string{"a": "b"}, map[string]string{"a": "b", crun: "true", youki: "true"}},
		"unchanged":   {[]string{"crun"}, map[string]string{crun: "true"}, map[string]string{crun: "true"}},
		"wrong":       {[]string{"crun"}, map[string]string{crun: "false"}, map[string]string{crun: "true"}},
		"uninstalled": {[]string{"", "runc"}, map[string]string{crun: "true", "a": "b"}, map[string]string{"a": "b"}},
		"unknown":     {[]string{"runsc"}, nil, nil},
		"not yet":     {nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := node("agent")
			n.Labels = tc.has
			for _, handler := range tc.reported {
				n.Status.RuntimeHandlers = append(n.Status.RuntimeHandlers, corev1.NodeRuntimeHandler{Name: handler})
			}
			c := newCluster(t, n)
			c.label(t.Context())
			after, err := c.client.CoreV1().Nodes().Get(t.Context(), "agent", metav1.GetOptions{})
			if err != nil || !maps.Equal(after.Labels, tc.want) {
				t.Errorf("labels %v, %v, want %v", after.Labels, err, tc.want)
			}
			if len(c.outdated(after)) > 0 {
				t.Errorf("still to do: %v", c.outdated(after))
			}
		})
	}
}
