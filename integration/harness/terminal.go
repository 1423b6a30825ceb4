package harness

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Terminal returns a new terminal for the output of a command, and what was written to it so far. Close the screen when
// the command runs.
func Terminal(t testing.TB) (screen *os.File, text func() string) {
	t.Helper()
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals on this host: %v", err)
	}
	n, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(terminal.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	if screen, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	out := &written{}
	go func() {
		io.Copy(out, terminal) // until the last process has closed the screen
		terminal.Close()
	}()
	return screen, out.text
}

// written is what a goroutine has written and a test reads.
type written struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (w *written) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(p)
}

func (w *written) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}
