package why

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/base/oneline"
)

// minWidth is the least width that text is wrapped to.
const minWidth = 40

// Style is how an answer is written as text.
type Style struct {
	// Width is the number of columns; 0: 100.
	Width int
	// Colour marks the first line and the headings for a terminal.
	Colour bool
	// Now is the time that ages count back from.
	Now time.Time
}

// WriteText writes the answer for a person: the cause first.
func (a *Answer) WriteText(out io.Writer, style Style) error {
	if style.Width == 0 {
		style.Width = 100
	}
	p := &page{style: style, width: max(style.Width, minWidth)}
	mark := map[Status]string{Healthy: "32", Progressing: "33", Broken: "31", Absent: "31"}[a.Status]
	p.wrap("", "", a.Cause, mark+";1")
	state := fmt.Sprintf("%s: %s, %s", a.Object, a.Status, a.Code)
	if a.Since != nil {
		state += fmt.Sprintf(", since %s (%s)", clock(*a.Since), ago(style.Now.Sub(a.Since.Time)))
	}
	p.wrap("  ", "  ", state, "")
	if len(a.Chain) > 1 {
		names := make([]string, len(a.Chain))
		for i, o := range a.Chain {
			names[i] = o.String()
		}
		p.wrap("  ", "    ", strings.Join(names, " -> "), "")
	}
	p.section("Evidence", len(a.Evidence) > 0)
	for _, e := range a.Evidence {
		source := e.Source
		if e.Time != nil {
			source += " (" + moment(*e.Time, style.Now) + ")"
		}
		p.item(source+":", e.Text)
	}
	p.section("What to do", len(a.Remedy) > 0)
	for _, step := range a.Remedy {
		if strings.HasPrefix(step, "kubelith ") {
			p.line("    "+oneline.Mask(step), "") // whole, so that it can be copied
			continue
		}
		p.wrap("  ", "  ", step, "")
	}
	p.section("Not because", len(a.NotBecause) > 0)
	for _, n := range a.NotBecause {
		p.item(n.Text+":", n.Evidence)
	}
	p.section("Not read", len(a.Unread) > 0)
	for _, u := range a.Unread {
		p.wrap("  - ", "    ", u, "")
	}
	_, err := io.WriteString(out, p.text.String())
	return err
}

// moment is when something was, for evidence: its age, or the time if that is long ago.
func moment(t metav1.Time, now time.Time) string {
	if d := now.Sub(t.Time); d < 48*time.Hour {
		return ago(d) + " ago"
	}
	return clock(t)
}

// page collects lines.
type page struct {
	style Style
	width int
	text  strings.Builder
}

func (p *page) line(text, colour string) {
	if p.style.Colour && colour != "" {
		text = "\x1b[" + colour + "m" + text + "\x1b[0m"
	}
	p.text.WriteString(text + "\n")
}

func (p *page) section(title string, any bool) {
	if any {
		p.line("", "")
		p.line(title, "1")
	}
}

// item writes an entry: the text behind its head where both fit, else below it. Lines of the text stay lines.
func (p *page) item(head, text string) {
	head, text = oneline.Of(head), strings.TrimSpace(text)
	if !strings.Contains(text, "\n") && 5+utf8.RuneCountInString(head)+utf8.RuneCountInString(text) <= p.width {
		p.line("  - "+head+" "+oneline.Mask(text), "")
		return
	}
	p.wrap("  - ", "    ", head, "")
	for line := range strings.Lines(text) {
		p.wrap("      ", "      ", strings.TrimRight(line, "\r\n"), "")
	}
}

// wrap writes text in lines of the page's width; a word that is longer stays whole.
func (p *page) wrap(first, next, text, colour string) {
	line, empty := first, true
	for _, word := range strings.Fields(oneline.Of(text)) {
		if !empty && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > p.width {
			p.line(line, colour)
			line, empty = next, true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	p.line(line, colour)
}
