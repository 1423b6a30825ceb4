package initializers

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"kubelith.io/kubelith/base/lifecycle"
)

// TestStarted: the start waits for the configurations for as long as they take, and logs that; it ends with the server.
func TestStarted(t *testing.T) {
	const slow = 3*startPatience + time.Second
	for name, end := range map[string]func(i *Initializers, stop func()){
		"read": func(i *Initializers, _ func()) { i.configurations.setReady() },
		"stop": func(_ *Initializers, stop func()) { stop() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log, logged := logtest.NewNullLogger()
				i := New(log, new(lifecycle.Goroutines))
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				time.AfterFunc(slow, func() { end(i, stop) })
				began := time.Now()
				i.started(ctx)
				if took := time.Since(began); took != slow {
					t.Errorf("the start took %s, want %s", took, slow)
				}
				if all := logged.AllEntries(); len(all) != 3 || all[0].Level != logrus.WarnLevel {
					t.Errorf("%d lines are logged, want 3 warnings", len(all))
				}
			})
		})
	}
}
