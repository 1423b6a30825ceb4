package carotation

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
)

var now = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func report(phase pki.Phase) Report { return Report{Rotation: pki.Rotation{ID: "x", Phase: phase}} }

func node(name, role string, ready corev1.ConditionStatus, report string) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{names.RoleLabel: role}, Annotations: map[string]string{names.CAAnnotation: report}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}},
	}
}

// TestNext: a phase begins when each server and each agent has done the one before, and time enough has passed.
func TestNext(t *testing.T) {
	st := func(phase pki.Phase, since time.Duration) State {
		return State{Rotation: pki.Rotation{ID: "x", Phase: phase}, Since: now.Add(-since), Grace: 60}
	}
	agents := func(report string) []corev1.Node {
		return []corev1.Node{
			node("a", names.RoleServer, corev1.ConditionTrue, ""), node("c", names.RoleAgent, corev1.ConditionTrue, report), {ObjectMeta: metav1.ObjectMeta{Name: "simulated"}},
		}
	}
	away := []corev1.Node{node("c", names.RoleAgent, corev1.ConditionUnknown, "x trust")}
	forced := st(pki.Sign, time.Hour)
	forced.Force = true
	for name, tc := range map[string]struct {
		st      State
		servers []string
		reports map[string]Report
		nodes   []corev1.Node
		want    pki.Phase
		waiting string
	}{
		"all trust":                {st(pki.Trust, time.Hour), []string{"a", "b"}, map[string]Report{"a": report(pki.Trust), "b": report(pki.Sign)}, agents("x trust"), pki.Sign, ""},
		"too early":                {st(pki.Trust, 59*time.Second), []string{"a"}, map[string]Report{"a": report(pki.Trust)}, agents("x trust"), "", "pods to read the new CA, until 2030-01-01T00:00:01Z"},
		"a server has not begun":   {st(pki.Trust, time.Hour), []string{"a", "b"}, map[string]Report{"a": report(pki.Trust)}, nil, "", "server b: it has not begun"},
		"a server is behind":       {st(pki.Sign, time.Hour), []string{"a"}, map[string]Report{"a": report(pki.Trust)}, nil, "", "server a: it is in phase trust"},
		"a server cannot":          {st(pki.Sign, time.Hour), []string{"a"}, map[string]Report{"a": {Rotation: report(pki.Sign).Rotation, Problem: "disk full"}}, nil, "", "server a: disk full"},
		"a report of another one":  {st(pki.Sign, time.Hour), []string{"a"}, map[string]Report{"a": {Rotation: pki.Rotation{ID: "y", Phase: pki.Drop}}}, nil, "", "server a: it has not begun"},
		"a server joins":           {st(pki.Sign, time.Hour), []string{"a", ""}, map[string]Report{"a": report(pki.Sign)}, nil, "", "a joining server"},
		"an agent has not begun":   {st(pki.Trust, time.Hour), []string{"a"}, map[string]Report{"a": report(pki.Trust)}, agents(""), "", "agent c: it has not begun"},
		"an agent is behind":       {st(pki.Sign, time.Hour), []string{"a"}, map[string]Report{"a": report(pki.Sign)}, agents("x trust"), "", "agent c: it is in phase trust"},
		"an agent lies":            {st(pki.Sign, time.Hour), []string{"a"}, map[string]Report{"a": report(pki.Sign)}, agents("x whatever"), "", "agent c: it has not begun"},
		"an agent is away":         {st(pki.Sign, time.Hour), []string{"a"}, map[string]Report{"a": report(pki.Sign)}, away, "", "agent c: it is not Ready"},
		"left behind":              {forced, []string{"a"}, map[string]Report{"a": report(pki.Sign)}, away, pki.Serve, ""},
		"force is for absent ones": {forced, []string{"a"}, map[string]Report{"a": report(pki.Sign)}, agents("x trust"), "", "agent c: it is in phase trust"},
		"connections":              {st(pki.Sign, time.Second), []string{"a"}, map[string]Report{"a": report(pki.Sign)}, agents("x sign"), "", "connections to kubelets"},
		"signed":                   {st(pki.Sign, time.Minute), []string{"a"}, map[string]Report{"a": report(pki.Sign)}, agents("x sign"), pki.Serve, ""},
		"served":                   {st(pki.Serve, 0), []string{"a"}, map[string]Report{"a": report(pki.Serve)}, agents("x serve"), pki.Drop, ""},
		"dropped":                  {st(pki.Drop, 0), []string{"a"}, map[string]Report{"a": report(pki.Drop)}, agents("x drop"), done, ""},
		"without servers":          {st(pki.Drop, 0), nil, nil, nil, "", "the servers are not known"},
	} {
		next, waiting := tc.st.next(tc.servers, tc.reports, tc.nodes, now)
		if tc.want == "" {
			if !strings.Contains(waiting, tc.waiting) || waiting == "" || next != tc.st {
				t.Errorf("%s: %s, waiting for %q", name, next.Phase, waiting)
			}
			continue
		}
		if next.Phase != tc.want || waiting != "" || !next.Since.Equal(now) || next.Active() == next.Finished.Equal(now) {
			t.Errorf("%s: %+v, waiting for %q", name, next, waiting)
		}
	}
}

// TestStored: a rotation that began with an earlier release goes on.
func TestStored(t *testing.T) {
	const stored, reported = `{"id":"x","phase":"sign","started":"2030-01-01T00:00:00Z","since":"2030-01-01T00:00:00Z","grace":60,"force":true}`, `{"id":"x","phase":"trust","problem":"disk full"}`
	var st State
	var r Report
	if err := errors.Join(json.Unmarshal([]byte(stored), &st), json.Unmarshal([]byte(reported), &r)); err != nil {
		t.Fatal(err)
	}
	if want := (State{Rotation: pki.Rotation{ID: "x", Phase: pki.Sign}, Started: now, Since: now, Grace: 60, Force: true}); st != want {
		t.Errorf("%+v, want %+v", st, want)
	}
	if want := (Report{Rotation: report(pki.Trust).Rotation, Problem: "disk full"}); r != want {
		t.Errorf("%+v, want %+v", r, want)
	}
	for want, v := range map[string]any{stored: st, reported: r} {
		if text, err := json.Marshal(v); err != nil || string(text) != want {
			t.Errorf("%s, %v, want %s", text, err, want)
		}
	}
}
