package render_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"kubelith.io/kubelith/trace"
	"kubelith.io/kubelith/trace/render"
)

var update = flag.Bool("update", false, "write what is printed to testdata")

// fixture reads a timeline of testdata.
func fixture(t testing.TB, name string) *trace.Timeline {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var timeline trace.Timeline
	if err := json.Unmarshal(text, &timeline); err != nil {
		t.Fatal(err)
	}
	return &timeline
}

// many is the Deployment of testdata with n pods: copies of the faster of its two.
func many(t testing.TB, n int) *trace.Timeline {
	timeline := fixture(t, "deployment")
	spans := timeline.Spans
	for i := range n - 2 {
		ids := map[int]int{}
		for _, s := range spans {
			if s.Object.UID != "p2" {
				continue
			}
			ids[s.ID] = len(timeline.Spans) + 1
			s.ID, s.Parent = ids[s.ID], ids[s.Parent]
			s.Object.UID, s.Object.Name = fmt.Sprint("more", i), fmt.Sprintf("web-5d4f8c9b7-%05d", i)
			s.End = s.End.Add(time.Duration(i%100) * 10 * time.Microsecond)
			timeline.Spans = append(timeline.Spans, s)
		}
	}
	timeline.Outcome = fmt.Sprintf("%d of %[1]d pods are ready", n)
	return timeline
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s: %v, run go test ./trace/render -update and look at the difference; got:\n%s", file, err, got)
	}
}

func TestText(t *testing.T) {
	for name, c := range map[string]struct {
		timeline *trace.Timeline
		options  render.Options
	}{
		"deployment":       {fixture(t, "deployment"), render.Options{}},
		"deployment-80":    {fixture(t, "deployment"), render.Options{Width: 80, ASCII: true}},
		"deployment-color": {fixture(t, "deployment"), render.Options{Width: 120, Color: true}},
		"deployment-path":  {fixture(t, "deployment"), render.Options{Path: true}},
		"deployment-all":   {fixture(t, "deployment"), render.Options{All: true, Width: 140}},
		"deployment-brief": {fixture(t, "deployment"), render.Options{Brief: true}},
		"failing":          {fixture(t, "failing"), render.Options{}},
		"deletion":         {fixture(t, "deletion"), render.Options{}},
		"many":             {many(t, 200), render.Options{}},
	} {
		var out bytes.Buffer
		if err := render.Text(&out, c.timeline, c.options); err != nil {
			t.Error(err)
		}
		golden(t, name+".txt", out.Bytes())
		width := max(c.options.Width, 80)
		if c.options.Width == 0 {
			width = 100
		}
		for _, line := range strings.Split(out.String(), "\n") {
			if !c.options.Color && utf8.RuneCountInString(line) > width {
				t.Errorf("%s: longer than %d: %s", name, width, line)
			}
		}
	}
}

// Names and messages come from users and programs: a terminal must not act on them.
func TestTextIsPrintable(t *testing.T) {
	timeline := fixture(t, "failing")
	timeline.Outcome, timeline.SetOff = "bad \x1b]0;title\a", "by \x1b[31m"
	timeline.Notices = []string{"\x9b31m \u202e"}
	for i := range timeline.Spans {
		s := &timeline.Spans[i]
		s.Name, s.Error, s.Message, s.By, s.Object.Name = "\x1b[2J", "\x1b[2J\r", "\x07", "\x1bc", "\x1b[1m"
		for j := range s.Verdicts {
			s.Verdicts[j].Reason = "\x1b[5m"
		}
	}
	for _, all := range []bool{false, true} {
		var out bytes.Buffer
		if err := render.Text(&out, timeline, render.Options{All: all}); err != nil {
			t.Fatal(err)
		}
		if i := strings.IndexAny(out.String(), "\x1b\a\r\u009b\u202e"); i >= 0 {
			t.Errorf("at %d: %q", i, out.String()[max(i-40, 0):i+10])
		}
	}
}

// An empty timeline, and one of a single moment, are no reason to fail.
func TestTextOfLittle(t *testing.T) {
	now := time.Date(2026, 11, 22, 16, 0, 0, 0, time.UTC)
	for _, timeline := range []*trace.Timeline{
		{},
		{Begin: now, End: now, Spans: []trace.Span{{ID: 1, Stage: "event", Name: "Pulled", Begin: now, End: now, Moment: true}}},
		{Begin: now, End: now, Critical: []trace.Segment{{Span: 7, Begin: now, End: now.Add(1)}}},
	} {
		if err := render.Text(&bytes.Buffer{}, timeline, render.Options{Width: 1}); err != nil {
			t.Error(err)
		}
	}
}

func TestTook(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0", 850 * time.Microsecond: "850µs", 9200 * time.Microsecond: "9.2ms", 834600 * time.Microsecond: "835ms",
		999600 * time.Microsecond: "1.00s", 1894 * time.Millisecond: "1.89s", 12345 * time.Millisecond: "12.3s",
		59999 * time.Millisecond: "1m 00s", 62 * time.Second: "1m 02s", 187 * time.Minute: "3h 07m", -time.Second: "-1.00s",
	} {
		if got := render.Took(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}
