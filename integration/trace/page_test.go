package trace

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/trace"
	"kubelith.io/kubelith/trace/api"
	"kubelith.io/kubelith/trace/render"
)

// chromium is a headless Chromium.
type chromium struct{ ctx context.Context }

// browser is a tab of Chromium, and what it complained about.
type browser struct {
	ctx context.Context

	mu       sync.Mutex
	trouble  []string // errors of the console, exceptions, dialogs
	requests []string // addresses that it asked
}

// startChromium starts Chromium. It is Debian's package chromium, which `make integration` installs.
func startChromium(t *testing.T) *chromium {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("the page is not tested: no chromium (scripts/deps.sh chromium installs it)")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.WindowSize(1280, 900),
		chromedp.WSURLReadTimeout(harness.Patience(time.Minute)))
	ctx, end := context.WithCancel(t.Context())
	t.Cleanup(end)
	ctx, cancel := chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	// The context of the first Run is Chromium's, so it cannot have this limit itself.
	late := time.AfterFunc(harness.Patience(2*time.Minute), end)
	defer late.Stop()
	if err := chromedp.Run(ctx); err != nil {
		t.Fatal(err)
	}
	return &chromium{ctx}
}

// open opens a tab, in front of the others: Chromium draws that one only.
func (c *chromium) open(t *testing.T) *browser {
	t.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, harness.Patience(2*time.Minute))
	t.Cleanup(cancel)
	b := &browser{}
	b.ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	chromedp.ListenTarget(b.ctx, b.note)
	b.run(t, network.Enable(), log.Enable(), runtime.Enable(), page.BringToFront())
	return b
}

func (b *browser) note(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		b.trouble = append(b.trouble, fmt.Sprint("console: ", e.Type))
	case *runtime.EventExceptionThrown:
		b.trouble = append(b.trouble, e.ExceptionDetails.Error())
	case *log.EventEntryAdded:
		b.trouble = append(b.trouble, e.Entry.Text)
	case *page.EventJavascriptDialogOpening:
		b.trouble = append(b.trouble, "dialog: "+e.Message)
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	}
}

func (b *browser) run(t *testing.T, actions ...chromedp.Action) {
	t.Helper()
	if err := chromedp.Run(b.ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

// js returns the value of an expression in the page.
func js[T any](t *testing.T, b *browser, expression string) (value T) {
	t.Helper()
	b.run(t, chromedp.Evaluate(expression, &value))
	return value
}

// holds waits until an expression in the page is true.
func (b *browser) holds(t *testing.T, expression string) {
	t.Helper()
	var ok bool
	if err := chromedp.Run(b.ctx, chromedp.Poll("Boolean("+expression+")", &ok, chromedp.WithPollingTimeout(harness.Patience(20*time.Second)))); err != nil || !ok {
		t.Errorf("not true: %s: %v", expression, err)
	}
}

// quiet checks that the page complained about nothing, and asked for nothing but itself and what the test knows of.
func (b *browser) quiet(t *testing.T, known ...string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.trouble) > 0 {
		t.Errorf("the browser reports: %q", b.trouble)
	}
	for _, url := range b.requests {
		if !strings.HasPrefix(url, "data:") && !slices.ContainsFunc(known, func(k string) bool { return strings.HasPrefix(url, k) }) {
			t.Errorf("the page asked for %s", url)
		}
	}
}

func readTimeline(t *testing.T, name string) *trace.Timeline {
	t.Helper()
	text, err := os.ReadFile("../../trace/render/testdata/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	timeline := &trace.Timeline{}
	if err := json.Unmarshal(text, timeline); err != nil {
		t.Fatal(err)
	}
	return timeline
}

// pageFile writes a page to a file, and returns its address.
func pageFile(t *testing.T, timelines ...*trace.Timeline) string {
	t.Helper()
	var text bytes.Buffer
	if err := render.HTML(&text, timelines, false); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "trace.html")
	if err := os.WriteFile(file, text.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return "file://" + file
}

const (
	rowCount = `document.querySelectorAll('.row').length`
	rulerSay = `[...document.querySelectorAll('#ruler span')].map((e) => e.textContent).join(' ')`
)

// rowOf finds the row of a stage.
func rowOf(title string) string {
	return fmt.Sprintf("[...document.querySelectorAll('.row')].find((r) => r.querySelector('.name').title === %q)", title)
}

// center is the middle of an element on the screen.
func center(t *testing.T, b *browser, element string) (x, y float64) {
	t.Helper()
	at := js[[]float64](t, b, "(() => { const e = "+element+"; e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2] })()")
	return at[0], at[1]
}

// TestPage: the page in a browser. Each part has its own tab.
func TestPage(t *testing.T) {
	c := startChromium(t)
	t.Run("use", func(t *testing.T) { testUse(t, c) })
	t.Run("injects", func(t *testing.T) { testInjects(t, c) })
	t.Run("lives", func(t *testing.T) { testLives(t, c) })
}

// testUse opens the page from a file, and uses it with keyboard and mouse.
func testUse(t *testing.T, c *chromium) {
	b := c.open(t)
	url := pageFile(t, readTimeline(t, "deployment"))
	b.run(t, chromedp.Navigate(url), chromedp.WaitVisible(".row", chromedp.ByQuery))

	t.Run("rows", func(t *testing.T) {
		if n := js[int](t, b, rowCount); n < 40 {
			t.Errorf("%d rows", n)
		}
		b.holds(t, `document.getElementById('summary').textContent.includes('2 of 2 pods are ready')`)
		b.holds(t, `document.querySelectorAll('.row.critical').length > 20 && !!document.querySelector('.row:not(.critical)')`)
		b.holds(t, `document.querySelectorAll('#overview b').length > 20`)
		b.holds(t, `document.title.startsWith('deployment/web')`)
	})
	t.Run("zoom", func(t *testing.T) {
		whole := js[string](t, b, rulerSay)
		b.run(t, chromedp.KeyEvent("+"), chromedp.KeyEvent("+"))
		closer := js[string](t, b, rulerSay)
		b.run(t, chromedp.KeyEvent(kb.ArrowRight))
		moved := js[string](t, b, rulerSay)
		b.run(t, chromedp.KeyEvent("-"))
		further := js[string](t, b, rulerSay)
		b.run(t, chromedp.KeyEvent("0"))
		if all := []string{whole, closer, moved, further}; len(slices.Compact(all)) != 4 || js[string](t, b, rulerSay) != whole {
			t.Errorf("the ruler: %q", all)
		}
		b.run(t, chromedp.Click("#in", chromedp.ByQuery))
		if got := js[string](t, b, rulerSay); got == whole {
			t.Error("the button + does nothing")
		}
		b.run(t, chromedp.Click("#whole", chromedp.ByQuery))
		x, y := center(t, b, "document.getElementById('ruler')")
		b.run(t, input.DispatchMouseEvent(input.MouseWheel, x, y).WithDeltaX(0).WithDeltaY(-300))
		b.holds(t, rulerSay+" !== "+fmt.Sprintf("%q", whole))
		b.run(t, chromedp.KeyEvent("0"))
		// Drag across the second half.
		b.run(t, input.DispatchMouseEvent(input.MousePressed, x, y).WithButton(input.Left).WithClickCount(1),
			input.DispatchMouseEvent(input.MouseMoved, x+100, y).WithButton(input.Left),
			input.DispatchMouseEvent(input.MouseMoved, x+200, y).WithButton(input.Left),
			input.DispatchMouseEvent(input.MouseReleased, x+200, y).WithButton(input.Left).WithClickCount(1))
		b.holds(t, "document.getElementById('said').textContent.startsWith('From 2.')")
		b.run(t, chromedp.KeyEvent("0"))
	})
	t.Run("evidence", func(t *testing.T) {
		x, y := center(t, b, rowOf("schedule → n1")+".querySelector('.name')")
		b.run(t, chromedp.MouseClickXY(x, y))
		for _, want := range []string{"schedule → n1", "Insufficient memory", "TaintToleration", "PodTopologySpread", "322", "prefilter"} {
			b.holds(t, fmt.Sprintf("document.getElementById('evidence').textContent.includes(%q)", want))
		}
		b.run(t, chromedp.KeyEvent(kb.Escape))
		b.holds(t, "document.getElementById('evidence').hidden")
		// By keyboard: from the row that has the focus to the next one, and back.
		b.run(t, chromedp.KeyEvent(kb.ArrowDown), chromedp.KeyEvent(kb.Enter))
		b.holds(t, "document.activeElement.id === 'evidence' && document.getElementById('evidence').textContent.includes('bind → n1')")
		b.run(t, chromedp.KeyEvent(kb.Escape))
		b.holds(t, "document.activeElement === "+rowOf("bind → n1"))
		b.run(t, chromedp.KeyEvent(" "))
		b.holds(t, rowOf("prebind VolumeBinding")+" && "+rowOf("bind → n1")+".getAttribute('aria-expanded') === 'true'")
		if n := js[int](t, b, "document.querySelectorAll('.row[tabindex=\"0\"]').length"); n != 1 {
			t.Errorf("%d rows are reached with Tab", n)
		}
	})
	t.Run("filter", func(t *testing.T) {
		before := js[int](t, b, rowCount)
		b.run(t, chromedp.KeyEvent("/"))
		b.holds(t, "document.activeElement.id === 'filter'")
		// The protocol types the character even though the page took the key.
		b.run(t, chromedp.Evaluate("document.getElementById('filter').value = ''", nil), chromedp.SendKeys("#filter", "pull acme", chromedp.ByQuery))
		b.holds(t, rowCount+" === 3")
		b.run(t, chromedp.SendKeys("#filter", " moon", chromedp.ByQuery))
		b.holds(t, "!document.getElementById('none').hidden")
		b.run(t, chromedp.KeyEvent(kb.Escape))
		b.holds(t, fmt.Sprint(rowCount, " === ", before))
		b.run(t, chromedp.Click("#only", chromedp.ByQuery))
		b.holds(t, fmt.Sprint(rowCount, " < ", before, " && document.querySelectorAll('.row[aria-level=\"2\"]:not(.critical)').length === 0"))
		b.run(t, chromedp.Click("#only", chromedp.ByQuery))
	})
	t.Run("light and dark", func(t *testing.T) {
		const back = "getComputedStyle(document.body).backgroundColor"
		system := func(scheme string) chromedp.Action {
			return emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}})
		}
		b.run(t, system("light"))
		b.holds(t, back+" === 'rgb(255, 255, 255)'")
		contrast(t, b)
		picture(t, b, "light")
		b.run(t, system("dark"))
		b.holds(t, back+" === 'rgb(20, 23, 28)'")
		contrast(t, b)
		picture(t, b, "dark")
		b.run(t, chromedp.Click("#theme", chromedp.ByQuery))
		b.holds(t, back+" === 'rgb(255, 255, 255)'")
	})
	b.quiet(t, url)
}

// contrast checks that all text stands out from what is behind it, as WCAG 2 asks at level AA.
func contrast(t *testing.T, b *browser) {
	t.Helper()
	b.run(t, chromedp.Evaluate(rowOf("schedule → n1")+".click()", nil))
	weak := js[[]string](t, b, `(() => {
		const rgb = (c) => c.match(/[\d.]+/g).map(Number);
		const light = (c) => rgb(c).slice(0, 3).map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
			.reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
		const weak = [];
		for (const e of document.querySelectorAll('body *')) {
			if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility() || e.disabled || /SCRIPT|NOSCRIPT/.test(e.tagName)) continue;
			let behind = e;
			while (behind && (rgb(getComputedStyle(behind).backgroundColor)[3] === 0)) behind = behind.parentElement;
			const [a, b] = [light(getComputedStyle(e).color), light(getComputedStyle(behind || document.body).backgroundColor)].sort((x, y) => y - x);
			if ((a + 0.05) / (b + 0.05) < 4.5) weak.push(e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 30) + ' ' + ((a + 0.05) / (b + 0.05)).toFixed(2));
		}
		return weak;
	})()`)
	if len(weak) > 0 {
		t.Errorf("hard to read: %q", weak)
	}
	b.run(t, chromedp.KeyEvent(kb.Escape))
}

// picture keeps a screenshot for developers.
func picture(t *testing.T, b *browser, name string) {
	t.Helper()
	dir := os.Getenv("KUBELITH_TRACE_KEEP")
	if dir == "" {
		return
	}
	var png []byte
	b.run(t, chromedp.Evaluate(rowOf("schedule → n1")+".click()", nil), chromedp.CaptureScreenshot(&png), chromedp.KeyEvent(kb.Escape))
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		t.Error(err)
	}
}

// testInjects: names from users and messages from programs stay text.
func testInjects(t *testing.T, c *chromium) {
	const evil = `</script><script>alert(1)</script><img src="x" onerror="alert(2)">`
	timeline := readTimeline(t, "failing")
	timeline.Outcome, timeline.SetOff, timeline.Object.Name, timeline.Notices = evil, evil, evil, []string{evil}
	for i := range timeline.Spans {
		s := &timeline.Spans[i]
		s.Name, s.Error, s.Message, s.By, s.Object.Name, s.Node = evil, evil, evil, evil, evil, evil
		for j := range s.Verdicts {
			s.Verdicts[j].Reason = evil
		}
	}
	b := c.open(t)
	url := pageFile(t, timeline, timeline)
	b.run(t, chromedp.Navigate(url), chromedp.WaitVisible(".row", chromedp.ByQuery), chromedp.Evaluate(`document.querySelectorAll('.row').forEach((r) => r.click())`, nil))
	b.holds(t, "document.images.length === 0 && document.scripts.length === 2")
	b.holds(t, fmt.Sprintf("document.getElementById('summary').textContent.includes(%q)", evil))
	b.quiet(t, url)
}

// testLives: with a server behind it the page follows what happens.
func testLives(t *testing.T, c *chromium) {
	whole := readTimeline(t, "deployment")
	part := *whole
	part.Settled, part.Outcome, part.Seq, part.Spans, part.End = false, "0 of 2 pods are ready", 40, whole.Spans[:60], whole.Spans[59].End
	part.Critical = nil
	first, more := make(chan struct{}), make(chan struct{})
	answer := func(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }
	site := http.NewServeMux()
	site.HandleFunc("/secret/{$}", func(w http.ResponseWriter, _ *http.Request) { _ = render.HTML(w, nil, true) })
	site.HandleFunc("/secret/recent", func(w http.ResponseWriter, req *http.Request) {
		switch req.FormValue("after") {
		case "0":
			answer(w, api.Recent{Seq: 7})
			return
		case "7":
			select {
			case <-first:
			case <-req.Context().Done():
			}
		default:
			<-req.Context().Done()
			return
		}
		answer(w, api.Recent{Seq: 8, Timelines: []trace.Summary{{Object: whole.Object, What: "create", Took: time.Second}}})
	})
	site.HandleFunc("/secret/timeline", func(w http.ResponseWriter, req *http.Request) {
		switch req.FormValue("after") {
		case "0":
			answer(w, &part)
		case "40":
			select {
			case <-more:
			case <-req.Context().Done():
			}
			answer(w, whole)
		default:
			<-req.Context().Done()
		}
	})
	server := httptest.NewServer(site)
	t.Cleanup(server.Close)
	b := c.open(t)
	t.Cleanup(server.CloseClientConnections)
	b.run(t, chromedp.Navigate(server.URL+"/secret/"))
	b.holds(t, `document.getElementById('list').textContent.includes('Nothing yet')`)
	b.run(t, chromedp.Click("#in", chromedp.ByQuery), chromedp.Click("#whole", chromedp.ByQuery), chromedp.KeyEvent("+"))
	close(first)
	b.run(t, chromedp.WaitVisible(".row", chromedp.ByQuery))
	b.holds(t, `document.getElementById('list').textContent.includes('deployment/web') && document.getElementById('summary').textContent.includes('so far')`)
	// What the user chose stays, with new stages around it.
	b.run(t, chromedp.Evaluate(rowOf("schedule → n1")+".click()", nil))
	close(more)
	b.holds(t, `document.getElementById('summary').textContent.includes('2 of 2 pods are ready')`)
	b.holds(t, `document.querySelector('.row[aria-selected=true] .name').title === 'schedule → n1' && document.activeElement.classList.contains('row')`)
	b.quiet(t, server.URL+"/secret/")
}
