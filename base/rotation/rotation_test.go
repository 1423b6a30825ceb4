package rotation

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	logtest "github.com/sirupsen/logrus/hooks/test"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
)

// turn is the rotation of a wheel: every server turns it as far as the State says, up to two.
type turn struct {
	To    int    `json:"to"`
	Wants string `json:"wants,omitempty"`
}

func (t turn) Active() bool   { return t.To == 1 || t.To == 2 }
func (t turn) String() string { return strings.Repeat("turn ", t.To) }

type report struct {
	Turned  int    `json:"turned"`
	Problem string `json:"problem,omitempty"`
}

// wheel is a server; stuck is why it cannot turn.
type wheel struct {
	*Server[turn, report]
	turned int
	stuck  error
}

func newWheel(t *testing.T, name string, cs *fake.Clientset, leads bool) *wheel {
	t.Helper()
	log, _ := logtest.NewNullLogger()
	servers := []string{"a", "b"}
	w := &wheel{}
	s, err := New(Options{NodeName: name, Servers: func() []string { return servers }, Leads: func() bool { return leads }, Client: &rest.Config{}, Log: log}, Kind[turn, report]{
		What: "the wheel", Command: "kubelith turn", ConfigMap: "wheel", Path: "/wheel",
		Arrange: func(_ context.Context, st turn) error {
			if w.stuck == nil {
				w.turned = max(w.turned, st.To)
			}
			return w.stuck
		},
		Report: func(_ context.Context, r Record[turn, report], problem error) report {
			if problem != nil {
				return report{r.Reports[name].Turned, problem.Error()}
			}
			return report{Turned: w.turned}
		},
		Next: func(_ context.Context, r Record[turn, report]) (turn, error) {
			next := r.State
			if len(Waiting(servers, r.Reports, func(r report) string {
				if r.Turned < next.To {
					return "it has not turned"
				}
				return ""
			})) == 0 {
				next.To++
			}
			return next, nil
		},
		Begin: func(body []byte) (func(Record[turn, report]) (turn, error), error) {
			if string(body) == "stop" {
				return nil, errors.New("it cannot stop")
			}
			return func(r Record[turn, report]) (turn, error) {
				next := r.State
				if !next.Active() {
					next = turn{To: 1}
				}
				next.Wants = string(body)
				return next, nil
			}, nil
		},
		View: func(ctx context.Context) (any, error) {
			r, err := w.Read(ctx)
			return r.State, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Client = cs
	w.Server = s
	return w
}

func (w *wheel) begin(body string) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	w.Handler(http.NotFoundHandler()).ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/wheel", strings.NewReader(body)))
	return answer
}

// step expects the State that follows.
func (w *wheel) step(t *testing.T, want int) {
	t.Helper()
	active, err := w.Step(t.Context())
	r, readErr := w.Read(t.Context())
	if err != nil || readErr != nil || r.State.To != want || active != r.State.Active() {
		t.Fatalf("%+v, active %v, %v, %v; want %d", r, active, err, readErr, want)
	}
}

// TestStep: a phase begins on the leading server when all have reported; one that is stuck reports why, and holds it
// up.
func TestStep(t *testing.T) {
	cs := fake.NewClientset()
	a, b := newWheel(t, "a", cs, true), newWheel(t, "b", cs, false)
	a.step(t, 0)
	if w := a.begin("fast"); w.Code != http.StatusOK || w.Body.String() != `{"to":1,"wants":"fast"}`+"\n" {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	a.step(t, 1) // b has not reported
	b.stuck = errors.New("it is rusty")
	if active, err := b.Step(t.Context()); !active || !errors.Is(err, b.stuck) {
		t.Errorf("%v, %v", active, err)
	}
	a.step(t, 1)
	if r, err := a.Read(t.Context()); err != nil || r.Reports["b"].Problem != "it is rusty" || r.Reports["a"] != (report{Turned: 1}) {
		t.Errorf("%+v, %v", r, err)
	}
	b.stuck = nil
	b.step(t, 1) // it does not lead
	a.step(t, 2)
	b.step(t, 2)
	a.step(t, 3)
	if a.turned != 2 || b.turned != 2 {
		t.Errorf("a has turned %d times, b %d times", a.turned, b.turned)
	}
}

// TestBegin: what another server writes meanwhile is kept, a rotation that is under way goes on as it is wanted now,
// and what is refused changes nothing.
func TestBegin(t *testing.T) {
	cs := fake.NewClientset()
	a, b := newWheel(t, "a", cs, true), newWheel(t, "b", cs, false)
	b.turned = 7
	b.step(t, 0) // the ConfigMap exists
	conflicts := 0
	cs.PrependReactor("update", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		conflicts++
		return conflicts == 1, nil, apierrors.NewConflict(corev1.Resource("configmaps"), "wheel", errors.New("a report came in between"))
	})
	a.begin("fast")
	a.begin("slow")
	a.begin("slow")
	if w := a.begin("stop"); w.Code == http.StatusOK || !strings.Contains(w.Body.String(), "it cannot stop") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if r, err := a.Read(t.Context()); err != nil || r.State != (turn{1, "slow"}) || r.Reports["b"].Turned != 7 || conflicts != 3 {
		t.Errorf("%+v, %v, %d requests", r, err, conflicts)
	}
}

// TestRead: what an earlier release stored is read; a report that cannot be read counts as none, and a State is an
// error that says what to do.
func TestRead(t *testing.T) {
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "wheel"},
		Data:       map[string]string{"state": `{"to":2}`, "server.a": `{"turned":1}`, "server.b": "?", "other": "{}"},
	}
	r, err := newWheel(t, "a", fake.NewClientset(cm), true).Read(t.Context())
	if err != nil || r.State.To != 2 || len(r.Reports) != 1 || r.Reports["a"].Turned != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	cm.Data["state"] = "?"
	if _, err := newWheel(t, "a", fake.NewClientset(cm), true).Read(t.Context()); err == nil || !strings.HasSuffix(err.Error(), "delete it, and run kubelith turn") {
		t.Errorf("error %v", err)
	}
}
