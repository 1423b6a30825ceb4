package logging

import (
	"bytes"
	"context"
	encodingjson "encoding/json"
	"errors"
	stdlog "log"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/sirupsen/logrus"
	"go.uber.org/zap"
	"k8s.io/klog/v2"
)

// capture sets everything up and returns what is written without the times. Setup changes the process: tests that use
// it are not parallel.
func capture(t *testing.T, format, level string) (*logrus.Logger, func() []string) {
	t.Helper()
	var out bytes.Buffer
	log, err := Setup(Options{Format: format, Level: level, Out: &out})
	if err != nil {
		t.Fatal(err)
	}
	return log, func() []string {
		klog.Flush()
		var lines []string
		for l := range strings.Lines(out.String()) {
			l = strings.TrimSuffix(l, "\n")
			if stamp, rest, ok := strings.Cut(l, " "); ok && format == "text" && !strings.HasPrefix(l, "\t") {
				if _, err := time.Parse(time.RFC3339, stamp); err != nil {
					t.Errorf("line does not begin with a time: %q", l)
				}
				l = rest
			}
			lines = append(lines, l)
		}
		out.Reset()
		return lines
	}
}

type nilStringer struct{ name string }

func (n *nilStringer) String() string { return n.name }

func TestText(t *testing.T) {
	log, lines := capture(t, "text", "trace")
	var nothing *nilStringer
	for name, tc := range map[string]struct {
		do   func()
		want string
	}{
		"component":       {func() { Component(log, "etcd").WithField("b", 1).WithField("a", "x y").Info("hello world") }, `info  component=etcd hello world a="x y" b=1`},
		"none":            {func() { log.Warn("w") }, `warn  component=kubelith w`},
		"error":           {func() { log.WithError(errors.New("no\nway")).Error("e") }, `error component=kubelith e error="no\nway"`},
		"stack":           {func() { log.Error("panic\nline 2\n") }, "error component=kubelith panic\n\tline 2"},
		"odd values":      {func() { log.WithFields(logrus.Fields{"e": "", "n": nil, "s": []string{"a"}}).Info("m") }, `info  component=kubelith m e="" n=<nil> s=[a]`},
		"containerd":      {func() { logrus.WithField("id", "x").Debug("started") }, `debug component=containerd started id=x`},
		"stdlib":          {func() { stdlog.Printf("http: %s", "odd") }, `info  component=kubelith http: odd`},
		"CoreDNS":         {func() { stdlog.Print("[WARNING] ", "plugin/forward: x") }, `warn  component=dns plugin/forward: x`},
		"CoreDNS fatal":   {func() { stdlog.Print("[FATAL] ", "x") }, `error component=dns x`},
		"stdlib bracket":  {func() { stdlog.Print("[::1] refused") }, `info  component=kubelith [::1] refused`},
		"klog info":       {func() { klog.InfoS("m", "pod", klog.KRef("ns", "p"), "d", time.Second) }, `info  component=kubernetes m d=1s pod=ns/p`},
		"klog error":      {func() { klog.ErrorS(errors.New("boom"), "m") }, `error component=kubernetes m err=boom`},
		"klog nil":        {func() { klog.InfoS("m", "x", nothing) }, `info  component=kubernetes m x="*logging.nilStringer (panic: runtime error: invalid memory address or nil pointer dereference)"`},
		"klog V 2":        {func() { klog.V(2).InfoS("m") }, `debug component=kubernetes m`},
		"klog V 5":        {func() { klog.V(5).InfoS("m") }, `trace component=kubernetes m`},
		"klog V 8":        {func() { klog.V(8).InfoS("body"); klog.Background().V(8).Info("body") }, ``},
		"klog printf":     {func() { klog.Infof("a %d] b", 1) }, `info  component=kubernetes a 1] b`},
		"klog warning":    {func() { klog.Warning("careful") }, `warn  component=kubernetes careful`},
		"klog errorf":     {func() { klog.Errorf("bad") }, `error component=kubernetes bad`},
		"klog odd number": {func() { klog.Background().Info("m", "k") }, `info  component=kubernetes m k="(no value)"`},
		"klog name":       {func() { klog.Background().WithName("garbage").WithName("a").WithName("b").Info("m") }, `info  component=kubernetes m logger=garbage.a.b`},
		"klog context":    {func() { klog.FromContext(WithComponent(context.Background(), "kubelet")).WithName("x").V(1).Info("m") }, `debug component=kubelet m logger=x`},
		"klog's component": {func() {
			klog.FromContext(WithComponent(context.Background(), "storage")).WithValues("component", "x_1").Info("m", "component", "x_2")
		}, `info  component=storage m`},
		"klog empty ctx": {func() { klog.FromContext(context.Background()).Info("m") }, `info  component=kubernetes m`},
		"zap": {func() {
			Zap(Component(log, "etcd")).Named("raft").With(zap.Int("n", 1)).Warn("m", zap.Strings("s", []string{"a"}))
		}, `warn  component=etcd m logger=raft n=1 s=[a]`},
		"zap debug":         {func() { Zap(Component(log, "etcd")).Debug("m", zap.Error(errors.New("e"))) }, `debug component=etcd m error=e`},
		"equals and quotes": {func() { log.WithField("q", `a="b"`).Info("m") }, `info  component=kubelith m q="a=\"b\""`},
	} {
		t.Run(name, func(t *testing.T) {
			tc.do()
			if got := strings.Join(lines(), "\n"); got != tc.want {
				t.Errorf("\ngot  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestLevels(t *testing.T) {
	for level, want := range map[string]string{
		"error": "error error error",
		"warn":  "error warn error error",
		"info":  "error warn info error info error info",
		"debug": "error warn info debug error info debug debug error info debug",
	} {
		t.Run(level, func(t *testing.T) {
			log, lines := capture(t, "text", level)
			log.Error("x")
			log.Warn("x")
			log.Info("x")
			log.Debug("x")
			klog.ErrorS(nil, "x")
			klog.InfoS("x")
			klog.V(4).InfoS("x")
			klog.Background().V(4).Info("x")
			z := Zap(Component(log, "etcd"))
			z.Error("x")
			z.Info("x")
			z.Debug("x")
			var got []string
			for _, l := range lines() {
				got = append(got, strings.Fields(l)[0])
			}
			if s := strings.Join(got, " "); s != want {
				t.Errorf("got %s, want %s", s, want)
			}
		})
	}
}

func TestJSON(t *testing.T) {
	log, lines := capture(t, "json", "info")
	Component(log, "dns").WithFields(logrus.Fields{"msg": "own", "n": 1, "f": func() {}, "c": make(chan int), "e": errors.New("<boom>"), "x": map[any]any{1: 2}}).Warn("two\nlines")
	logrus.Info("ctr")
	got := lines()
	if len(got) != 2 {
		t.Fatalf("%d lines: %q", len(got), got)
	}
	var o map[string]any
	if err := encodingjson.Unmarshal([]byte(got[0]), &o); err != nil {
		t.Fatal(err)
	}
	for k, want := range map[string]any{"component": "dns", "level": "warn", "msg": "two\nlines", "field.msg": "own", "n": 1.0, "e": "<boom>", "x": "map[1:2]"} {
		if o[k] != want {
			t.Errorf("%s is %v, want %v", k, o[k], want)
		}
	}
	if _, err := time.Parse(time.RFC3339, o["time"].(string)); err != nil {
		t.Error(err)
	}
	if !strings.Contains(got[1], `"component":"containerd"`) {
		t.Errorf("%s", got[1])
	}
}

func TestConcurrentLinesStayWhole(t *testing.T) {
	log, lines := capture(t, "text", "info")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				log.Info("x")
				logrus.Info("x")
				klog.Info("x")
				klog.InfoS("x")
			}
		})
	}
	wg.Wait()
	got := lines()
	if len(got) != 8*50*4 {
		t.Errorf("%d lines", len(got))
	}
	for _, l := range got {
		if !strings.HasPrefix(l, "info  component=") || !strings.HasSuffix(l, " x") {
			t.Fatalf("mixed: %q", l)
		}
	}
}

func TestSetupRefuses(t *testing.T) {
	for _, opts := range []Options{{Format: "xml", Level: "info"}, {Format: "text", Level: "loud"}} {
		if _, err := Setup(opts); err == nil || !strings.Contains(err.Error(), "use ") {
			t.Errorf("%+v: error %v", opts, err)
		}
	}
}

// counted counts how often it is asked for its text.
type counted struct{ asked *int }

func (c counted) String() string { *c.asked++; return "text" }

// TestValuesOfNoLine: values of a line that is not written are not touched: they may be objects of a shared cache, and
// some change when they are formatted.
func TestValuesOfNoLine(t *testing.T) {
	asked, lines := 0, &bytes.Buffer{}
	log := logrus.New()
	log.SetOutput(lines)
	l := logr.New(sink{log: log, component: "x"}).WithValues("limit", counted{&asked}, "odd")
	l.V(5).Info("not written", "more", counted{&asked})
	if asked != 0 {
		t.Errorf("asked %d times for nothing", asked)
	}
	l.Info("written", "more", 7)
	if got := lines.String(); asked != 1 || !strings.Contains(got, "limit=text") || !strings.Contains(got, "more=7") || !strings.Contains(got, `odd="(no value)"`) {
		t.Errorf("asked %d times for %s", asked, got)
	}
}
