package node

import (
	"fmt"
	"io"
	"sync"
	"time"

	"kubelith.io/kubelith/components/lifecycle"
)

// Output is where a server writes.
type Output struct {
	// Log receives the log.
	Log io.Writer
	// Progress, when set, receives a line per component while it starts: for a
	// person at a terminal.
	Progress io.Writer
}

// progress counts the components that are ready and tells a person.
type progress struct {
	out        io.Writer
	kubeconfig string
	begin      time.Time

	mu    sync.Mutex
	total int
	ready int
}

func newProgress(out Output, components []lifecycle.Component, kubeconfig string) *progress {
	return &progress{out: out.Progress, kubeconfig: kubeconfig, begin: time.Now(), total: len(components)}
}

func (p *progress) observe(e lifecycle.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e.State {
	case lifecycle.Ready:
		p.ready++
		p.printf("%-20s ready   %6.2fs\n", e.Component, e.Since.Seconds())
		if p.ready == p.total {
			p.printf("%-20s ready   %6.2fs   kubeconfig: %s\n", "kubelith", time.Since(p.begin).Seconds(), p.kubeconfig)
		}
	case lifecycle.Stopped:
		p.printf("%-20s stopped\n", e.Component)
	case lifecycle.Failed:
		p.printf("%-20s failed  %6.2fs   %v\n", e.Component, e.Since.Seconds(), e.Err)
	}
}

func (p *progress) printf(format string, a ...any) {
	if p.out != nil {
		fmt.Fprintf(p.out, format, a...)
	}
}

// allReady reports whether every component is ready.
func (p *progress) allReady() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ready == p.total
}
