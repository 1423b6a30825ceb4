package plugins

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/plugins/pluginadmin"
)

const (
	badPath = "/opt/kubelith/bad/badplugin" // where the tests' executables lie, inside the sandbox
	pause   = 20 * time.Millisecond         // between two requests of a load, which leaves the cores to what is tested
)

// entry is one plugin of the configuration.
func entry(name, policy string, more ...string) string {
	timeout := "1s"
	if name == "good" { // it must not miss one
		timeout = "5s"
	}
	return fmt.Sprintf("  - {name: %s, kind: admission, path: %s, failurePolicy: %s, timeout: %s%s}\n",
		name, badPath, policy, timeout, strings.Join(append([]string{""}, more...), ", "))
}

// faultyServer has the executable of badplugin, and a configuration with these plugins; it is not started.
func faultyServer(t *testing.T, entries ...string) *harness.Server {
	t.Helper()
	s := harness.New(t, harness.Options{NoTestImage: true, ConfigYAML: pluginsHeader + strings.Join(entries, ""), Disable: withoutNode})
	install(t, s, harness.BuildProgram(t, "./badplugin"), badPath)
	return s
}

// create asks for a ConfigMap that the named plugin reviews, as a dry run. It returns it as it would be.
func create(ctx context.Context, client kubernetes.Interface, plugin, fault string) (*corev1.ConfigMap, error) {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "fault-", Labels: map[string]string{"plugin": plugin}}}
	if fault != "" {
		object.Annotations = map[string]string{"fault": fault}
	}
	return client.CoreV1().ConfigMaps("default").Create(ctx, object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

// reviewed fails unless the plugin answers, and has changed the object.
func reviewed(ctx context.Context, client kubernetes.Interface, plugin string) error {
	object, err := create(ctx, client, plugin, "")
	if err == nil && object.Annotations["reviewed"] != "yes" {
		err = fmt.Errorf("%s did not review the object", plugin)
	}
	return err
}

const (
	missingPath = "/opt/kubelith/bad/missing" // where no executable is
	plainPath   = "/opt/kubelith/bad/plain"   // where one lies that is not executable
)

// startFault is a plugin that cannot start.
type startFault struct {
	more []string // of the entry
	path string
	want string // in the message
}

// TestFaults: plugins that go wrong, side by side with a good one, first those that cannot start, then others that go
// wrong in a call.
func TestFaults(t *testing.T) {
	t.Parallel()
	wrongSum := strings.Repeat("ab", 32)
	cases := map[string]startFault{
		"missing":  {path: missingPath, want: missingPath + " does not exist"},
		"plain":    {path: plainPath, want: "chmod"},
		"checksum": {more: []string{"sha256: " + wrongSum}, want: wrongSum[:12]},
		"exits":    {more: []string{"args: [exits]"}, want: "cannot open the database: no such file"},
		"garbage":  {more: []string{"args: [garbage]"}, want: "I am no plugin"},
		"silent":   {more: []string{"args: [silent]"}, want: "handshake"},
		"protocol": {more: []string{"args: [protocol]"}, want: "99"},
		"refuses":  {more: []string{"args: [refuses]"}, want: "the licence is missing"},
	}
	entries := []string{entry("good", "Fail")}
	for name, c := range cases {
		e := entry(name, "Ignore", c.more...)
		if c.path != "" {
			e = strings.Replace(e, badPath, c.path, 1)
		}
		entries = append(entries, e)
	}
	s := faultyServer(t, entries...)
	install(t, s, harness.BuildProgram(t, "./badplugin"), plainPath)
	if err := os.Chmod(s.Path(plainPath), 0o644); err != nil {
		t.Fatal(err)
	}
	s.Launch(t)
	s.WaitAPI(t)
	waitPhase(t, s, "good", "ready")
	t.Run("at the start", func(t *testing.T) { testStartFaults(t, s, cases) })

	// The same good plugin goes on, beside others: the bad ones would be started again and again.
	configure(t, s, "plugins:\n"+entries[0]+entry("strict", "Fail", "limits: {memory: 64Mi, uid: auto}")+entry("lenient", "Ignore", "limits: {memory: 64Mi, uid: auto}"))
	harness.Eventually(t, soon, "the bad plugins to be gone", func() error {
		if all, err := tryList(t, s); err != nil || len(all) != 3 {
			return fmt.Errorf("%+v, %w", all, err)
		}
		return nil
	})
	t.Run("in a call", func(t *testing.T) { testCallFaults(t, s) })
}

// testStartFaults: each failure is logged in one line, the plugin's requests follow its failure policy, and nothing
// else is affected.
func testStartFaults(t *testing.T, s *harness.Server, cases map[string]startFault) {
	for name, c := range cases {
		state := wait(t, s, name, "has failed with "+c.want, func(p pluginadmin.Plugin) bool {
			return (p.Phase == "backoff" || p.Phase == "failed") && strings.Contains(p.Message, c.want)
		})
		if strings.Contains(state.Message, "\n") || strings.ContainsRune(state.Message, 0) {
			t.Errorf("%s: the message is %q, want one line with %q", name, state.Message, c.want)
		}
		if !strings.Contains(s.Logs(), "plugin="+name) {
			t.Errorf("%s: nothing in the log", name)
		}
	}
	if err := reviewed(t.Context(), s.Client(t), "good"); err != nil {
		t.Error(err)
	}
	// What was missing is started as soon as it is there.
	install(t, s, harness.BuildProgram(t, "./badplugin"), missingPath)
	waitPhase(t, s, "missing", "ready")
	harness.Eventually(t, 30*time.Second, "it to review", func() error { return reviewed(t.Context(), s.Client(t), "missing") })
}

// testCallFaults: the request follows the failure policy, the good plugin beside goes on, and the bad one is back
// afterwards.
func testCallFaults(t *testing.T, s *harness.Server) {
	client := s.Client(t)
	for _, name := range []string{"good", "strict", "lenient"} {
		waitPhase(t, s, name, "ready")
		harness.Eventually(t, 30*time.Second, name+" to review", func() error { return reviewed(t.Context(), client, name) })
	}
	// A plugin with its own user cannot redirect what root renews for it, nor read another plugin's.
	harness.Eventually(t, 30*time.Second, "the plugin to report of its attack", func() error {
		_, err := create(t.Context(), client, "strict", "attack")
		switch {
		case err == nil:
			return harness.Permanent(errors.New("it reports nothing"))
		case strings.Contains(err.Error(), "nothing was possible"):
			return nil
		case unanswered.MatchString(err.Error()):
			return err
		}
		return harness.Permanent(err)
	})
	stop := make(chan struct{})
	var load sync.WaitGroup
	load.Go(func() { // the good plugin is asked all the time
		for n := 0; ; n++ {
			select {
			case <-stop:
				t.Logf("the good plugin reviewed %d objects meanwhile", n)
				return
			case <-time.After(pause):
				if err := reviewed(context.Background(), client, "good"); err != nil {
					t.Errorf("the good plugin: %v", err)
					return
				}
			}
		}
	})
	for _, fault := range []string{"crash", "exit", "hang", "sleep", "leak", "patch", "huge", "error"} {
		for _, name := range []string{"strict", "lenient"} {
			harness.Eventually(t, 90*time.Second, name+" to answer before "+fault, func() error { return reviewed(t.Context(), client, name) })
			ctx, cancel := context.WithTimeout(t.Context(), harness.Patience(30*time.Second))
			object, err := create(ctx, client, name, fault)
			late := ctx.Err() != nil
			cancel()
			switch {
			case late:
				t.Errorf("%s of %s: the request had no answer", fault, name)
			case name == "strict" && (err == nil || !strings.Contains(err.Error(), name)):
				t.Errorf("%s of %s: error %v, want a refusal that names the plugin", fault, name, err)
			case name == "lenient" && err != nil:
				t.Errorf("%s of %s: %v, want the request to pass", fault, name, err)
			case name == "lenient" && object.Annotations["reviewed"] != "":
				t.Errorf("%s of %s: the object was changed", fault, name)
			}
			if fault == "leak" { // it may answer other calls until its memory is used up, or be killed before because it answers none
				harness.Eventually(t, 90*time.Second, name+" to be killed for its memory", func() error {
					if !outOfMemory(s, name) {
						_, err := create(t.Context(), client, name, fault)
						return fmt.Errorf("the log does not say so; another leak: %v", err)
					}
					return nil
				})
			}
		}
	}
	harness.Eventually(t, 30*time.Second, "a plugin with policy Ignore to deny", func() error {
		_, err := create(t.Context(), client, "lenient", "deny")
		if err == nil {
			return errors.New("the object was accepted") // as it is when the plugin does not answer in time
		}
		if !strings.Contains(err.Error(), "this one is never allowed") {
			return harness.Permanent(err)
		}
		return nil
	})
	close(stop)
	load.Wait()
}

// unanswered is in the error of a call to a plugin that is too slow, or starts again.
var unanswered = regexp.MustCompile("did not answer in time|is not running|did not answer a health check")

// outOfMemory reports whether the log says that the plugin was killed because it used all of its memory.
func outOfMemory(s *harness.Server, plugin string) bool {
	for line := range strings.Lines(s.Logs()) {
		if strings.Contains(line, "used all of its 64 MiB of memory") && strings.Contains(line, "plugin="+plugin) {
			return true
		}
	}
	return false
}

// TestRandomKills kills and stops plugins at random under load, a hundred times. The good plugin never fails, every
// request has an answer, nothing is orphaned, and the server is as before.
func TestRandomKills(t *testing.T) {
	t.Parallel()
	const victims, kills = 10, 100
	entries := []string{entry("good", "Fail")}
	for i := range victims {
		entries = append(entries, entry(fmt.Sprintf("bad%d", i), []string{"Fail", "Ignore"}[i%2]))
	}
	s := faultyServer(t, entries...)
	s.Launch(t)
	s.WaitAPI(t)
	client := s.Client(t)
	waitPhase(t, s, "good", "ready")
	for i := range victims {
		waitPhase(t, s, fmt.Sprintf("bad%d", i), "ready")
	}
	files := openFiles(t, s.PID())

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var load sync.WaitGroup
	var good, bad, refused atomic.Int64
	load.Go(func() {
		for ctx.Err() == nil {
			if err := reviewed(ctx, client, "good"); err != nil && ctx.Err() == nil {
				t.Errorf("the good plugin: %v", err)
				return
			}
			good.Add(1)
			time.Sleep(pause)
		}
	})
	for i := range victims {
		load.Go(func() {
			for ctx.Err() == nil {
				limit, done := context.WithTimeout(ctx, harness.Patience(20*time.Second))
				_, err := create(limit, client, fmt.Sprintf("bad%d", i), "")
				if limit.Err() == context.DeadlineExceeded {
					t.Errorf("a request that bad%d reviews had no answer", i)
				}
				if done(); err != nil {
					refused.Add(1)
					if i%2 == 1 && ctx.Err() == nil {
						t.Errorf("bad%d has policy Ignore: %v", i, err)
					}
				}
				bad.Add(1)
				time.Sleep(3 * pause)
			}
		})
	}
	random := rand.New(rand.NewPCG(1, 2)) // the same each time
	seen := map[int]string{}
	for n := 0; n < kills; {
		name := fmt.Sprintf("bad%d", random.IntN(victims))
		p := list(t, s)[name]
		if p.PID == 0 {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		seen[p.PID] = name
		signal := []unix.Signal{unix.SIGKILL, unix.SIGTERM, unix.SIGSTOP}[random.IntN(3)]
		if err := unix.Kill(p.PID, signal); err != nil && err != unix.ESRCH {
			t.Fatal(err)
		}
		n++
		time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
	}
	for i := range victims {
		name := fmt.Sprintf("bad%d", i)
		if err := restartPlugin(t, s, name); err != nil { // does not wait for the backoff
			t.Logf("restart %s: %v", name, err)
		}
		p := waitPhase(t, s, name, "ready")
		delete(seen, p.PID)
		harness.Eventually(t, 30*time.Second, name+" to review again", func() error { return reviewed(t.Context(), client, name) })
	}
	cancel()
	load.Wait()
	t.Logf("%d processes were killed or stopped; %d requests reviewed by the good plugin, %d that the bad ones should, %d of them refused", kills, good.Load(), bad.Load(), refused.Load())
	harness.Eventually(t, 15*time.Second, "the killed processes to be gone", func() error {
		for pid, name := range seen {
			if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil && strings.TrimSpace(string(comm)) == "badplugin" {
				return fmt.Errorf("process %d of %s is still there", pid, name)
			}
		}
		return nil
	})
	harness.Eventually(t, 30*time.Second, "the server's open files to be as many as before", func() error {
		if now := openFiles(t, s.PID()); now > files+20 {
			return fmt.Errorf("%d before, %d now", files, now)
		}
		return nil
	})
	s.Kill9(t)
	harness.Eventually(t, 5*time.Second, "the plugins to end with their host", func() error {
		if left := processes(t, s, "badplugin"); len(left) > 0 {
			return fmt.Errorf("processes %v", left)
		}
		return nil
	})
}

func openFiles(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
