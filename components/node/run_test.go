package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/components/node/progress"
	componentstatus "kubelith.io/kubelith/components/worker/status"
)

// TestHeldBack: a process after three that one component has crashed logs the last panic, starts without that
// component, and does not block those that need it.
func TestHeldBack(t *testing.T) {
	const variable = "KUBELITH_TEST_HELD_BACK"
	if dir := os.Getenv(variable); dir != "" {
		if err := heldBack(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
		return
	}
	dir := t.TempDir()
	var crashes strings.Builder
	for range 3 {
		fmt.Fprintf(&crashes, "%d dns panic: ouch\n", time.Now().Unix()-1)
	}
	for name, content := range map[string]string{"crashes": crashes.String(), "crash": "panic: ouch\n\ngoroutine 7 [running]:\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.run=^TestHeldBack$") // it sets what its whole process has once
	cmd.Env = append(os.Environ(), variable+"="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	for _, want := range []string{"a panic ended the previous process:\n\tpanic: ouch\n", "component=dns held back, starting in", "in a row, the last time with"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the log does not have %q: %s", want, out)
		}
	}
}

// heldBack is a process of three components. It ends when that has started which needs dns.
func heldBack(ctx context.Context, dir string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cfg := &config.Node{RunDir: dir, LogFormat: "text", LogLevel: "info"}
	p, err := newProcess(ctx, cfg, Output{Log: os.Stdout})
	if err != nil {
		return err
	}
	defer p.out.Close()
	if err := p.breakLoops(cfg); err != nil {
		return err
	}
	m := &machine{dir: &datadir.Dir{}, status: componentstatus.NewObserver(), ending: make(chan struct{})}
	return p.run(ctx, m, []lifecycle.Component{
		runs{"etcd", nil, lifecycle.EndProcess, func() {}},
		runs{"dns", []string{"etcd"}, lifecycle.RestartBeside, func() { panic("it was to be held back") }},
		runs{"proxy", []string{"dns"}, lifecycle.RestartAlone, cancel},
	}, progress.Goal{})
}

// runs is a component that does something before it is ready.
type runs struct {
	name   string
	needs  []string
	policy lifecycle.Policy
	do     func()
}

func (c runs) Name() string                    { return c.name }
func (c runs) Needs() []string                 { return c.needs }
func (c runs) RestartPolicy() lifecycle.Policy { return c.policy }
func (c runs) Run(ctx context.Context, ready func()) error {
	c.do()
	ready()
	<-ctx.Done()
	return nil
}
