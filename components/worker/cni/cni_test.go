package cni

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
)

func quiet() logrus.FieldLogger {
	l := logrus.New()
	l.Out = io.Discard
	return l
}

func put(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := []string{}
	for _, e := range entries {
		found = append(found, e.Name())
	}
	return found
}

func TestBridgeConfig(t *testing.T) {
	for name, tc := range map[string]struct {
		cidrs  []string
		ranges string
		routes string
		fails  bool
	}{
		"ipv4": {[]string{"10.42.0.0/24"}, `[[{"subnet":"10.42.0.0/24"}]]`, `[{"dst":"0.0.0.0/0"}]`, false},
		"dual": {[]string{"10.42.0.0/24", "fd42::/64"}, `[[{"subnet":"10.42.0.0/24"}],[{"subnet":"fd42::/64"}]]`,
			`[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]`, false},
		"bad": {[]string{"10.42.0.0"}, "", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := bridgeConfig(tc.cidrs, "/d", "/s", 1400)
			if tc.fails {
				if err == nil {
					t.Error("no error")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := valid(".conflist", c.content); err != nil {
				t.Error(err)
			}
			var got struct {
				Plugins []struct {
					Type string
					MTU  int
					IPAM struct {
						DataDir        string
						Ranges, Routes json.RawMessage
					}
				}
			}
			if err := json.Unmarshal(c.content, &got); err != nil {
				t.Fatal(err)
			}
			p := got.Plugins[0]
			compact := func(raw json.RawMessage) string { return strings.Join(strings.Fields(string(raw)), "") }
			if compact(p.IPAM.Ranges) != tc.ranges || compact(p.IPAM.Routes) != tc.routes || p.IPAM.DataDir != "/d" || p.MTU != 1400 {
				t.Errorf("got %s", c.content)
			}
			if !strings.HasPrefix(p.Type, "kubelith-") || len(got.Plugins) != 1 {
				t.Errorf("a program could be a third party's: %s", c.content)
			}
		})
	}
}

const theirList = `{"cniVersion":"1.0.0","name":"x","plugins":[{"type":"x"}]}`

func TestThirdParty(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string
		want  string
	}{
		"nothing":       {nil, ""},
		"list":          {map[string]string{"10-x.conflist": theirList}, "10-x.conflist"},
		"first":         {map[string]string{"20-y.conflist": theirList, "10-x.conf": `{"cniVersion":"1.0.0","name":"x","type":"x"}`}, "10-x.conf"},
		"broken first":  {map[string]string{"10-x.conflist": `{"name":`, "20-y.conflist": theirList}, "20-y.conflist"},
		"empty":         {map[string]string{"10-x.conflist": ""}, ""},
		"no plugins":    {map[string]string{"10-x.conflist": `{"cniVersion":"1.0.0","name":"x"}`}, ""},
		"list in .conf": {map[string]string{"10-x.conf": theirList}, ""},
		"other files":   {map[string]string{"README": "x", "10-x.conflist.tmp": theirList}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "net.d")
			for f, content := range tc.files {
				put(t, dir, f, content)
			}
			c, err := thirdParty(dir, quiet())
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if c != nil {
				got = c.file
			}
			if got != tc.want {
				t.Errorf("chose %q, want %q", got, tc.want)
			}
		})
	}
}

func TestInstall(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "net.d")
	put(t, dir, "05-old.conflist", theirList)
	if changed, err := install(dir, noopConfig()); err != nil || !changed {
		t.Fatalf("changed %v, %v", changed, err)
	}
	if got := entries(t, dir); !slices.Equal(got, []string{ourFile}) {
		t.Errorf("the directory holds %v", got)
	}
	if changed, err := install(dir, noopConfig()); err != nil || changed {
		t.Errorf("installing the same again: changed %v, %v", changed, err)
	}
	// A third party's may name its credentials, and any user who can write it decides what root executes.
	for _, c := range []config{noopConfig(), {file: "05-theirs.conflist", content: []byte(theirList)}} {
		if _, err := install(dir, c); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(filepath.Join(dir, c.file)); err != nil || info.Mode() != 0o600 {
			t.Errorf("the mode of %s is %v, %v", c.file, info.Mode(), err)
		}
	}
	if _, err := install(dir, noopConfig()); err != nil {
		t.Fatal(err)
	}
	if got := entries(t, filepath.Dir(dir)); !slices.Equal(got, []string{"net.d"}) {
		t.Errorf("temporary files are left: %v", got)
	}
}

// TestReplaceWakesCRI checks the order of events that CRI depends on: it ignores Create, and must get an event when the
// file is there.
func TestReplaceWakesCRI(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "net.d")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.Add(dir); err != nil {
		t.Fatal(err)
	}
	if err := replace(filepath.Join(dir, ourFile), []byte("x")); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(5 * time.Second)
	for {
		select {
		case e := <-w.Events:
			if e.Has(fsnotify.Write) {
				t.Fatalf("CRI would read a file that is being written: %v", e)
			}
			if e.Has(fsnotify.Rename) {
				if _, err := os.Stat(filepath.Join(dir, ourFile)); err != nil {
					t.Error("CRI would look before the file is there")
				}
				return
			}
		case <-deadline:
			t.Fatal("no event that makes CRI reload")
		}
	}
}

// await polls until the directory holds exactly the names.
func await(t *testing.T, dir string, want ...string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	var got []string
	for time.Now().Before(deadline) {
		if got = entries(t, dir); slices.Equal(got, want) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("%s holds %v, want %v", dir, got, want)
}

func TestRunFollowsThirdParty(t *testing.T) {
	for mode, ours := range map[Mode][]string{Noop: {ourFile}, None: {}} {
		t.Run(string(mode), func(t *testing.T) {
			root := t.TempDir()
			confDir, hostDir := filepath.Join(root, "run", "net.d"), filepath.Join(root, "etc", "cni", "net.d")
			var theirs atomic.Value // the last word
			s := New(Options{Mode: mode, ConfDir: confDir, HostConfDir: hostDir, Log: quiet(), ThirdParty: func(yes bool) { theirs.Store(yes) }})
			reported := func(want bool) {
				t.Helper()
				if got := theirs.Load(); got != want { // it is reported before anything is written
					t.Errorf("reported %v about a third party, want %t", got, want)
				}
			}
			ctx, cancel := context.WithCancel(context.Background())
			ready, ended := make(chan struct{}), make(chan error, 1)
			go func() { ended <- s.Run(ctx, func() { close(ready) }) }()
			<-ready
			await(t, confDir, ours...)
			put(t, hostDir, "05-x.conflist", theirList) // neither cni nor net.d existed
			await(t, confDir, "05-x.conflist")
			reported(true)
			put(t, hostDir, "01-w.conflist", theirList)
			await(t, confDir, "01-w.conflist")
			if err := os.RemoveAll(filepath.Join(root, "etc", "cni")); err != nil {
				t.Fatal(err)
			}
			await(t, confDir, ours...)
			reported(false)
			put(t, hostDir, "05-x.conflist", theirList)
			await(t, confDir, "05-x.conflist")
			reported(true)
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestRunWithoutInotify: when no more inotify watches are allowed, the directory is polled, and the log says so once.
func TestRunWithoutInotify(t *testing.T) {
	for name, watcher := range map[string]func() (*fsnotify.Watcher, error){
		"no instance": func() (*fsnotify.Watcher, error) { return nil, syscall.EMFILE },
		"no watch": func() (*fsnotify.Watcher, error) { // adding to one that is closed fails
			w, err := fsnotify.NewWatcher()
			if err == nil {
				err = w.Close()
			}
			return w, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			confDir, hostDir := filepath.Join(root, "run", "net.d"), filepath.Join(root, "etc", "cni", "net.d")
			log, lines := logtest.NewNullLogger()
			s := New(Options{Mode: Noop, ConfDir: confDir, HostConfDir: hostDir, Log: log})
			s.newWatcher, s.poll = watcher, 5*time.Millisecond
			ctx, cancel := context.WithCancel(t.Context())
			ready, ended := make(chan struct{}), make(chan error, 1)
			go func() { ended <- s.Run(ctx, func() { close(ready) }) }()
			select {
			case <-ready:
			case err := <-ended:
				t.Fatalf("ended: %v", err)
			}
			await(t, confDir, ourFile)
			put(t, hostDir, "05-x.conflist", theirList)
			await(t, confDir, "05-x.conflist")
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			said := 0
			for _, e := range lines.AllEntries() {
				if strings.Contains(e.Message, "fs.inotify.max_user_instances") {
					said++
				}
			}
			if said != 1 {
				t.Errorf("logged %d times: %v", said, lines.AllEntries())
			}
		})
	}
}

func TestUnknownMode(t *testing.T) {
	s := New(Options{Mode: "overlay", ConfDir: t.TempDir(), Log: quiet()})
	if err := s.Run(context.Background(), func() {}); err == nil {
		t.Error("no error")
	}
}

func TestMasqueradeRules(t *testing.T) {
	got, err := masqueradeRules([]string{"10.42.1.0/24", "fd42:0:0:1::/64"}, []string{"10.42.0.0/16", "fd42::/56"})
	want := []string{
		"ip saddr 10.42.1.0/24 ip daddr != 224.0.0.0/4 ip daddr != 10.42.1.0/24 ip daddr != 10.42.0.0/16 masquerade fully-random",
		"ip6 saddr fd42:0:0:1::/64 ip6 daddr != ff00::/8 ip6 daddr != fd42:0:0:1::/64 ip6 daddr != fd42::/56 masquerade fully-random",
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestAbandoned(t *testing.T) {
	start := time.Now()
	for name, tc := range map[string]struct {
		content string
		age     time.Duration
		want    bool
	}{
		"of a sandbox":      {"alive\r\neth0", time.Hour, false},
		"of no sandbox":     {"gone\r\neth0", time.Hour, true},
		"cut by a crash":    {"", time.Hour, true},
		"in the making":     {"gone\r\neth0", -time.Second, false},
		"old style content": {"alive", time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "10.42.0.2")
			if err := os.WriteFile(path, []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
			when := start.Add(-tc.age)
			if err := os.Chtimes(path, when, when); err != nil {
				t.Fatal(err)
			}
			got, err := abandoned(path, map[string]bool{"alive": true}, start)
			if err != nil || got != tc.want {
				t.Errorf("got %v, %v; want %v", got, err, tc.want)
			}
		})
	}
}
