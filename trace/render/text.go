package render

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"kubelith.io/kubelith/base/oneline"
	"kubelith.io/kubelith/trace"
	"kubelith.io/kubelith/trace/record"
)

// Options are how a timeline is written as text.
type Options struct {
	// Width is the number of columns; 0: 100.
	Width int
	// Color marks the critical path, errors and headings for a terminal.
	Color bool
	// ASCII avoids every other character than those of ASCII, except in names and messages.
	ASCII bool
	// All shows every object and every step; without it, many alike are folded into one line.
	All bool
	// Path shows what is on the critical path only.
	Path bool
	// Brief leaves out the waterfall.
	Brief bool
}

const (
	minWidth = 60
	// likeThese is how many objects of a resource, or spans of an object that repeat, are shown before they fold.
	likeThese = 4
)

// Text writes a timeline as a waterfall.
func Text(w io.Writer, t *trace.Timeline, o Options) error {
	p := &sheet{o: o, t: t, width: max(cmp.Or(o.Width, 100), minWidth)}
	p.total = max(t.End.Sub(t.Begin), 1)
	p.head()
	if !p.o.Brief {
		p.line("")
		p.waterfall()
	}
	p.shares()
	for i, notice := range t.Notices {
		if i == 0 {
			p.line("")
		}
		p.wrap("note: ", "      ", notice, "33")
	}
	_, err := io.WriteString(w, p.out.String())
	return err
}

// sheet is a text in the making.
type sheet struct {
	o     Options
	t     *trace.Timeline
	width int
	total time.Duration
	out   strings.Builder
	// label and chart are the widths of these columns, and chartAt where the chart begins.
	label, chart, chartAt int
}

// paint marks text for a terminal; code is that of SGR, "" for none.
func (p *sheet) paint(code, text string) string {
	if !p.o.Color || code == "" || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (p *sheet) line(text string) {
	if p.o.ASCII {
		text = ascii.Replace(text)
	}
	p.out.WriteString(strings.TrimRight(text, " ") + "\n")
}

// ascii has what this package prints itself.
var ascii = strings.NewReplacer("µ", "u", "…", "~", "→", ">", "┃", "*", "━", "=", "─", "-", "◆", "+", "█", "#", "▐", "#",
	"▏", "#", "▎", "#", "▍", "#", "▌", "#", "▋", "#", "▊", "#", "▉", "#", "·", "-")

// wrap writes text in lines: the first begins with first, the others with rest.
func (p *sheet) wrap(first, rest, text, code string) {
	indent := first
	var line string
	for _, word := range strings.Fields(oneline.Of(text)) {
		if line != "" && utf8.RuneCountInString(indent+line+" "+word) > p.width {
			p.line(p.paint(code, indent+line))
			indent, line = rest, ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	p.line(p.paint(code, indent+line))
}

// head writes what it is about, how it ended, how long it took and what took the longest.
func (p *sheet) head() {
	t := p.t
	outcome := "33"
	switch {
	case Failed(t):
		outcome = "31"
	case t.Settled:
		outcome = "32"
	}
	name := Object(t.Object)
	if t.Object.Namespace != "" {
		name += " -n " + t.Object.Namespace
	}
	p.wrap("", "  ", name+": "+t.Outcome, outcome+";1")
	took := Took(t.End.Sub(t.Begin))
	if !t.Settled {
		took += " so far"
	}
	since := "since "
	if t.SetOff != "" {
		since = "after the " + t.SetOff + " at "
	}
	p.wrap("  ", "  ", took+" "+since+clock(t.Begin), "1")
	if t.Before != "" {
		p.wrap("  ", "  ", "before that: "+t.Before, "")
	}
	for i := range t.Failures {
		f := &t.Failures[i]
		p.wrap("  ! ", "    ", title(f)+": "+f.Error, "31")
	}
	if s, d := longest(t); s != nil {
		what := title(s)
		if s.Node != "" {
			what += " on " + s.Node
		}
		if s.Object != t.Object {
			what += ", " + Object(s.Object)
		}
		p.wrap("  ", "  ", fmt.Sprintf("longest: %s, %s (%s)", what, Took(d), share(float64(d)/float64(p.total))), "")
	}
}

// longest returns the span that has the most of the critical path.
func longest(t *trace.Timeline) (span *trace.Span, most time.Duration) {
	for _, segment := range t.Critical {
		if d := segment.End.Sub(segment.Begin); d > most && segment.Span > 0 && segment.Span <= len(t.Spans) {
			span, most = &t.Spans[segment.Span-1], d
		}
	}
	return span, most
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

func share(f float64) string {
	if f > 0 && f < 0.005 {
		return "<1%"
	}
	return fmt.Sprintf("%.0f%%", f*100)
}

// entry is a line of the waterfall.
type entry struct {
	heading string
	span    *trace.Span
	text    string // of a line that folds others
	depth   int
}

// waterfall writes the stages of all objects, each with its bar.
func (p *sheet) waterfall() {
	rows := p.rows()
	for _, r := range rows {
		if r.span != nil {
			p.label = max(p.label, 2*r.depth+utf8.RuneCountInString(title(r.span)))
		}
	}
	p.label = min(p.label, p.width*2/5)
	p.chartAt = 2 + p.label + 1 + 7 + 2
	p.chart = p.width - p.chartAt
	p.axis()
	said := map[string]bool{}
	for _, r := range rows {
		switch {
		case r.heading != "":
			p.line(p.paint("1", oneline.Of(r.heading)))
			clear(said)
		case r.span == nil:
			p.line("  " + p.paint("2", r.text))
		default:
			p.span(r, said)
		}
	}
}

// rows are the lines: for each object a heading and its stages; many that are alike become one line.
func (p *sheet) rows() []entry {
	all := groups(p.t)
	shown, folded := p.fold(all)
	var rows []entry
	for i, g := range all {
		if !shown[g] {
			continue
		}
		heading := Object(g.object)
		if g.node != "" && g.object.Resource == "pods" {
			heading += " on " + g.node
		}
		if g.object.Namespace != "" && g.object.Namespace != p.t.Object.Namespace {
			heading += " -n " + g.object.Namespace
		}
		stages := p.stages(g)
		if len(stages) == 0 {
			continue
		}
		rows = append(append(rows, entry{heading: heading}), stages...)
		more := folded[g.object.Resource]
		last := !slices.ContainsFunc(all[i+1:], func(o *group) bool { return shown[o] && o.object.Resource == g.object.Resource })
		if len(more) > 0 && last && !p.o.Path {
			resource, _, _ := strings.Cut(g.object.Resource, ".")
			rows = append(rows, entry{text: alike(more, resource)})
		}
	}
	return rows
}

// alike is the line in place of many.
func alike(times []time.Duration, what string) string {
	slices.Sort(times)
	return fmt.Sprintf("… %d more %s like these: p50 %s, p99 %s", len(times), what, Took(percentile(times, 50)), Took(percentile(times, 99)))
}

// fold chooses the objects to show: of many of a resource the one with the most of the critical path, the slowest, and
// one that failed. It returns how long the others took, by resource.
func (p *sheet) fold(all []*group) (shown map[*group]bool, folded map[string][]time.Duration) {
	shown, folded = map[*group]bool{}, map[string][]time.Duration{}
	of := map[string][]*group{}
	for _, g := range all {
		of[g.object.Resource] = append(of[g.object.Resource], g)
	}
	for resource, list := range of {
		if p.o.All || len(list) <= likeThese {
			for _, g := range list {
				shown[g] = true
			}
			continue
		}
		shown[slices.MaxFunc(list, func(a, b *group) int { return cmp.Compare(a.critical(), b.critical()) })] = true
		shown[slices.MaxFunc(list, func(a, b *group) int { return cmp.Compare(a.took(), b.took()) })] = true
		if i := slices.IndexFunc(list, (*group).failed); i >= 0 {
			shown[list[i]] = true
		}
		for _, g := range list {
			if !shown[g] {
				folded[resource] = append(folded[resource], g.took())
			}
		}
	}
	return shown, folded
}

// stages are the lines of one object.
func (p *sheet) stages(g *group) []entry {
	key := func(s *trace.Span) string { return string(s.Stage) + " " + s.Name }
	of := map[string][]*trace.Span{}
	for _, s := range g.spans {
		if p.worth(s) {
			of[key(s)] = append(of[key(s)], s)
		}
	}
	var rows []entry
	var add func(s *trace.Span, depth int)
	add = func(s *trace.Span, depth int) {
		rows = append(rows, entry{span: s, depth: depth})
		for _, part := range g.parts[s.ID] {
			if p.worthPart(part) {
				add(part, depth+1)
			}
		}
	}
	for _, s := range g.spans {
		alikes := of[key(s)]
		if !slices.Contains(alikes, s) {
			continue
		}
		if p.o.All || len(alikes) <= likeThese {
			add(s, 0)
			continue
		}
		// The first, the longest and the last one.
		slowest := slices.MaxFunc(alikes, func(a, b *trace.Span) int { return cmp.Compare(a.Duration(), b.Duration()) })
		last := alikes[len(alikes)-1]
		if s == last {
			var others []time.Duration
			for _, o := range alikes[1 : len(alikes)-1] {
				if o != slowest {
					others = append(others, o.Duration())
				}
			}
			rows = append(rows, entry{text: oneline.Of(alike(others, "of "+key(s)))})
		}
		if s == alikes[0] || s == slowest || s == last {
			add(s, 0)
		}
	}
	return rows
}

// worth reports whether a stage is worth a line: all are, except waits that nothing waited for and that are hardest to
// see.
func (p *sheet) worth(s *trace.Span) bool {
	if p.o.Path {
		return s.Critical
	}
	return p.o.All || !s.Wait || s.Critical || s.Duration() > p.total/1000
}

// worthPart reports whether a part of a stage is worth a line: one that failed, a call, or what took long.
func (p *sheet) worthPart(s *trace.Span) bool {
	switch {
	case p.o.All || s.Error != "":
		return true
	case p.o.Path:
		return false
	case s.Stage == record.CNI || s.Stage == record.Hook || s.Stage == record.Volume:
		return true
	}
	return s.Duration() >= p.total/50
}

// title is the stage with what it is about.
func title(s *trace.Span) string {
	switch {
	case s.Name == "":
		return string(s.Stage)
	case s.Stage == record.Schedule || s.Stage == record.Bind:
		return string(s.Stage) + " → " + s.Name
	}
	return string(s.Stage) + " " + s.Name
}

// note returns details of a stage, beside its bar.
func note(t *trace.Timeline, s *trace.Span) string {
	var notes []string
	if s.Count > 1 {
		notes = append(notes, fmt.Sprintf("%d times", s.Count))
	}
	if s.Bytes > 0 {
		rate := ""
		if d := s.Duration(); d > time.Millisecond {
			rate = ", " + size(int64(float64(s.Bytes)/d.Seconds())) + "/s"
		}
		notes = append(notes, size(s.Bytes)+rate)
	}
	if s.Peak > 0 {
		notes = append(notes, size(s.Peak)+" of memory")
	}
	switch {
	case s.Stage == record.Request && s.By != "":
		notes = append(notes, s.By)
	case s.Error == "" && s.Message != "" && s.Parent == 0 && len(s.Message) < 60:
		notes = append(notes, s.Message)
	}
	if !t.Settled && s.Wait && s.End.Equal(t.End) {
		notes = append(notes, "so far")
	}
	return oneline.Of(strings.Join(notes, ", "))
}

// span writes the line of a stage and, below it, why it failed. said holds errors that were written.
func (p *sheet) span(r entry, said map[string]bool) {
	s := r.span
	mark, label, took := "  ", clip(strings.Repeat("  ", r.depth)+oneline.Of(title(s)), p.label), Took(s.Duration())
	if s.Moment {
		took = ""
	}
	code, emphasis := "34", ""
	switch {
	case s.Error != "":
		code, emphasis = "31", "31"
	case s.Critical:
		code, emphasis = "33", "1"
	case s.Wait:
		code, emphasis = "2", "2"
	}
	if s.Critical {
		mark = p.paint("33", "┃") + " "
	}
	p.line(mark + p.paint(emphasis, pad(label, p.label)) + " " + p.paint(emphasis, fmt.Sprintf("%7s", took)) + "  " + p.bar(s, code))
	indent := strings.Repeat(" ", 2*r.depth+4)
	if s.Error != "" && !said[s.Error] {
		p.wrap(indent+"! ", indent+"  ", s.Error, "31")
		said[s.Error] = true
	}
	if s.Stage == record.Schedule && (s.Error != "" || p.o.All) {
		for _, v := range s.Verdicts {
			p.wrap(indent+"- ", indent+"  ", nodes(v)+": "+v.Plugin+": "+v.Reason, "")
		}
	}
}

// nodes names those of a verdict.
func nodes(v record.Verdict) string {
	const most = 5
	if len(v.Nodes) == 0 { // the reader may not know their names
		return fmt.Sprintf("%d nodes", v.Count)
	}
	text := strings.Join(v.Nodes[:min(most, len(v.Nodes))], ", ")
	if more := v.Count - min(most, len(v.Nodes)); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// at is the place of a time in the chart, in columns.
func (p *sheet) at(t time.Time) float64 {
	f := float64(t.Sub(p.t.Begin)) / float64(p.total)
	return min(max(f, 0), 1) * float64(p.chart)
}

// bar draws a stage, with a note beside it where there is room.
func (p *sheet) bar(s *trace.Span, code string) string {
	from, to := p.at(s.Begin), p.at(s.End)
	column := min(int(from), p.chart-1)
	drawn := "◆"
	switch {
	case s.Moment:
	case s.Wait:
		glyph := "─"
		if s.Critical {
			glyph = "━"
		}
		drawn = strings.Repeat(glyph, max(int(math.Round(to))-column, 1))
	default:
		drawn = blocks(from, to, column)
	}
	end := column + utf8.RuneCountInString(drawn)
	text := note(p.t, s)
	switch n := utf8.RuneCountInString(text); {
	case text == "":
	case n+2 <= p.chart-end:
		return strings.Repeat(" ", column) + p.paint(code, drawn) + " " + p.paint("2", text)
	case n+1 <= column:
		return strings.Repeat(" ", column-n-1) + p.paint("2", text) + " " + p.paint(code, drawn)
	case p.chart-end > 12 && p.chart-end >= column:
		return strings.Repeat(" ", column) + p.paint(code, drawn) + " " + p.paint("2", cut(text, p.chart-end-1))
	case column > 12:
		return p.paint("2", pad(cut(text, column-1), column)) + p.paint(code, drawn)
	}
	return strings.Repeat(" ", column) + p.paint(code, drawn)
}

// blocks draws a bar with blocks of an eighth of a column.
func blocks(from, to float64, column int) string {
	eighths := []string{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"}
	full := int(to)
	if full <= column { // within one column
		return eighths[min(max(int(math.Round((to-from)*8)), 1), 8)]
	}
	var b strings.Builder
	if from-float64(column) >= 0.5 {
		b.WriteString("▐")
	} else {
		b.WriteString("█")
	}
	b.WriteString(strings.Repeat("█", full-column-1))
	b.WriteString(eighths[int((to-float64(full))*8)])
	return b.String()
}

// axis writes the times above the chart.
func (p *sheet) axis() {
	step := tick(p.total, p.chart/10)
	var b strings.Builder
	b.WriteString(strings.Repeat(" ", p.chartAt))
	column := 0
	for at := time.Duration(0); at <= p.total; at += step {
		text := short(at)
		place := int(float64(at) / float64(p.total) * float64(p.chart))
		if place+len(text) > p.chart || place < column {
			break
		}
		b.WriteString(strings.Repeat(" ", place-column) + text)
		column = place + len(text)
	}
	p.line(p.paint("2", b.String()))
}

// tick is a round distance, so that at most n fit into total.
func tick(total time.Duration, n int) time.Duration {
	steps := []time.Duration{1, 2, 5}
	for unit := time.Microsecond; unit <= 10*time.Second; unit *= 10 {
		for _, s := range steps {
			if d := s * unit; d < 60*time.Second && total/d < time.Duration(max(n, 2)) {
				return d
			}
		}
	}
	for d := time.Minute; ; d *= 2 {
		if total/d < time.Duration(max(n, 2)) {
			return d
		}
	}
}

// short is a round duration without needless digits: 0, 200ms, 1s, 1m30s.
func short(d time.Duration) string {
	if d == 0 {
		return "0"
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// shares writes what the time went to, by stage.
func (p *sheet) shares() {
	if len(p.t.Stages) == 0 {
		return
	}
	p.line("")
	p.line(p.paint("1", "Where the time went") + p.paint("2", fmt.Sprintf(" (the critical path, marked ┃, explains %s)", share(p.t.Covered))))
	const most, least = 9, 0.005
	shown := 0
	for shown < len(p.t.Stages) && (p.o.All || shown < most && (shown < 3 || p.t.Stages[shown].Share >= least)) {
		shown++
	}
	if shown == len(p.t.Stages)-1 {
		shown++
	}
	name := 8
	for _, s := range p.t.Stages[:shown] {
		name = max(name, len(s.Stage))
	}
	const bar = 20
	for _, s := range p.t.Stages[:shown] {
		f := min(max(s.Share, 0), 1) * bar
		drawn := blocks(0, f, 0)
		p.line(fmt.Sprintf("  %-*s %7s %4s  ", name, s.Stage, Took(s.Took), share(s.Share)) + p.paint("33", drawn) +
			strings.Repeat(" ", bar+1-utf8.RuneCountInString(drawn)) + p.paint("2", cut(about[s.Stage], p.width-name-39)))
	}
	var rest trace.Total
	for _, s := range p.t.Stages[shown:] {
		rest.Took, rest.Share = rest.Took+s.Took, rest.Share+s.Share
	}
	if n := len(p.t.Stages) - shown; n > 0 {
		p.line(fmt.Sprintf("  %-*s %7s %4s", name, fmt.Sprintf("%d others", n), Took(rest.Took), share(rest.Share)))
	}
}

// clip shortens text to n characters. What names an image or a path is at its end, so the middle goes.
func clip(text string, n int) string {
	runes := []rune(text)
	if len(runes) <= n || n < 4 {
		return text
	}
	head := n / 3
	return string(runes[:head]) + "…" + string(runes[len(runes)-(n-head-1):])
}

// cut shortens text to n characters at its end.
func cut(text string, n int) string {
	if runes := []rune(text); len(runes) > n && n > 0 {
		return string(runes[:n-1]) + "…"
	}
	return text
}

func pad(text string, n int) string {
	return text + strings.Repeat(" ", max(n-utf8.RuneCountInString(text), 0))
}
