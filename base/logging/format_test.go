package logging

import (
	encodingjson "encoding/json"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sirupsen/logrus"
)

// Text from others stays within its entry.
func TestNothingForged(t *testing.T) {
	e := &logrus.Entry{Level: logrus.WarnLevel, Message: "first\n2030-01-01T00:00:00.000Z error component=etcd forged\x1b[1A", Data: logrus.Fields{
		componentField: "plugins\n", "a b": 1, "k\nforged": "v", "v": "x\ny\x1b[2J",
	}}
	got, _ := text{}.Format(e)
	want := `0001-01-01T00:00:00.000Z warn  component="plugins\n" first` + "\n\t" + `2030-01-01T00:00:00.000Z error component=etcd forged\x1b[1A "a b"=1 "k\nforged"=v v="x\ny\x1b[2J"` + "\n"
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// FuzzFormat: whatever is logged, the text is one entry whose other lines are indented, the JSON is one object on one
// line, and neither contains a control character.
func FuzzFormat(f *testing.F) {
	f.Add("message", "component", "key", "value")
	f.Add("a\nb\r\x1b[0m", "c\u2028", "\u0085", "\x9b\xff\U000e0001")
	f.Add("\n", "", "", "")
	f.Add("\x00", "time", "level", "msg")
	entry := regexp.MustCompile(`^\S+ info  component=("(\\.|[^"\\])*"|[^\s"]+) `)
	f.Fuzz(func(t *testing.T, message, component, key, value string) {
		e := &logrus.Entry{Time: time.Unix(0, 0), Level: logrus.InfoLevel, Message: message, Data: logrus.Fields{key: value, componentField: component}}
		for _, format := range []logrus.Formatter{text{}, json{}} {
			out, err := format.Format(e)
			line := string(out)
			if err != nil || !strings.HasSuffix(line, "\n") {
				t.Fatalf("%T: %q, %v", format, line, err)
			}
			for _, r := range line {
				if r != '\n' && r != '\t' && !strconv.IsPrint(r) {
					t.Errorf("%T: %q has %U", format, line, r)
				}
			}
			lines := strings.Split(strings.TrimSuffix(line, "\n"), "\n")
			if format == (logrus.Formatter(json{})) {
				var object map[string]any
				if err := encodingjson.Unmarshal(out, &object); err != nil || len(lines) != 1 {
					t.Errorf("not one object on one line: %q, %v", line, err)
				}
				if msg := object["msg"]; utf8.ValidString(message) && msg != message {
					t.Errorf("the message is %q, was %q", msg, message)
				}
				continue
			}
			if !entry.MatchString(lines[0]) {
				t.Errorf("not an entry: %q", lines[0])
			}
			for _, more := range lines[1:] {
				if !strings.HasPrefix(more, "\t") {
					t.Errorf("a line at the margin: %q", more)
				}
			}
		}
	})
}
