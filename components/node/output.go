package node

import (
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/logging"
)

// Output is where a server writes.
type Output struct {
	// Log receives the log, unless a file does.
	Log io.Writer
	// LogFile receives the log, unless the configuration names another file. It is opened when the start can no longer
	// be refused. The log of the previous run is kept under its name with ".1".
	LogFile string
	// Progress, when set, receives a line per component while it starts: for a user at a terminal.
	Progress io.Writer
}

// open sends what the process writes through Writers, so that nothing waits for a reader.
func (o Output) open(cfg *config.Node) (*output, error) {
	// With a handler, a write fails when its reader is gone. Without one it ends the process (os/signal, "SIGPIPE");
	// children inherit no handler.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	opened := &output{file: o.LogFile}
	sink := o.Log
	switch {
	case cfg.LogFile != "":
		opened.file = cfg.LogFile
		file, err := logging.OpenFile(cfg.LogFile)
		if err != nil {
			return nil, fmt.Errorf("%w: use another --log-file", err)
		}
		sink = file // open until the process ends
	case o.LogFile != "":
		opened.later = &logging.LaterFile{}
		sink = opened.later
	}
	opened.log = logging.NewWriter(sink, cfg.LogFormat)
	if o.Progress != nil {
		opened.progress = logging.NewWriter(o.Progress, "text")
	}
	return opened, nil
}

// output is an Output in use.
type output struct {
	log      *logging.Writer
	progress *logging.Writer    // nil: no terminal
	file     string             // the log's; empty: it goes to Output.Log
	later    *logging.LaterFile // nil: the log is already written to its destination
	restore  func()             // restores os.Stderr; nil: it was not replaced
}

// begin opens the log file, which a refused start must not touch.
func (o *output) begin() error {
	if o.later == nil {
		return nil
	}
	return o.later.Open(o.file)
}

// person returns the writer to the user who watches the start, or nil.
func (o *output) person() io.Writer {
	if o.progress == nil {
		return nil
	}
	return o.progress
}

// Close flushes the output: the last line, the reason why the process ends, comes after it.
func (o *output) Close() {
	if o.restore != nil {
		o.restore()
	}
	o.log.Close()
	if o.progress != nil {
		o.progress.Close()
	}
}
