package lifecycle

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"
)

// TestTask: it is tried until it succeeds, and not again; the component stays until it is asked to end.
func TestTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, lines := logtest.NewNullLogger()
		tries, isReady := 0, false
		task := &Task{Called: "cleaner", Subject: "delete it", Retry: time.Second, Log: log, Do: func(context.Context) error {
			tries++
			if tries < 3 {
				return errors.New("refused")
			}
			return nil
		}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if err := task.Run(ctx, func() { isReady = tries == 0 }); err != nil || time.Since(began) != time.Minute {
			t.Errorf("ended after %s: %v", time.Since(began), err)
		}
		if !isReady || tries != 3 {
			t.Errorf("ready at once: %v; %d tries", isReady, tries)
		}
		if all := lines.AllEntries(); len(all) != 2 || all[0].Message != "cannot delete it, retrying in 1s: refused" {
			t.Errorf("logged: %v", all)
		}
	})
}
