package process

import (
	"errors"
	"strings"
	"testing"
	"unicode"

	"github.com/sirupsen/logrus"
)

// TestHclogIsPrintable: what a line of JSON hides, the log does not show: neither sequences for a terminal nor lines
// that look like ours.
func TestHclogIsPrintable(t *testing.T) {
	level, msg, fields, ok := parseHclog(`{"@level":"warn","@message":"a\u001b[2Jb\nlevel=error component=etcd","@module":"m\u202e",
		"text":"x\u009by","key\u001b":1,"deep":{"a":["\u001b\u202e"]},"n":7,"yes":true,"none":null}`)
	if !ok || level != logrus.WarnLevel || msg != "a?[2Jb?level=error component=etcd" {
		t.Errorf("%v %q %v", level, msg, ok)
	}
	want := logrus.Fields{"logger": "m?", "text": "x?y", "key?": 1.0, "deep": `{"a":["\u001b?"]}`, "n": 7.0, "yes": true, "none": nil}
	if len(fields) != len(want) {
		t.Errorf("fields %v", fields)
	}
	for key, value := range want {
		if fields[key] != value {
			t.Errorf("%q is %#v, want %#v", key, fields[key], value)
		}
	}
}

// FuzzOutput: whatever a plugin prints is lines of printable text, at most as many as may be in a second.
func FuzzOutput(f *testing.F) {
	f.Add([]byte("plain\n\x1b[31mred\r\n"))
	f.Add([]byte(`{"@level":"warn","@message":"a\u001b[2Jb\nc","x":{"y":"\u202e"}}` + "\n"))
	f.Add([]byte(`{"@level":7,"@message":7}` + "\n{\n{}\n"))
	f.Add([]byte("panic: x\n" + strings.Repeat("y", 3*maxLine)))
	f.Fuzz(func(t *testing.T, text []byte) {
		lines := 0
		log := logrus.New()
		log.SetOutput(discard{})
		log.SetLevel(logrus.TraceLevel)
		log.AddHook(entries(func(e *logrus.Entry) {
			mustBePrintable(t, e.Message)
			for key, value := range e.Data {
				mustBePrintable(t, key)
				if s, ok := value.(string); ok {
					mustBePrintable(t, s)
				}
			}
			lines++
		}))
		o := &output{log: logrus.NewEntry(log)}
		o.read(strings.NewReader(string(text)))
		o.writer().Write(text)
		mustBePrintable(t, o.lastLine())
		if lines > 3*linesPerSecond { // two seconds may have begun, and a line reports what was dropped
			t.Errorf("%d lines", lines)
		}
	})
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// entries is a hook.
type entries func(*logrus.Entry)

func (entries) Levels() []logrus.Level { return logrus.AllLevels }

func (f entries) Fire(e *logrus.Entry) error {
	f(e)
	return nil
}

func mustBePrintable(t *testing.T, text string) {
	t.Helper()
	if i := strings.IndexFunc(text, func(r rune) bool { return r != '\t' && !unicode.IsPrint(r) }); i >= 0 {
		t.Errorf("%q has what no log should show, at %d", text, i)
	}
}

// FuzzHello: whatever a process prints first, the reason for which it is refused is one printable line.
func FuzzHello(f *testing.F) {
	for _, line := range []string{"1|1|unix|/x|grpc|", "1|99|unix|/x|grpc|AAAA", "2|1|tcp|127.0.0.1:1|netrpc", "Hello\x1b[31m", "", "|||||", strings.Repeat("x", 2*maxLine)} {
		f.Add([]byte(line + "\n"))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		hello := newFirstLine()
		go func() {
			buffer := make([]byte, maxLine)
			for {
				if _, err := hello.Read(buffer); err != nil {
					return
				}
			}
		}()
		hello.read(strings.NewReader(string(text)))
		line := hello.line()
		if len(line) > maxLine || strings.Contains(line, "\n") {
			t.Errorf("the first line has %d bytes", len(line))
		}
		err := handshakeLineError(line, errors.New("refused"))
		mustBePrintable(t, err.Error())
		if public := PublicError(err); strings.Contains(err.Error(), "first line of output") && strings.Contains(public, "\"") {
			t.Errorf("the public error has what it printed: %s", public)
		}
	})
}
