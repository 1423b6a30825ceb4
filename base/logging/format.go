package logging

import (
	"bytes"
	encodingjson "encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/sirupsen/logrus"

	"kubelith.io/kubelith/base/oneline"
)

// timeFormat is RFC 3339 with milliseconds.
const timeFormat = "2006-01-02T15:04:05.000Z07:00"

// entryFormatter processes an entry before it becomes text: it sets a missing component, corrects the level, and drops
// entries that were repeated often enough.
type entryFormatter struct {
	logrus.Formatter
	component string                    // for entries that have none
	loggers   map[string]*logrus.Logger // of components with their own level
	ranks     *ranks
	floods    *floods
}

// Format implements logrus.Formatter. A dropped entry writes nothing.
func (f entryFormatter) Format(e *logrus.Entry) ([]byte, error) {
	component, ok := e.Data[componentField]
	if !ok {
		component = f.component
	}
	about := said{component: fmt.Sprint(component), message: e.Message, err: errorOf(e.Data)}
	level := f.ranks.level(about, e.Level, e.Time)
	if e.Logger != nil && level > e.Logger.GetLevel() {
		return nil, nil
	}
	message, ok := f.floods.shorten(about, level, e.Time)
	if !ok {
		return nil, nil
	}
	data := make(logrus.Fields, len(e.Data)+1)
	maps.Copy(data, e.Data)
	data[componentField] = component
	return f.Formatter.Format(&logrus.Entry{Logger: e.Logger, Data: data, Time: e.Time, Level: level, Message: message})
}

// errorOf returns the error of an entry, which klog calls err and the others error.
func errorOf(data logrus.Fields) string {
	for _, key := range []string{"err", logrus.ErrorKey} {
		if v, ok := data[key]; ok {
			return fmt.Sprint(plain(v))
		}
	}
	return ""
}

// levelName returns the name as in Options.Level: logrus says "warning".
func levelName(l logrus.Level) string {
	if l == logrus.WarnLevel {
		return "warn"
	}
	return l.String()
}

// text writes lines for humans:
//
//	2030-01-01T00:00:00.000Z info  component=etcd message key="a value" other=1
//
// Further lines of a message (a stack) are indented, so that a line at the margin begins an entry. Much of the log
// comes from others (names, errors of programs and of other machines): it can neither forge an entry nor control a
// terminal.
type text struct{}

func (text) Format(e *logrus.Entry) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %-5s %s=%s ", e.Time.Format(timeFormat), levelName(e.Level), componentField, quote(e.Data[componentField]))
	for i, line := range strings.Split(strings.TrimRight(e.Message, "\n"), "\n") {
		if i > 0 {
			b.WriteString("\n\t")
		}
		b.WriteString(oneline.Escape(line))
	}
	for _, k := range slices.Sorted(maps.Keys(e.Data)) {
		if k != componentField {
			fmt.Fprintf(&b, " %s=%s", quote(k), quote(e.Data[k]))
		}
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// quote prints a value so that its end is visible.
func quote(v any) string {
	s := fmt.Sprint(plain(v))
	if s == "" || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return r == ' ' || r == '"' || r == '=' || !strconv.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// json writes one object per line, with time, level, component and msg; a field with one of these names gets the prefix
// "field.".
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
		return nil, err // cannot happen: plain leaves only encodable values
	}
	return escaped(b.Bytes()), nil
}

// escaped escapes the control characters that encoding/json leaves, as JSON does the others. All of them are in
// strings.
func escaped(line []byte) []byte {
	var b bytes.Buffer
	for _, r := range string(line) {
		if r == '\n' || strconv.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.Bytes()
}
