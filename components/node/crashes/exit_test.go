package crashes

import (
	"context"
	"io"
	"testing"

	"github.com/sirupsen/logrus"
	"k8s.io/klog/v2"
)

// What an upstream component logs before it exits is why the server ends.
func TestEndInOrder(t *testing.T) {
	exit := klog.OsExit
	defer func() { klog.OsExit = exit }()
	log := logrus.New()
	log.SetOutput(io.Discard)
	ctx, end := context.WithCancelCause(t.Context())
	EndInOrder(log, end, &Panics{fail: func(string, error) bool { return false }})
	log.WithField("component", "kubelet").WithField("err", "no such file").Error("Failed to read\nstack")
	log.Warn("later")
	ended := make(chan bool)
	go func() {
		defer close(ended)
		klog.FlushAndExit(0, 1)
		ended <- true
	}()
	if <-ended {
		t.Error("the exit returned")
	}
	want := "an upstream component asked to exit: kubelet: Failed to read: no such file: see the log lines before this"
	if err := context.Cause(ctx); err == nil || err.Error() != want {
		t.Errorf("cause %v, want %s", err, want)
	}
}
