package host

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/hashicorp/go-hclog"
	"github.com/sirupsen/logrus"
)

const (
	maxLine        = 4096 // bytes of a line that are kept
	linesPerSecond = 200  // of one process; what is above is counted
)

// output carries what a plugin prints into the log, and remembers what may explain its end.
type output struct {
	log *logrus.Entry // with plugin=

	mu      sync.Mutex
	last    string    // line
	fatal   string    // line with which the Go runtime began to say why it ends
	second  time.Time // that is counted
	lines   int       // in it
	dropped int       // lines since the last that was told
}

// read logs lines until r ends.
func (o *output) read(r io.Reader) {
	lines := bufio.NewReaderSize(r, maxLine)
	rest := false // of a line that was too long
	for {
		line, more, err := lines.ReadLine()
		if err != nil {
			o.tellDropped()
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
		level, msg = logrus.InfoLevel, printable(text)
	}
	if o.admit(level, msg) {
		o.log.WithFields(fields).Log(level, msg)
	}
}

// admit remembers the line, unless it is one of debugging, and tells whether it is to be logged.
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
		time.AfterFunc(time.Second, o.tellDropped)
	}
	return false
}

func (o *output) tellDropped() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dropped > 0 {
		o.log.Warnf("%d lines of its output dropped: more than %d in a second", o.dropped, linesPerSecond)
		o.dropped = 0
	}
}

// lastWords is what it said that best explains its end; empty when it said nothing.
func (o *output) lastWords() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fatal != "" {
		return o.fatal
	}
	return o.last
}

// writer is for what comes in pieces: the streams that go-plugin carries over gRPC after the handshake.
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

// parseHclog reads a line of hclog's JSON, which is what plugins with the SDK write. What it returns is printable: JSON can hold what the line
// does not show.
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
	return level, printable(msg), printableFields(fields), true
}

// printableFields are text, numbers and truth values; what is more is written as JSON.
func printableFields(fields logrus.Fields) logrus.Fields {
	out := logrus.Fields{}
	for key, value := range fields {
		switch v := value.(type) {
		case string:
			value = printable(v)
		case float64, bool, nil:
		default:
			text, err := json.Marshal(v)
			if err != nil {
				continue // what was read can be written
			}
			value = printable(string(text))
		}
		out[printable(key)] = value
	}
	return out
}

// printable keeps control characters, which could change what a terminal shows, out of the log.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}

// quiet is the logger for go-plugin's own lines. The host tells each event once, in a line that a person understands.
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
