package upgrade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/filetree"
)

// A test's program is a copy of this test with a line at its end: trailer RELEASE KUBERNETES BEHAVIOUR DATADIR. It is a
// real process that holds the lock of the data directory.
const trailer = "\n#program "

// The behaviours of programs.
const (
	good    = "good"
	broken  = "broken"  // ends at once
	spoils  = "spoils"  // changes the data, then ends
	silent  = "silent"  // never becomes ready
	refuses = "refuses" // its check fails
)

func TestMain(m *testing.M) {
	if _, line, found := strings.Cut(tail("/proc/self/exe"), trailer); found {
		program(strings.Fields(line), os.Args[1])
	}
	os.Exit(m.Run())
}

// tail returns the end of a file.
func tail(path string) string {
	f, err := os.Open(path)
	must(err)
	defer f.Close()
	end := make([]byte, 1024)
	_, err = f.Seek(-int64(len(end)), io.SeekEnd)
	must(err)
	_, err = io.ReadFull(f, end)
	must(err)
	return string(end)
}

// program is what a program does with a command.
func program(line []string, command string) {
	release, behaviour, dir := line[0], line[2], line[3]
	switch command {
	case "version":
		fmt.Printf("kubelith   %s\nkubernetes %s\netcd       v3.7.3\ncontainerd v2.4.2\n", release, line[1])
		os.Exit(0)
	case "check":
		if behaviour == refuses {
			fmt.Print("ok       configuration: understood\nfailed   kernel: is too old: upgrade it\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	if behaviour == broken {
		fmt.Println("kubelith: broken on purpose")
		os.Exit(1)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	must(err)
	must(unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	must(os.WriteFile(filepath.Join(dir, "version"), []byte(release), 0o600))
	if behaviour != silent {
		log, err := os.OpenFile(filepath.Join(dir, pathOf(datadir.Etcd), "log"), os.O_APPEND|os.O_WRONLY, 0o600)
		must(err)
		fmt.Fprintln(log, release)
		log.Close()
		must(os.WriteFile(filepath.Join(dir, "server/token"), []byte(release), 0o600))
	}
	if behaviour == spoils {
		fmt.Println("kubelith: spoilt")
		os.Exit(1)
	}
	if behaviour == good {
		must(os.WriteFile(filepath.Join(dir, "adopted"), []byte(release), 0o600))
		must(os.WriteFile(filepath.Join(dir, "ready"), []byte(release), 0o600))
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, unix.SIGTERM)
	<-end
	os.Exit(0)
}

func must(err error) {
	if err != nil {
		fmt.Println("kubelith: " + err.Error())
		os.Exit(1)
	}
}

// node is a service with a data directory.
type node struct {
	t         *testing.T
	dir, data string
	process   *exec.Cmd
	exited    chan struct{}
	log       bytes.Buffer
	ended     int
	calls     atomic.Int32
	killAt    int32 // the call at which the upgrade is killed; 0: never
}

var errKilled = errors.New("killed")

// call counts one, and ends the upgrade there if it is to be.
func (n *node) call() {
	if n.calls.Add(1) == n.killAt {
		panic(errKilled)
	}
}

func newNode(t *testing.T) *node {
	n := &node{t: t, dir: t.TempDir()}
	n.data = filepath.Join(n.dir, "data")
	if err := os.MkdirAll(filepath.Join(n.data, pathOf(datadir.Etcd)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.data, pathOf(datadir.Etcd), "log"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(n.program("v1", "v1.37.1", good), n.installed()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Stop(context.Background()) })
	if err := n.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := n.until("v1"); err != nil {
		t.Fatal(err)
	}
	// Not of the first run.
	if err := os.Remove(filepath.Join(n.data, "server/token")); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) installed() string { return filepath.Join(n.dir, "kubelith") }

// program returns the path of a new one.
func (n *node) program(release, kubernetes, behaviour string) string {
	n.t.Helper()
	path := filepath.Join(n.dir, release+behaviour)
	self, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = os.WriteFile(path, append(self, (trailer+release+" "+kubernetes+" "+behaviour+" "+n.data+"\n")...), 0o700)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return path
}

func (n *node) until(release string) error {
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		got, err := os.ReadFile(filepath.Join(n.data, "ready"))
		if err == nil && string(got) == release {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not ready: %q, %v; %s", release, got, err, n.log.String())
		}
	}
}

// Name implements Service.
func (*node) Name() string { return "kubelith" }

// Command implements Service.
func (n *node) Command() []string { return []string{n.installed(), "server"} }

// Start implements Service.
func (n *node) Start(context.Context) error {
	n.call()
	if n.running() {
		return nil
	}
	if err := os.Remove(filepath.Join(n.data, "ready")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	n.ended = 0
	n.log.Reset()
	cmd := exec.Command(n.installed(), "server")
	cmd.Stdout = &n.log
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	n.process, n.exited = cmd, exited
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	return nil
}

func (n *node) running() bool {
	if n.process == nil {
		return false
	}
	select {
	case <-n.exited:
		return false
	default:
		return true
	}
}

// Stop implements Service.
func (n *node) Stop(context.Context) error {
	n.call()
	if n.running() {
		if err := n.process.Process.Signal(unix.SIGTERM); err != nil {
			return err
		}
		<-n.exited
	}
	n.process = nil
	return nil
}

// Up implements Service.
func (n *node) Up(context.Context) (bool, int, error) {
	n.call()
	if !n.running() {
		return false, tooOften, nil
	}
	return true, 0, nil
}

// Output implements Service.
func (n *node) Output(context.Context, time.Time) string {
	if n.running() {
		return ""
	}
	return n.log.String()
}

func (n *node) options(file string, out io.Writer) Options {
	return Options{
		File: file, DataDir: n.data, Service: n, Within: time.Minute, Out: out,
		Data: func(context.Context) ([]string, error) { return []string{"version", datadir.Etcd, "server/token"}, nil },
		Ready: func(_ context.Context, p Program, _ time.Time) error {
			n.call()
			if got, err := os.ReadFile(filepath.Join(n.data, "ready")); err != nil || string(got) != p.Release {
				return fmt.Errorf("it is %q", got)
			}
			return nil
		},
		Adopted: func() (string, error) {
			release, err := os.ReadFile(filepath.Join(n.data, "adopted"))
			return string(release), err
		},
		Check: func(context.Context, Program, Program) error { n.call(); return nil },
		Save:  func(context.Context, Program) (string, error) { n.call(); return "/snapshot", nil },
		Renew: func(_ context.Context, from, to string) error {
			n.call()
			if err := filetree.Copy(from, to); err != nil {
				return err
			}
			n.call()
			return os.WriteFile(filepath.Join(to, "member", "renewed"), nil, 0o600)
		},
		recognize: func(string) error { return nil },
		every:     5 * time.Millisecond,
	}
}

// run runs an upgrade to its end or to the call at which it is killed.
func (n *node) run(o Options) (err error, killed bool) {
	defer func() {
		switch r := recover(); r {
		case nil:
		case errKilled:
			killed = true
		default:
			panic(r)
		}
	}()
	return Run(n.t.Context(), o), false
}

// state describes the node: its running program, and its data.
func (n *node) state() string {
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(n.data, name))
		if err != nil {
			return "-"
		}
		return strings.Join(strings.Fields(string(text)), ",")
	}
	exists := func(path string) string {
		if _, err := os.Lstat(path); err != nil {
			return "no"
		}
		return "yes"
	}
	p, _ := parseVersion(n.ask(n.installed()))
	return fmt.Sprintf("runs=%v program=%s ready=%s version=%s db=%s token=%s upgrade=%s previous=%s new=%s", n.running(), p.Release, read("ready"), read("version"),
		read(pathOf(datadir.Etcd)+"/log"), read("server/token"), exists(filepath.Join(n.data, "upgrade")), exists(previous(n.installed())), exists(staged(n.installed())))
}

func (n *node) ask(file string) string {
	out, _ := exec.Command(file, "version").Output()
	return string(out)
}

const (
	untouched = "runs=true program=v1 ready=v1 version=v1 db=v1 token=- upgrade=no previous=no new=no"
	upgraded  = "runs=true program=v2 ready=v2 version=v2 db=v1,v2 token=v2 upgrade=no previous=yes new=no"
	// As untouched; the old program has been started again.
	back = "runs=true program=v1 ready=v1 version=v1 db=v1,v1 token=v1 upgrade=no previous=no new=no"
)

// The tests are not parallel: a program that is being written cannot be executed while another goroutine forks
// (golang.org/issue/22315).
func TestUpgrade(t *testing.T) {
	for name, c := range map[string]struct {
		kubernetes, behaviour string
		with                  func(*Options)
		want, wrong           string // wrong: what the error has; empty: none
		renewed               bool
	}{
		"good":        {"v1.38.0", good, nil, upgraded, "", false},
		"from an old": {"v1.38.0", good, func(o *Options) { o.Save = func(context.Context, Program) (string, error) { return "", nil } }, upgraded, "", false},
		"broken":      {"v1.38.0", broken, nil, back, "Kubelith v2 (Kubernetes v1.38.0) did not become ready, and Kubelith v1 (Kubernetes v1.37.1) runs again with its data: it ended 5 times: broken on purpose", false},
		"among others": {"v1.38.0", broken, func(o *Options) {
			o.Data = func(context.Context) ([]string, error) { return []string{"version"}, nil }
		}, back, "Kubelith v1 (Kubernetes v1.37.1) runs again: it ended 5 times: broken on purpose", false},
		"spoils":      {"v1.37.2", spoils, nil, back, "it ended 5 times: spoilt", true},
		"silent":      {"v1.37.2", silent, func(o *Options) { o.Within = 5 * time.Second }, back, `it was not ready within 5s (it is "")`, false},
		"refuses":     {"v1.37.2", refuses, nil, untouched, "the new program cannot run here: kernel: is too old: upgrade it", false},
		"older":       {"v1.36.9", good, nil, untouched, "Kubernetes would go back from v1.37.1 to v1.36.9", false},
		"too new":     {"v1.39.0", good, nil, untouched, "upgrade to the next minor release first", false},
		"not it":      {"v1.38.0", good, func(o *Options) { o.Proof.SHA256 = "00" }, untouched, "is not the file that was published", false},
		"not allowed": {"v1.38.0", good, func(o *Options) { o.Check = func(context.Context, Program, Program) error { return errors.New("no") } }, untouched, "no", false},
		"no snapshot": {"v1.38.0", good, func(o *Options) {
			o.Save = func(context.Context, Program) (string, error) { return "", errors.New("full") }
		}, untouched, "cannot save a snapshot, so nothing is upgraded: full", false},
		"another file": {"v1.38.0", good, func(o *Options) { o.recognize = recognize }, untouched, "is not an executable of Kubelith", false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			o := n.options(n.program("v2", c.kubernetes, c.behaviour), t.Output())
			if c.with != nil {
				c.with(&o)
			}
			err, _ := n.run(o)
			if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong) || strings.Contains(err.Error(), "\n")) {
				t.Errorf("error %v, want %q", err, c.wrong)
			}
			if got := n.state(); got != c.want {
				t.Errorf("the node is\n%s, want\n%s", got, c.want)
			}
			if _, err := os.Stat(filepath.Join(n.data, pathOf(datadir.Etcd), "renewed")); (err == nil) != c.renewed {
				t.Errorf("renewed: %v", err)
			}
		})
	}
}

// TestKilled kills an upgrade at each of its calls in turn: the same command finishes it.
func TestKilled(t *testing.T) {
	for behaviour, want := range map[string]string{good: upgraded, spoils: back} {
		// More calls than an upgrade has: at the last ones it is not killed.
		for at := range int32(14) {
			t.Run(fmt.Sprintf("%s at %d", behaviour, at+1), func(t *testing.T) {
				n := newNode(t)
				o := n.options(n.program("v2", "v1.38.0", behaviour), t.Output())
				n.calls.Store(0)
				n.killAt = at + 1
				err, killed := n.run(o)
				n.killAt = 0
				if !killed && at < 6 {
					t.Errorf("it was not killed: %d calls", n.calls.Load())
				}
				if killed {
					err, _ = n.run(o)
				}
				if (err == nil) != (behaviour == good) {
					t.Errorf("error %v", err)
				}
				// A service that was started more often has written more.
				got := strings.NewReplacer("v1,v1,v1", "v1,v1", "v1,v1,v2", "v1,v2", "v2,v2", "v2").Replace(n.state())
				if behaviour == good {
					got = strings.Replace(got, "db=v1,v1,v2", "db=v1,v2", 1)
				}
				if got != want {
					t.Errorf("the node is\n%s, want\n%s", got, want)
				}
			})
		}
	}
}

// TestInterruptedBeforeReplacing: the power fails before the program is replaced, and the old one runs again and
// writes. The upgrade begins again then: its copy of the data is old.
func TestInterruptedBeforeReplacing(t *testing.T) {
	var n *node
	var o Options
	for at := int32(1); ; at++ { // until it is killed where the new program starts
		n = newNode(t)
		o = n.options(n.program("v2", "v1.38.0", spoils), t.Output())
		n.calls.Store(0)
		n.killAt = at
		if _, killed := n.run(o); !killed {
			t.Fatal("no call is between the stop of the old program and the end")
		}
		if s, err := load(n.data); err != nil {
			t.Fatal(err)
		} else if s != nil && s.Phase == trying {
			break
		}
	}
	n.killAt = 0
	if err := os.Rename(n.installed(), staged(n.installed())); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(previous(n.installed()), n.installed()); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := n.until("v1"); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(n.data, pathOf(datadir.Etcd), "log")
	written, err := os.ReadFile(log)
	if err == nil {
		err = os.WriteFile(log, append(written, "acknowledged\n"...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err, _ := n.run(o); err == nil {
		t.Error("a program that ends is an upgrade")
	}
	if data, err := os.ReadFile(log); err != nil || !strings.Contains(string(data), "acknowledged") || strings.Contains(string(data), "v2") {
		t.Errorf("the data is %q, %v", data, err)
	}
	if n.ask(n.installed()) != n.ask(previous(n.installed())) && !strings.Contains(n.ask(n.installed()), "v1") {
		t.Error("the new program is installed")
	}
}

// TestBecameReady: the upgrade is killed while the new program starts, and that becomes ready all the same and is used.
// Nothing goes back then, however long it is not ready when the command is repeated, and another upgrade may begin.
func TestBecameReady(t *testing.T) {
	for what, next := range map[string]string{"the same": "v2", "another": "v3", "the same, after another was installed by hand": "v2"} {
		t.Run(what, func(t *testing.T) {
			n := newNode(t)
			o := n.options(n.program("v2", "v1.38.0", good), t.Output())
			ready := o.Ready
			o.Ready = func(context.Context, Program, time.Time) error { panic(errKilled) }
			if _, killed := n.run(o); !killed {
				t.Fatal("it was not killed")
			}
			o.Ready = ready
			if s, err := load(n.data); err != nil || s == nil || s.Phase != trying {
				t.Fatalf("%+v, %v", s, err)
			}
			if err := n.until("v2"); err != nil {
				t.Fatal(err)
			}
			log := filepath.Join(n.data, pathOf(datadir.Etcd), "log")
			if err := os.WriteFile(log, []byte("acknowledged\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(what, "by hand") {
				next = "v4"
				if err := n.Stop(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(n.program(next, "v1.38.0", good), n.installed()); err != nil {
					t.Fatal(err)
				}
				if err := n.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := n.until(next); err != nil {
					t.Fatal(err)
				}
			}
			if next != "v3" {
				o.Ready = func(context.Context, Program, time.Time) error { return errors.New("disk pressure") }
				o.Within = time.Millisecond
			} else {
				o = n.options(n.program("v3", "v1.38.0", good), t.Output())
			}
			if next == "v4" {
				o.Check = func(context.Context, Program, Program) error { return errors.New("it is newer") }
			}
			if err, _ := n.run(o); (err != nil) != (next == "v4") {
				t.Error(err)
			}
			if data, err := os.ReadFile(log); err != nil || !strings.Contains(string(data), "acknowledged") {
				t.Errorf("the data is %q, %v", data, err)
			}
			if got := n.state(); !strings.Contains(got, "program="+next) || !strings.Contains(got, "upgrade=no") {
				t.Errorf("the node is\n%s", got)
			}
		})
	}
}

// TestSpace: what goes on one file system is added up.
func TestSpace(t *testing.T) {
	statfs := func(dir string, disk *unix.Statfs_t) error {
		disk.Bsize, disk.Bavail = 1<<20, 100
		if dir == "/own" {
			disk.Fsid.Val[0] = 1
		}
		return nil
	}
	for name, c := range map[string]struct {
		needs []need
		wrong string
	}{
		"two disks":       {[]need{{"/usr", 60 << 20}, {"/own", 60 << 20}}, ""},
		"one disk":        {[]need{{"/usr", 40 << 20}, {"/var", 60 << 20}}, ""},
		"one, too small":  {[]need{{"/usr", 60 << 20}, {"/var", 60 << 20}}, "/var has 100 MiB free, and the upgrade takes 120: free space"},
		"two, too small":  {[]need{{"/usr", 60 << 20}, {"/own", 101 << 20}}, "/own has 100 MiB free, and the upgrade takes 101: free space"},
		"nothing to take": {nil, ""},
	} {
		err := enough(statfs, c.needs)
		if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || err.Error() != c.wrong) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOtherFile: an interrupted upgrade is not mixed with another, and two do not run at once.
func TestOtherFile(t *testing.T) {
	n := newNode(t)
	o := n.options(n.program("v2", "v1.38.0", silent), t.Output())
	o.Within = 5 * time.Second
	n.calls.Store(0)
	n.killAt = 8
	if _, killed := n.run(o); !killed {
		t.Fatal("it was not killed")
	}
	n.killAt = 0
	other := n.options(n.program("v3", "v1.38.0", good), t.Output())
	if err, _ := n.run(other); err == nil || !strings.Contains(err.Error(), "finish it first with kubelith upgrade "+o.File) {
		t.Errorf("error %v", err)
	}
	lock, err := takeLock(n.data)
	if err != nil {
		t.Fatal(err)
	}
	if err, _ := n.run(o); err == nil || !strings.Contains(err.Error(), "another upgrade is under way") {
		t.Errorf("error %v", err)
	}
	lock.Close()
	if err, _ := n.run(o); err == nil || n.state() != back {
		t.Errorf("error %v, the node is\n%s", err, n.state())
	}
}
