package logging

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
)

// What a library writes to standard error is a line of the log, however long, until the end, but not later.
func TestCaptureStderr(t *testing.T) {
	stderr := os.Stderr
	var out bytes.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	restore, err := CaptureStderr(log)
	if err != nil {
		t.Fatal(err)
	}
	library := io.Writer(os.Stderr) // kept, as upstream does
	fmt.Fprint(library, "http2: server: error\n\nsecond\n")
	fmt.Fprintln(library, strings.Repeat("x", 1<<20))
	fmt.Fprintln(library, "not read any more, but taken")
	restore()
	if os.Stderr != stderr {
		t.Error("os.Stderr is not what it was")
	}
	if got := out.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "http2: server: error") || !strings.Contains(got, "second") {
		t.Errorf("the log has %q", got)
	}
}
