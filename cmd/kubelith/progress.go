package kubelith

import (
	"fmt"
	"io"
	"strings"
	"time"

	"kubelith.io/kubelith/components/controlplane/snapshot"
)

// progress shows how much of a step is done: a bar on a terminal, elsewhere a line when a step takes long.
type progress struct {
	out      io.Writer
	terminal bool
	now      func() time.Time
	step     string
	shown    time.Time
}

const (
	// redraw is how often a bar is drawn.
	redraw = 100 * time.Millisecond
	// remind is how often there is a line where there is no terminal.
	remind = 10 * time.Second
)

// progressOn returns one that writes to out.
func progressOn(out io.Writer) *progress {
	return &progress{out: out, terminal: terminal(out) != nil, now: time.Now}
}

// at shows that so many bytes of a step are done.
func (p *progress) at(step string, done, total int64) {
	done = min(done, total)
	now := p.now()
	began := step != p.step
	p.step = step
	if !p.terminal {
		switch {
		case began:
			p.shown = now
		case now.Sub(p.shown) >= remind:
			p.shown = now
			fmt.Fprintf(p.out, "%s: %s of %s\n", step, bytesOf(done), bytesOf(total))
		}
		return
	}
	if !began && done < total && now.Sub(p.shown) < redraw {
		return
	}
	p.shown = now
	const width = 30
	filled := width
	if total > 0 {
		filled = int(done * width / total)
	}
	after := bytesOf(total)
	switch {
	case done < total:
		after = bytesOf(done) + " of " + after
	case step != snapshot.StepSave && step != snapshot.StepUpload:
		after += ", starting etcd on it"
	}
	fmt.Fprintf(p.out, "\r\x1b[K%s [%s%s] %s", step, strings.Repeat("#", filled), strings.Repeat(" ", width-filled), after)
}

// end removes the bar.
func (p *progress) end() {
	if p.terminal {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}

func bytesOf(n int64) string {
	if n < 10<<20 {
		return fmt.Sprintf("%d KiB", (n+1023)>>10)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}
