package process

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/sirupsen/logrus"

	"kubelith.io/kubelith/base/oneline"
)

const (
	maxLine        = 4096 // bytes of a line; the rest is dropped
	linesPerSecond = 200  // of one process; more are counted and dropped
)

// output writes what a plugin prints to the log, and remembers what may explain its end.
type output struct {
	log *logrus.Entry // with plugin=

	mu      sync.Mutex
	last    string    // line
	fatal   string    // first line of the Go runtime's report about a panic or fatal error
	second  time.Time // start of the second that lines counts
	lines   int
	dropped int // lines that logDropped has not reported
}

// read logs lines until r ends.
func (o *output) read(r io.Reader) {
	lines := bufio.NewReaderSize(r, maxLine)
	rest := false // the buffer has the rest of a line that was too long
	for {
		line, more, err := lines.ReadLine()
		if err != nil {
			o.logDropped()
			return
		}
		if !rest {
			o.line(string(line))
		}
		rest = more
	}
}

// line logs one line.
func (o *output) line(text string) {
	text = strings.TrimRight(text, "\r\n")
	if text == "" {
		return
	}
	level, msg, fields, ok := parseHclog(text)
	if !ok {
		level, msg = logrus.InfoLevel, oneline.Mask(text)
	}
	if o.admit(level, msg) {
		o.log.WithFields(fields).Log(level, msg)
	}
}

// admit remembers the line, unless its level is debug or trace, and reports whether to log it.
func (o *output) admit(level logrus.Level, text string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if level <= logrus.InfoLevel {
		o.last = text
	}
	if o.fatal == "" && (strings.HasPrefix(text, "panic: ") || strings.HasPrefix(text, "fatal error: ")) {
		o.fatal = text
	}
	if now := time.Now(); now.Sub(o.second) >= time.Second {
		o.second, o.lines = now, 0
	}
	o.lines++
	if o.lines <= linesPerSecond {
		return true
	}
	if o.dropped++; o.dropped == 1 {
		time.AfterFunc(time.Second, o.logDropped)
	}
	return false
}

func (o *output) logDropped() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dropped > 0 {
		o.log.Warnf("%d lines of its output dropped: more than %d in a second", o.dropped, linesPerSecond)
		o.dropped = 0
	}
}

// lastLine returns the line that best explains the end of the process; empty if it printed nothing.
func (o *output) lastLine() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fatal != "" {
		return o.fatal
	}
	return o.last
}

// writer takes output in pieces: go-plugin carries the standard streams over gRPC after the handshake.
func (o *output) writer() io.Writer { return &lineWriter{out: o} }

type lineWriter struct {
	out  *output
	line []byte
}

func (w *lineWriter) Write(p []byte) (int, error) {
	written := len(p)
	for {
		piece, rest, found := bytes.Cut(p, []byte{'\n'})
		w.line = append(w.line, piece[:min(len(piece), maxLine-len(w.line))]...)
		if !found {
			return written, nil
		}
		w.out.line(string(w.line))
		w.line, p = w.line[:0], rest
	}
}

// parseHclog parses a line of hclog's JSON, which plugins with the SDK write. It returns printable text only: JSON can
// escape characters that the line itself does not contain.
func parseHclog(text string) (level logrus.Level, msg string, fields logrus.Fields, ok bool) {
	if !strings.HasPrefix(text, "{") {
		return 0, "", nil, false
	}
	if json.Unmarshal([]byte(text), &fields) != nil {
		return 0, "", nil, false
	}
	msg, ok = fields["@message"].(string)
	if !ok {
		return 0, "", nil, false
	}
	name, _ := fields["@level"].(string)
	for _, key := range []string{"@message", "@level", "@timestamp", "@caller", "component", "plugin"} {
		delete(fields, key)
	}
	if module, ok := fields["@module"]; ok {
		delete(fields, "@module")
		if module != "" {
			fields["logger"] = module
		}
	}
	switch hclog.LevelFromString(name) {
	case hclog.Trace:
		level = logrus.TraceLevel
	case hclog.Debug:
		level = logrus.DebugLevel
	case hclog.Warn:
		level = logrus.WarnLevel
	case hclog.Error:
		level = logrus.ErrorLevel
	default:
		level = logrus.InfoLevel
	}
	return level, oneline.Mask(msg), printableFields(fields), true
}

// printableFields returns the fields as text, numbers and booleans; other values become JSON.
func printableFields(fields logrus.Fields) logrus.Fields {
	out := logrus.Fields{}
	for key, value := range fields {
		switch v := value.(type) {
		case string:
			value = oneline.Mask(v)
		case float64, bool, nil:
		default:
			text, err := json.Marshal(v)
			if err != nil {
				continue // cannot happen: it came from JSON
			}
			value = oneline.Mask(string(text))
		}
		out[oneline.Mask(key)] = value
	}
	return out
}

// quiet returns the logger for go-plugin's own lines, which appear at level trace only: Kubelith logs each event
// itself, once.
func quiet(log *logrus.Entry) hclog.Logger {
	if !log.Logger.IsLevelEnabled(logrus.TraceLevel) {
		return hclog.NewNullLogger()
	}
	return hclog.New(&hclog.LoggerOptions{Name: "go-plugin", Level: hclog.Trace, DisableTime: true, Output: traceWriter{log}})
}

type traceWriter struct{ log *logrus.Entry }

func (w traceWriter) Write(p []byte) (int, error) {
	w.log.Trace(strings.TrimSpace(string(p)))
	return len(p), nil
}
