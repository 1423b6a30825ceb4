package render_test

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"kubelith.io/kubelith/trace"
	"kubelith.io/kubelith/trace/render"
)

var block = regexp.MustCompile(`(?s)<script id="data" type="application/json">(.*?)</script>`)

// Names and messages come from users and programs: none may become a part of the page.
func TestHTMLEscapes(t *testing.T) {
	const evil = "</script><img src=x onerror=alert(1)>\u2028<!--<script>{{script}}{{data}}"
	timeline := fixture(t, "failing")
	timeline.Outcome, timeline.SetOff, timeline.Object.Name = evil, evil, evil
	timeline.Notices = []string{evil}
	for i := range timeline.Spans {
		s := &timeline.Spans[i]
		s.Name, s.Error, s.Message, s.By, s.Object.Name, s.Node = evil, evil, evil, evil, evil, evil
	}
	var with, without bytes.Buffer
	if err := render.HTML(&with, []*trace.Timeline{timeline}, false); err != nil {
		t.Fatal(err)
	}
	if err := render.HTML(&without, nil, false); err != nil {
		t.Fatal(err)
	}
	data := block.FindSubmatch(with.Bytes())
	if data == nil {
		t.Fatal("the page has no data")
	}
	// Apart from the data the pages are the same, and the data has no character that HTML knows.
	if got, want := block.ReplaceAllString(with.String(), ""), block.ReplaceAllString(without.String(), ""); got != want {
		t.Error("the timeline changed the page outside of its data")
	}
	if i := bytes.IndexAny(data[1], "<>&\u2028"); i >= 0 {
		t.Errorf("the data has %q", data[1][i:i+10])
	}
	var back struct{ Timelines []*trace.Timeline }
	if err := json.Unmarshal(data[1], &back); err != nil || back.Timelines[0].Outcome != evil {
		t.Errorf("the data does not come back: %v", err)
	}
}

// The page loads nothing: it works from a file, without a network.
func TestHTMLIsSelfContained(t *testing.T) {
	for _, live := range []bool{false, true} {
		var out bytes.Buffer
		if err := render.HTML(&out, []*trace.Timeline{fixture(t, "deployment")}, live); err != nil {
			t.Fatal(err)
		}
		text := block.ReplaceAllString(out.String(), "")
		for _, not := range []string{"http://", "https://", "src=", "@import", "url(", "innerHTML", "{{"} {
			if strings.Contains(text, not) {
				t.Errorf("live %v: the page has %s", live, not)
			}
		}
		if !strings.Contains(text, "default-src 'none'") || strings.Contains(text, "connect-src") != live {
			t.Errorf("live %v: the policy is another one", live)
		}
		if file := os.Getenv("KUBELITH_TRACE_PAGE"); file != "" && !live { // to look at it
			if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
				t.Error(err)
			}
		}
	}
}
