// Package logging makes logrus the one sink of everything that the process logs. Each line has a component: adapters
// route klog (Kubernetes), zap (etcd), containerd's logrus and Go's log package to it.
//
// Setup is called once, before any component is built, because those libraries keep their loggers in variables of the
// process. Writer keeps an unread log from stopping the process; File limits its size.
package logging

import (
	"bytes"
	"fmt"
	"io"
	stdlog "log"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"
	logsapi "k8s.io/component-base/logs/api/v1"

	"kubelith.io/kubelith/base/logging/etcdclient"
)

// componentField is the field that names the part of the process that a line is from.
const componentField = "component"

// Options configure what is written, how and where.
type Options struct {
	Format string // text or json
	Level  string // error, warn, info, debug or trace; of single components as in "info,kubelet=debug"
	Out    io.Writer
}

// Setup creates the logger of the process and routes every other logging library to it. It changes state of the whole
// process: call it once.
func Setup(opts Options) (*logrus.Logger, error) {
	levels, err := parseLevels(opts.Level)
	if err != nil {
		return nil, err
	}
	format, err := formatter(opts.Format)
	if err != nil {
		return nil, err
	}
	out := &lines{w: opts.Out}

	f := entryFormatter{Formatter: format, component: "kubelith", ranks: &ranks{}, floods: &floods{}}

	log := logrus.New()
	configure(log, out, levels.others, f)
	levels.split(log, f)
	// containerd logs to logrus's own standard logger and cannot be given another.
	f.component = "containerd"
	configure(logrus.StandardLogger(), out, levels.level("containerd"), f)
	if err := setKlog(log, levels); err != nil {
		return nil, err
	}
	etcdclient.LogTo(Component(log, "apiserver"))
	stdlog.SetFlags(0)
	stdlog.SetOutput(stdWriter{log})
	// An upstream component that still applies its own logging options changes nothing, instead of failing.
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged
	return log, nil
}

func formatter(name string) (logrus.Formatter, error) {
	switch name {
	case "text":
		return text{}, nil
	case "json":
		return json{}, nil
	}
	return nil, fmt.Errorf("log format %q is not known: use text or json", name)
}

func configure(l *logrus.Logger, out io.Writer, level logrus.Level, format logrus.Formatter) {
	l.SetOutput(out)
	l.SetLevel(level)
	l.SetFormatter(format)
}

// lines lets several loggers share one output without mixing their lines: logrus writes each line in one call.
type lines struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lines) Write(p []byte) (int, error) {
	if len(p) == 0 { // a dropped entry
		return 0, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// stdWriter logs the output of Go's log package, one message per call. CoreDNS is the one library here that puts a
// level before its messages: "[WARNING] plugin/forward: ...".
type stdWriter struct{ log *logrus.Logger }

func (w stdWriter) Write(p []byte) (int, error) {
	message := string(bytes.TrimRight(p, "\n"))
	if word, rest, ok := strings.Cut(message, "] "); ok && strings.HasPrefix(word, "[") {
		if level, err := logrus.ParseLevel(word[1:]); err == nil {
			// Go's "fatal" ends the process after the line is written; logrus's would do so before.
			Component(w.log, "dns").Log(max(level, logrus.ErrorLevel), rest)
			return len(p), nil
		}
	}
	Component(w.log, "kubelith").Info(message)
	return len(p), nil
}
