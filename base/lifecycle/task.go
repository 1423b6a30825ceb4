package lifecycle

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Task is a Component that does one thing, such as removing what an earlier run has left. It is ready at once, since
// nothing waits for it, and is done once it has succeeded. All fields are required.
type Task struct {
	Called   string   // its name
	Requires []string // what it needs: see Component.Needs
	Subject  string   // what it does, for the log: "delete the APIService x"
	Do       func(context.Context) error
	Retry    time.Duration // the pause after a failure
	Log      logrus.FieldLogger
}

var _ Component = (*Task)(nil)

// Name implements Component.
func (t *Task) Name() string { return t.Called }

// Needs implements Component.
func (t *Task) Needs() []string { return t.Requires }

// RestartPolicy implements Restarter.
func (*Task) RestartPolicy() Policy { return RestartBeside }

// Run implements Component.
func (t *Task) Run(ctx context.Context, ready func()) error {
	ready()
	// The error is that of ctx.
	_ = wait.PollUntilContextCancel(ctx, t.Retry, true, func(ctx context.Context) (bool, error) {
		err := t.Do(ctx)
		if err != nil && ctx.Err() == nil {
			t.Log.Warnf("cannot %s, retrying in %s: %v", t.Subject, t.Retry, err)
		}
		return err == nil, nil
	})
	<-ctx.Done()
	return nil
}
