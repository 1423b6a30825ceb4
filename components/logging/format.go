package logging

import (
	"bytes"
	encodingjson "encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sirupsen/logrus"
)

// timeFormat is RFC 3339 with milliseconds.
const timeFormat = "2006-01-02T15:04:05.000Z07:00"

// withDefault gives a component to the lines that have none.
type withDefault struct {
	logrus.Formatter
	component string
}

func (f withDefault) Format(e *logrus.Entry) ([]byte, error) {
	if _, ok := e.Data[componentField]; !ok {
		data := maps.Clone(e.Data)
		if data == nil {
			data = logrus.Fields{}
		}
		data[componentField] = f.component
		e = &logrus.Entry{Logger: e.Logger, Data: data, Time: e.Time, Level: e.Level, Message: e.Message}
	}
	return f.Formatter.Format(e)
}

// levelName is the name as in Options.Level: logrus says "warning".
func levelName(l logrus.Level) string {
	if l == logrus.WarnLevel {
		return "warn"
	}
	return l.String()
}

// text writes lines for people:
//
//	2030-01-01T00:00:00.000Z info  component=etcd message key="a value" other=1
//
// Further lines of a message (a stack) are indented, so that a line at the margin begins an entry.
type text struct{}

func (text) Format(e *logrus.Entry) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %-5s %s=%s %s", e.Time.Format(timeFormat), levelName(e.Level),
		componentField, quote(e.Data[componentField]), strings.ReplaceAll(strings.TrimRight(e.Message, "\n"), "\n", "\n\t"))
	for _, k := range slices.Sorted(maps.Keys(e.Data)) {
		if k != componentField {
			fmt.Fprintf(&b, " %s=%s", k, quote(e.Data[k]))
		}
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// quote prints a value so that it ends where a space is seen.
func quote(v any) string {
	s := fmt.Sprint(plain(v))
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == '"' || r == '=' || r == 0x7f }) {
		return strconv.Quote(s)
	}
	return s
}

// json writes one object per line, with time, level, component and msg; a field that has one of these
// names keeps it with "field." before it.
type json struct{}

func (json) Format(e *logrus.Entry) ([]byte, error) {
	object := make(map[string]any, len(e.Data)+3)
	for k, v := range e.Data {
		if k == "time" || k == "level" || k == "msg" {
			k = "field." + k
		}
		object[k] = plain(v)
	}
	object["time"] = e.Time.Format(timeFormat)
	object["level"] = levelName(e.Level)
	object["msg"] = e.Message
	var b bytes.Buffer
	enc := encodingjson.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(object); err != nil {
		return nil, err // cannot happen: plain leaves only what can be encoded
	}
	return b.Bytes(), nil
}
