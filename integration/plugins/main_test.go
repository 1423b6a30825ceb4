// Package plugins tests plugins of all kinds on real servers: real executables, started by the server.
package plugins

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/plugins/pluginadmin"
)

func TestMain(m *testing.M) { harness.Main(m) }

// part is a part of a test, on the server of the test.
type part struct {
	name string
	run  func(*testing.T, *harness.Server)
}

// together runs parts of a test beside each other.
func together(t *testing.T, s *harness.Server, parts ...part) {
	t.Helper()
	var all []harness.Part
	for _, p := range parts {
		all = append(all, harness.Part{Name: p.name, Run: func(t *testing.T) { p.run(t, s) }})
	}
	harness.Together(t, 4, all...)
}

// install puts an executable where the server may run it; more bytes at its end make it another file.
func install(t *testing.T, s *harness.Server, program, path string, more ...byte) {
	t.Helper()
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(s.Path(path)), 0o755); err != nil {
		t.Fatal(err)
	}
	fresh := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)) // a running one cannot be written to
	if err := os.WriteFile(s.Path(fresh), append(content, more...), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(s.Path(fresh), s.Path(path)); err != nil {
		t.Fatal(err)
	}
}

// admin calls the server's socket, as `kubelith plugin` does: the program itself would cost more than the answer.
func admin(s *harness.Server) *pluginadmin.Client {
	return pluginadmin.NewClient(s.Path(harness.RunDir + "/" + pluginadmin.SocketName))
}

// restartPlugin replaces the process of a plugin, and returns when the new one is ready or has failed.
func restartPlugin(t *testing.T, s *harness.Server, name string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience(30*time.Second))
	defer cancel()
	_, err := admin(s).Restart(ctx, name)
	return err
}

// list returns the plugins that are not draining, by name.
func list(t *testing.T, s *harness.Server) map[string]pluginadmin.Plugin {
	t.Helper()
	out, err := tryList(t, s)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func tryList(t *testing.T, s *harness.Server) (map[string]pluginadmin.Plugin, error) {
	t.Helper()
	all, err := admin(s).List(t.Context())
	if err != nil {
		return nil, err
	}
	return byName(all), nil
}

func byName(all []pluginadmin.Plugin) map[string]pluginadmin.Plugin {
	out := map[string]pluginadmin.Plugin{}
	for _, p := range all {
		if p.Phase != "draining" {
			out[p.Name] = p
		}
	}
	return out
}

// wait waits until the plugin is as wanted, and returns it. One that has failed often may pause for a minute.
func wait(t *testing.T, s *harness.Server, name, what string, wanted func(pluginadmin.Plugin) bool) (p pluginadmin.Plugin) {
	t.Helper()
	harness.Eventually(t, 90*time.Second, "plugin "+name+" "+what, func() error {
		all, err := tryList(t, s)
		if err != nil {
			return err
		}
		if p = all[name]; !wanted(p) {
			return fmt.Errorf("it is %+v", p)
		}
		return nil
	})
	return p
}

func ready(p pluginadmin.Plugin) bool { return p.Phase == "ready" && p.Message == "" }

func waitPhase(t *testing.T, s *harness.Server, name string, phases ...string) pluginadmin.Plugin {
	t.Helper()
	return wait(t, s, name, "is "+strings.Join(phases, " or "), func(p pluginadmin.Plugin) bool { return slices.Contains(phases, p.Phase) })
}

// metricsOf returns the server's metrics, which `kubectl get --raw=/metrics` prints.
func metricsOf(t *testing.T, s *harness.Server) (string, error) {
	t.Helper()
	text, err := s.Client(t).CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	return string(text), err
}

// waitMetrics waits until the server's metrics are as wanted. It asks every two seconds: they are large, and usage is
// measured every 15 s.
func waitMetrics(t *testing.T, s *harness.Server, timeout time.Duration, what string, wanted func(text string) error) {
	t.Helper()
	harness.Eventually(t, timeout, what, func() error {
		text, err := metricsOf(t, s)
		if err == nil {
			err = wanted(text)
		}
		if err != nil {
			time.Sleep(time.Second) // and Eventually waits for as long as this has taken
		}
		return err
	})
}

// processes are those of a program in the sandbox of the server, by the name of its file, with or without the
// directory.
func processes(t *testing.T, s *harness.Server, program string) (pids []int) {
	t.Helper()
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	home := harness.NamespaceOf(t, s.HolderPID(), "mnt")
	for _, dir := range dirs {
		cmdline, _ := os.ReadFile(dir + "/cmdline") // empty: it ended meanwhile
		namespace, _ := os.Readlink(dir + "/ns/mnt")
		if first, _, _ := strings.Cut(string(cmdline), "\x00"); filepath.Base(first) == filepath.Base(program) && namespace == home {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			pids = append(pids, pid)
		}
	}
	return pids
}
