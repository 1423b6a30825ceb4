package node

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/components/config"
	"kubelith.io/kubelith/components/logging"
)

// Output is where a server writes.
type Output struct {
	// Log receives the log, unless a file does.
	Log io.Writer
	// LogFile is begun when nothing is refused any more, and receives the log, unless the configuration names another. That
	// of the run before is kept under its name with ".1".
	LogFile string
	// Progress, when set, receives a line per component while it starts: for a
	// person at a terminal.
	Progress io.Writer
}

// open leads what the process writes through Writers, so that nothing waits for somebody to read it.
func (o Output) open(cfg *config.Node) (*output, error) {
	// With a handler, a reader that is gone makes a write fail. Without one it ends the process (os/signal, "SIGPIPE");
	// children inherit no handler.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	opened := &output{file: o.LogFile}
	sink := o.Log
	switch {
	case cfg.LogFile != "":
		opened.file = cfg.LogFile
		file, err := logging.OpenFile(cfg.LogFile)
		if err != nil {
			return nil, fmt.Errorf("%w: give another --log-file", err)
		}
		sink = file // open until the process ends
	case o.LogFile != "":
		opened.later = &laterFile{}
		sink = opened.later
	}
	opened.log = logging.NewWriter(sink, cfg.LogFormat)
	if o.Progress != nil {
		opened.progress = logging.NewWriter(o.Progress, "text")
	}
	return opened, nil
}

// output is an Output that is used.
type output struct {
	log      *logging.Writer
	progress *logging.Writer // nil: nobody watches
	file     string          // the log's; empty: it goes to Output.Log
	later    *laterFile      // nil: the log is where it belongs
	restore  func()          // gives os.Stderr back; nil: it was not taken
}

// begin begins the file of the log that was not to be touched by a start that is refused.
func (o *output) begin() error {
	if o.later == nil {
		return nil
	}
	return o.later.open(o.file)
}

// person is the writer to a person who watches the start, or nil.
func (o *output) person() io.Writer {
	if o.progress == nil {
		return nil
	}
	return o.progress
}

// Close writes what is left: after it comes the last line, which says why the process ends.
func (o *output) Close() {
	if o.restore != nil {
		o.restore()
	}
	o.log.Close()
	if o.progress != nil {
		o.progress.Close()
	}
}

// laterFile keeps what is logged in memory until it is opened: a start that is refused leaves no file, and does not
// touch that of a server that runs.
type laterFile struct {
	mu   sync.Mutex
	file *logging.File
	kept bytes.Buffer
}

func (l *laterFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return l.kept.Write(p)
	}
	return l.file.Write(p)
}

// open makes the file, which stays open until the process ends. The caller holds its directory, so that the old one is
// nobody's any more.
func (l *laterFile) open(name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	file, err := logging.NewFile(name)
	if err != nil {
		return err
	}
	l.file = file
	_, err = file.Write(l.kept.Bytes())
	l.kept.Reset()
	return err
}
