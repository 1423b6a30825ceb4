package kubelith

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"kubelith.io/kubelith/trace"
	"kubelith.io/kubelith/trace/record"
	"kubelith.io/kubelith/trace/render"
)

// follower shows a timeline until it has settled: redrawn in place on a terminal, elsewhere a line for each stage that
// has ended, and what the time went to.
type follower struct {
	client  recorder
	out     io.Writer
	options render.Options
	quiet   bool
	drawn   int // lines of the last picture
	said    map[string]bool
}

// follow returns the timeline that has settled, or the last one that is known with an error. ctx may end: then that is
// the error.
func (f *follower) follow(ctx context.Context, ref record.Ref) (*trace.Timeline, error) {
	f.drawn, f.said = 0, map[string]bool{}
	var known *trace.Timeline
	var after uint64
	for {
		t, err := f.client.Timeline(ctx, ref.Resource, ref.Namespace, ref.Name, after)
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		if known != nil && errors.Is(err, context.DeadlineExceeded) {
			// How it is now.
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			if last, lost := f.client.Timeline(late, ref.Resource, ref.Namespace, ref.Name, 0); lost == nil {
				known = last
			}
			cancel()
			f.finish(known)
		}
		if err != nil {
			return known, err
		}
		known, after = t, t.Seq
		if t.Settled {
			f.finish(t)
			return t, nil
		}
		f.show(t)
		select { // not more often than an eye can follow
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// show shows the state of a timeline that goes on.
func (f *follower) show(t *trace.Timeline) {
	switch file := terminal(f.out); {
	case f.quiet:
	case file != nil:
		f.draw(t, file)
	default:
		f.lines(t)
	}
}

// finish shows the last state.
func (f *follower) finish(t *trace.Timeline) {
	if f.quiet {
		return
	}
	options := f.options
	if terminal(f.out) != nil {
		f.erase()
	} else {
		f.lines(t)
		fmt.Fprintln(f.out)
		options.Brief = true
	}
	_ = render.Text(f.out, t, options)
}

func (f *follower) erase() {
	if f.drawn > 0 {
		fmt.Fprintf(f.out, "\x1b[%dA\r\x1b[J", f.drawn)
	}
	f.drawn = 0
}

// draw replaces the last picture. A terminal that is too small for all shows the critical path, or the end of it.
func (f *follower) draw(t *trace.Timeline, file *os.File) {
	options, height := f.options, 24
	if w, h, err := term.GetSize(int(file.Fd())); err == nil {
		options.Width, height = w, h
	}
	picture := func() []string {
		var text bytes.Buffer
		_ = render.Text(&text, t, options)
		return strings.SplitAfter(strings.TrimSuffix(text.String(), "\n"), "\n")
	}
	lines := picture()
	if len(lines) >= height {
		options.Path = true
		lines = picture()
	}
	const head = 4
	if more := len(lines) - height + 1; more > 0 && height > 2*head {
		lines = slices.Concat(lines[:head], lines[head+more:])
	}
	f.erase()
	fmt.Fprintln(f.out, strings.Join(lines, ""))
	f.drawn = len(lines)
}

// lines prints the stages that have ended since the last time, without the waits: what they were for is sure only when
// what followed them is known.
func (f *follower) lines(t *trace.Timeline) {
	var ended []*trace.Span
	for i := range t.Spans {
		s := &t.Spans[i]
		key := fmt.Sprint(s.Object, s.Stage, s.Name, s.Begin.UnixNano())
		if s.Parent != 0 || s.Wait || f.said[key] {
			continue
		}
		f.said[key] = true
		ended = append(ended, s)
	}
	slices.SortStableFunc(ended, func(a, b *trace.Span) int { return a.End.Compare(b.End) })
	for _, s := range ended {
		fmt.Fprintln(f.out, render.Line(t, s))
	}
}
