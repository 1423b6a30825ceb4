package carotation

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodeutil "k8s.io/kubernetes/pkg/util/node"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/base/rotation"
)

// done is the phase of a rotation that has ended.
const done pki.Phase = "done"

// State is where a rotation is.
type State struct {
	pki.Rotation
	Started  time.Time `json:"started,omitzero"`
	Finished time.Time `json:"finished,omitzero"`
	// Since is when the phase began.
	Since time.Time `json:"since,omitzero"`
	// Grace is how many seconds the first phase lasts at least.
	Grace int64 `json:"grace,omitempty"`
	// Force leaves agents behind that are not Ready.
	Force bool `json:"force,omitempty"`
}

// Active implements rotation.State.
func (st State) Active() bool { return st.Phase != "" && st.Phase != done }

// String implements rotation.State.
func (st State) String() string {
	return fmt.Sprintf("rotation %s of the CAs: %s", st.ID, st.described())
}

// described describes for an administrator what the machines are doing.
func (st State) described() string {
	switch st.Phase {
	case pki.Trust:
		return "every machine trusts the new CAs, too"
	case pki.Sign:
		return "every machine gets certificates of the new CAs"
	case pki.Serve:
		return "the API serves with a certificate of the new CA"
	case pki.Drop:
		return "every machine forgets the former CAs"
	}
	return "done"
}

// Report is what a server has done.
type Report struct {
	pki.Rotation
	Problem string `json:"problem,omitempty"` // why it does not do what the phase requires
}

// lacks returns what a server has not done yet in the phase, else nothing.
func (st State) lacks(r Report) string {
	switch {
	case r.Problem != "":
		return r.Problem
	case r.ID != st.ID:
		return "it has not begun"
	case !r.Phase.Reached(st.Phase):
		return "it is in phase " + string(r.Phase)
	}
	return ""
}

// nodeLacks is the same for a Node, whose agent reports in an annotation. Other nodes have nothing to do.
func (st State) nodeLacks(n *corev1.Node) string {
	if n.Labels[names.RoleLabel] != names.RoleAgent {
		return ""
	}
	r := pki.ParseReport(n.Annotations[names.CAAnnotation])
	switch {
	case r.ID == st.ID && r.Phase.Reached(st.Phase):
		return ""
	case nodeutil.IsNodeReady(n) && r.ID != st.ID:
		return "it has not begun"
	case nodeutil.IsNodeReady(n):
		return "it is in phase " + string(r.Phase)
	case st.Force:
		return ""
	}
	return "it is not Ready"
}

// left is how long the phase lasts at least.
func (st State) left(now time.Time) time.Duration {
	atLeast := time.Duration(0)
	switch st.Phase {
	case pki.Trust:
		atLeast = time.Duration(st.Grace) * time.Second
	case pki.Sign:
		atLeast = settle
	}
	return max(0, st.Since.Add(atLeast).Sub(now))
}

// waiting names the machines that hold up the phase.
func (st State) waiting(servers []string, reports map[string]Report, nodes []corev1.Node, now time.Time) string {
	all := rotation.Waiting(servers, reports, st.lacks)
	for i := range nodes {
		if why := st.nodeLacks(&nodes[i]); why != "" {
			all = append(all, fmt.Sprintf("agent %s: %s", nodes[i].Name, why))
		}
	}
	if left := st.left(now).Round(time.Second); len(all) == 0 && left > 0 {
		what := "connections to kubelets that began with the former certificates"
		if st.Phase == pki.Trust {
			what = "pods to read the new CA"
		}
		all = append(all, fmt.Sprintf("%s, until %s", what, now.Add(left).UTC().Format(time.RFC3339)))
	}
	return strings.Join(all, "; ")
}

// next returns the state that follows, or what it waits for.
func (st State) next(servers []string, reports map[string]Report, nodes []corev1.Node, now time.Time) (next State, waiting string) {
	if waiting = st.waiting(servers, reports, nodes, now); waiting != "" {
		return st, waiting
	}
	next = st
	next.Since = now.UTC()
	switch st.Phase {
	case pki.Trust:
		next.Phase = pki.Sign
	case pki.Sign:
		next.Phase = pki.Serve
	case pki.Serve:
		next.Phase = pki.Drop
	case pki.Drop:
		next.Phase, next.Finished = done, now.UTC().Truncate(time.Second)
	}
	return next, ""
}
