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

// The verbosity of klog up to which lines are written at our levels debug and trace. klog's 8 and more
// print request bodies, Secrets included: never.
const (
	debugVerbosity = 4
	traceVerbosity = 6
)

// verbosity is klog's -v that belongs to a level.
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
func setKlog(log *logrus.Logger, level logrus.Level) error {
	var flags flag.FlagSet
	klog.InitFlags(&flags) // the only door to the verbosity of klog.V(n), which is not the sink's
	if err := flags.Set("v", strconv.Itoa(verbosity(level))); err != nil {
		return fmt.Errorf("set klog's verbosity: %w", err)
	}
	s := sink{entry: Component(log, "kubernetes"), max: verbosity(level), repeats: &repeats{}}
	klog.SetLoggerWithOptions(logr.New(s), klog.ContextualLogger(true), klog.WriteKlogBuffer(s.writeBuffer))
	return nil
}

// WithComponent returns a context in which what upstream logs through klog.FromContext has this component. What it
// logs past the context has component=kubernetes.
func WithComponent(ctx context.Context, name string) context.Context {
	return klog.NewContext(ctx, klog.Background().WithValues(componentField, name))
}

// sink is klog's backend. A logger's name becomes the component when none is set, else the field "logger".
type sink struct {
	entry *logrus.Entry
	kv    []any  // that WithValues added
	max   int    // verbosity
	named bool   // the component was set by a value or a name
	name  string // further names, joined by dots

	repeats *repeats
}

var _ logr.LogSink = sink{}

func (s sink) Init(logr.RuntimeInfo) {}

func (s sink) Enabled(v int) bool { return v <= s.max }

func (s sink) Info(v int, msg string, kv ...any) {
	level := logrus.InfoLevel
	switch {
	case v > debugVerbosity:
		level = logrus.TraceLevel
	case v > 0:
		level = logrus.DebugLevel
	}
	s.with(kv).Log(level, msg)
}

func (s sink) Error(err error, msg string, kv ...any) {
	if saidAlready(err) {
		return
	}
	e := s.with(kv)
	if err != nil {
		e = e.WithField("err", err)
	}
	e.Error(msg)
}

func (s sink) WithValues(kv ...any) logr.LogSink {
	for i := 0; i+1 < len(kv); i += 2 {
		s.named = s.named || kv[i] == componentField
	}
	if len(kv)%2 == 1 {
		kv = append(slices.Clip(kv), "(no value)")
	}
	s.kv = slices.Concat(s.kv, kv)
	return s
}

func (s sink) WithName(name string) logr.LogSink {
	switch {
	case !s.named:
		s.named = true
		s.entry = s.entry.WithField(componentField, name)
	case s.name == "":
		s.name = name
		s.entry = s.entry.WithField("logger", s.name)
	default:
		s.name += "." + name
		s.entry = s.entry.WithField("logger", s.name)
	}
	return s
}

// with adds klog's keys and values. They become text when a line is written and not before: upstream hands over objects
// of shared caches for lines that nobody wants, and some, as resource.Quantity, keep their text once asked for it. logrus's WithFields is avoided: it refuses functions as values with an error field of its own.
func (s sink) with(kv []any) *logrus.Entry {
	if kv = slices.Concat(s.kv, kv); len(kv) == 0 {
		return s.entry
	}
	fields := make(logrus.Fields, len(s.entry.Data)+len(kv)/2)
	maps.Copy(fields, s.entry.Data)
	for i := 0; i < len(kv); i += 2 {
		key := fmt.Sprint(kv[i])
		if i+1 == len(kv) {
			fields[key] = "(no value)"
			break
		}
		fields[key] = plain(kv[i+1])
	}
	return &logrus.Entry{Logger: s.entry.Logger, Data: fields}
}

// writeBuffer takes a line of klog's unstructured calls (Infof, Warningf), which comes with the header of klog:
//
//	W0102 15:04:05.678901    1234 file.go:12] message
//
// Only this way a warning is told from an information.
func (s sink) writeBuffer(line []byte) {
	level, entry := logrus.InfoLevel, s.entry
	msg := string(bytes.TrimRight(line, "\n"))
	if header, rest, ok := strings.Cut(msg, "] "); ok && len(header) > 0 && !strings.Contains(header, "\n") {
		flannel := ofFlannel(header)
		if flannel {
			entry = entry.WithField(componentField, "network")
		}
		switch header[0] {
		case 'W':
			level = logrus.WarnLevel
		case 'E', 'F':
			level = logrus.ErrorLevel
		default:
			if flannel {
				level = logrus.DebugLevel
			}
		}
		if msg, ok = s.repeats.shorten(file(header), rest, time.Now()); !ok {
			return
		}
	}
	entry.Log(level, msg)
}

// file is the name in a header of klog.
func file(header string) string {
	name, _, _ := strings.Cut(header[strings.LastIndexByte(header, ' ')+1:], ":")
	return name
}

// ofFlannel tells whether the line is from a file of flannel's backends, which say nothing else of who they are, and
// write several lines of information for each node.
func ofFlannel(header string) bool {
	switch file(header) {
	case "vxlan.go", "vxlan_network.go", "device.go", "route_network.go", "subnet.go", "lease.go", "iface.go", "retry.go":
		return true
	}
	return false
}
