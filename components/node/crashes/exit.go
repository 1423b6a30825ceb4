package crashes

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"

	"github.com/sirupsen/logrus"
	"k8s.io/klog/v2"
)

// UpstreamExit is the reason for a stop that an upstream component requested: the error that it logged.
type UpstreamExit string

func (e UpstreamExit) Error() string {
	return "an upstream component asked to exit: " + string(e) + ": see the log lines before this"
}

// EndInOrder turns the exit that upstream components request from klog into the end of the component, if it can be
// restarted, or into an ordered stop by end: etcd and containerd are in the same process. The components write the
// reason to log just before.
func EndInOrder(log *logrus.Logger, end context.CancelCauseFunc, p *Panics) {
	why := &lastError{}
	log.AddHook(why)
	klog.OsExit = func(int) {
		if exit := UpstreamExit(why.text()); !p.fail(p.component(), exit) {
			end(exit)
		}
		runtime.Goexit() // as os.Exit, it does not return; the component's Run ends, so that the stop need not wait for it
	}
}

// lastError remembers the last error of the log in one line.
type lastError struct{ last atomic.Value }

// Levels implements logrus.Hook.
func (*lastError) Levels() []logrus.Level {
	return []logrus.Level{logrus.PanicLevel, logrus.FatalLevel, logrus.ErrorLevel}
}

// Fire implements logrus.Hook.
func (l *lastError) Fire(e *logrus.Entry) error {
	text, _, _ := strings.Cut(strings.TrimSpace(e.Message), "\n") // a stack may follow
	for _, key := range []string{logrus.ErrorKey, "err"} {        // klog's key is the second
		if err, ok := e.Data[key]; ok {
			text += ": " + strings.ReplaceAll(fmt.Sprint(err), "\n", " ")
		}
	}
	if component, ok := e.Data["component"]; ok {
		text = fmt.Sprintf("%v: %s", component, text)
	}
	l.last.Store(text)
	return nil
}

func (l *lastError) text() string {
	text, _ := l.last.Load().(string)
	return text
}
