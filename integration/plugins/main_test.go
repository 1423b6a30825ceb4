// Package plugins tests plugins of all kinds on real servers: real executables, started by the server.
package plugins

import (
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

// list asks the server's socket, as `kubelith plugin list` does: the program itself would cost more than the answer.
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
	all, err := pluginadmin.NewClient(s.Path(harness.RunDir + "/" + pluginadmin.SocketName)).List(t.Context())
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
