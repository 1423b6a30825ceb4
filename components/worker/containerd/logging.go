package containerd

import (
	"flag"
	"runtime"
	"strings"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	"k8s.io/klog/v2"
)

// containerdLogger returns an entry that writes where base writes, with two differences: it passes on only warnings
// unless debug is set, and a Fatal, with which parts of containerd end their process, is sent to the channel instead
// and ends the goroutine that logged it.
func containerdLogger(base logrus.FieldLogger, debug bool, fatal chan<- string) *log.Entry {
	entry := base.WithFields(nil)
	logger := &logrus.Logger{
		Out:          entry.Logger.Out,
		Hooks:        entry.Logger.Hooks,
		Formatter:    withoutNoise{entry.Logger.Formatter},
		ReportCaller: entry.Logger.ReportCaller,
		Level:        logrus.WarnLevel,
	}
	if debug {
		logger.Level = logrus.DebugLevel
	}
	logger.ExitFunc = func(int) {
		select {
		case fatal <- "containerd asked to exit, see the log line above":
		default: // it has given up already
		}
		runtime.Goexit()
	}
	return &logrus.Entry{Logger: logger, Data: entry.Data}
}

// noise are warnings that containerd logs on every start without an error: a file system without fs-verity, and a CNI
// configuration that comes a moment later.
var noise = [...]string{"failed check for fsverity support", "failed to load cni during init"}

// withoutNoise formats everything but the noise.
type withoutNoise struct{ logrus.Formatter }

func (f withoutNoise) Format(e *logrus.Entry) ([]byte, error) {
	for _, n := range noise {
		if strings.HasPrefix(e.Message, n) {
			return nil, nil
		}
	}
	return f.Formatter.Format(e)
}

// keepKlogFlags reads klog's settings and returns a function that restores them: containerd's CRI service sets klog's
// verbosity from its own log level, which in this process applies to all components.
func keepKlogFlags() (restore func()) {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	before := map[string]string{}
	for _, name := range []string{"v", "logtostderr", "stderrthreshold", "legacy_stderr_threshold_behavior"} {
		if f := flags.Lookup(name); f != nil {
			before[name] = f.Value.String()
		}
	}
	return func() {
		for name, value := range before {
			// The flag itself printed the value.
			if err := flags.Set(name, value); err != nil {
				klog.ErrorS(err, "restore a klog flag", "flag", name)
			}
		}
	}
}
