package logging

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/sirupsen/logrus"
	"k8s.io/klog/v2"
)

// The verbosity of klog up to which lines are written at our levels debug and trace. klog's 8 and more print request
// bodies, Secrets included: never.
const (
	debugVerbosity = 4
	traceVerbosity = 6
)

// verbosity returns klog's -v for a level.
func verbosity(l logrus.Level) int {
	switch {
	case l >= logrus.TraceLevel:
		return traceVerbosity
	case l >= logrus.DebugLevel:
		return debugVerbosity
	}
	return 0
}

// setKlog makes log the backend of klog for the whole process.
func setKlog(log *logrus.Logger, l levels) error {
	var flags flag.FlagSet
	klog.InitFlags(&flags) // the only access to the verbosity of klog.V(n), which is not the sink's
	if err := flags.Set("v", strconv.Itoa(verbosity(l.most()))); err != nil {
		return fmt.Errorf("set klog's verbosity: %w", err)
	}
	s := sink{log: log, max: verbosity(l.most()), repeats: &repeats{}}
	klog.SetLoggerWithOptions(logr.New(s), klog.ContextualLogger(true), klog.WriteKlogBuffer(s.writeBuffer))
	return nil
}

// WithComponent returns a context in which upstream's log through klog.FromContext has this component. Lines logged
// without the context get the component of the code that logs, see origin.
func WithComponent(ctx context.Context, name string) context.Context {
	return klog.NewContext(ctx, klog.Background().WithValues(componentField, name))
}

// sink is klog's backend. A logger's name becomes the field "logger".
type sink struct {
	log       *logrus.Logger
	component string // empty: from the origin of each line
	max       int    // verbosity of the most verbose component
	kv        []any  // added by WithValues
	name      string // names, joined by dots

	repeats *repeats
}

var _ logr.LogSink = sink{}

func (s sink) Init(logr.RuntimeInfo) {}

// Enabled implements logr.LogSink. If the component is not known yet, the level of the line's origin decides once the
// line is logged. It allocates nothing: most of upstream's lines end here.
func (s sink) Enabled(v int) bool {
	if s.component == "" {
		return v <= s.max
	}
	return v <= verbosity(loggerOf(s.log, s.component).GetLevel())
}

func (s sink) Info(v int, msg string, kv ...any) {
	level := logrus.InfoLevel
	switch {
	case v > debugVerbosity:
		level = logrus.TraceLevel
	case v > 0:
		level = logrus.DebugLevel
	}
	if e := s.entry(); e.Logger.IsLevelEnabled(level) {
		s.with(e, kv).Log(level, msg)
	}
}

func (s sink) Error(err error, msg string, kv ...any) {
	if saidAlready(err) {
		return
	}
	e := s.with(s.entry(), kv)
	if err != nil {
		e = e.WithField("err", err)
	}
	e.Error(msg)
}

// entry returns an entry of the component that logs.
func (s sink) entry() *logrus.Entry {
	component := s.component
	if component == "" {
		if component, _ = origin(); component == "" {
			component = unknown
		}
	}
	e := Component(s.log, component)
	if s.name != "" {
		e = e.WithField("logger", s.name)
	}
	return e
}

func (s sink) WithValues(kv ...any) logr.LogSink {
	if len(kv)%2 == 1 {
		kv = append(slices.Clip(kv), "(no value)")
	}
	for i := 0; i < len(kv); i += 2 {
		if kv[i] == componentField && s.component == "" {
			s.component = fmt.Sprint(kv[i+1])
		}
	}
	s.kv = slices.Concat(s.kv, kv)
	return s
}

func (s sink) WithName(name string) logr.LogSink {
	if s.name != "" {
		name = s.name + "." + name
	}
	s.name = name
	return s
}

// with adds klog's keys and values. They become text only when a line is written: upstream passes objects of shared
// caches to lines that are never written, and some, such as resource.Quantity, cache their text when asked for it.
// logrus's WithFields is avoided: it refuses functions as values with its own error field.
func (s sink) with(e *logrus.Entry, kv []any) *logrus.Entry {
	if kv = slices.Concat(s.kv, kv); len(kv) == 0 {
		return e
	}
	fields := make(logrus.Fields, len(e.Data)+len(kv)/2)
	maps.Copy(fields, e.Data)
	for i := 0; i < len(kv); i += 2 {
		key := fmt.Sprint(kv[i])
		if key == componentField { // upstream's is its own identity; the entry has ours
			continue
		}
		if i+1 == len(kv) {
			fields[key] = "(no value)"
			break
		}
		fields[key] = plain(kv[i+1])
	}
	return &logrus.Entry{Logger: e.Logger, Data: fields}
}

// writeBuffer takes a line of klog's unstructured calls (Infof, Warningf), which has klog's header:
//
//	W0102 15:04:05.678901    1234 file.go:12] message
//
// Only the header distinguishes a warning from an info line.
func (s sink) writeBuffer(line []byte) {
	component, verbose := origin()
	if component == "" {
		component = unknown
	}
	level := logrus.InfoLevel
	msg := string(bytes.TrimRight(line, "\n"))
	if header, rest, ok := strings.Cut(msg, "] "); ok && len(header) > 0 && !strings.Contains(header, "\n") {
		switch header[0] {
		case 'W':
			level = logrus.WarnLevel
		case 'E', 'F':
			level = logrus.ErrorLevel
		default:
			// flannel writes several info lines for each node.
			if verbose || component == "network" {
				level = logrus.DebugLevel
			}
		}
		if msg, ok = s.repeats.shorten(file(header), rest, time.Now()); !ok {
			return
		}
	}
	Component(s.log, component).Log(level, msg)
}

// file returns the file name in a klog header.
func file(header string) string {
	name, _, _ := strings.Cut(header[strings.LastIndexByte(header, ' ')+1:], ":")
	return name
}
