package host

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"

	"kubelith.io/kubelith/runtime/cgroups"
)

// launcher starts the process for go-plugin, which brings the environment of its handshake and reads the plugin's first line; the rest of what the
// plugin prints is ours. go-plugin's own runner is not used: it can neither limit a process nor be sure to end it.
type launcher struct {
	spec  *Spec
	exe   *executable
	group *cgroups.Group // nil: no limits
	out   *output
	noted func(pid int) // called once the process has started
	// as in Options
	credentials func(spec *Spec, dir, seen string) ([]string, error)

	temp  string        // temporary directory, made by go-plugin: the plugin's socket is in it
	env   []string      // with go-plugin's part
	hello *firstLine    // for go-plugin: what the plugin prints first
	read  chan struct{} // closed when all output has been read

	mu     sync.Mutex
	killed bool
	p      *process // nil until started
}

var _ runner.Runner = (*launcher)(nil)

// prepare is go-plugin's RunnerFunc.
func (l *launcher) prepare(cmd *exec.Cmd, temp string) error {
	l.temp = temp
	if err := l.share(temp); err != nil {
		return err
	}
	l.env = append(l.environment(), cmd.Env...)
	for i, v := range l.env {
		if strings.HasPrefix(v, goplugin.EnvUnixSocketDir+"=") {
			l.env[i] = goplugin.EnvUnixSocketDir + "=" + l.seen()
		}
	}
	l.hello, l.read = newFirstLine(), make(chan struct{})
	if l.credentials != nil {
		more, err := l.credentials(l.spec, temp, l.seen())
		if err != nil {
			return fmt.Errorf("credentials for the cluster: %w", err)
		}
		l.env = append(l.env, more...)
	}
	return nil
}

// share lets the plugin make its sockets in the directory. It stays ours, and with the sticky bit what we put there too: we go on
// writing to it, as root, and the plugin must not be able to put a link in the place of anything.
func (l *launcher) share(temp string) error {
	group := l.spec.Limits.Group()
	if l.spec.Limits.UID == nil || group == nil {
		return nil
	}
	if err := os.Chown(temp, -1, *group); err != nil {
		return err
	}
	return os.Chmod(temp, 0o770|os.ModeSticky)
}

// seen is the temporary directory as the plugin may call it: the path leads through directories that are closed to other users.
func (l *launcher) seen() string {
	if l.spec.Limits.UID != nil {
		return "/proc/self/fd/" + strconv.Itoa(tempFD)
	}
	return l.temp
}

// environment is all that a plugin inherits: nothing of what the server was started with.
func (l *launcher) environment() []string {
	return slices.Concat(l.spec.Env, []string{ // of two with one name, the first counts
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"TMPDIR=" + l.seen(),
		// Of Go plugins. A second thread that looks for work makes each call of an admission plugin a third slower and dearer
		// (bench/plugins); as many as a big machine has CPUs cost memory as well. A plugin that computes sets its own.
		"GOMAXPROCS=1",
	})
}

// Start implements runner.Runner.
func (l *launcher) Start(context.Context) error {
	caps, err := l.spec.capabilities()
	if err != nil {
		return err
	}
	c := command{exe: l.exe, argv0: l.exe.path, argv: append([]string{l.exe.path}, l.spec.Args...), env: l.env,
		uid: l.spec.Limits.UID, gid: l.spec.Limits.GID, caps: caps, group: l.group}
	// A script is named to its interpreter by its path, beside which it may look for more, unless its checksum counts: then what
	// the interpreter opens has to be what was checked.
	if !l.exe.script || l.spec.SHA256 != "" {
		// Through a link with the plugin's name, which the kernel takes as the name of the process.
		const dir = "exe"
		if err := os.Mkdir(filepath.Join(l.temp, dir), 0o755); err != nil {
			return err
		}
		if err := os.Symlink("/proc/self/fd/"+strconv.Itoa(exeFD), filepath.Join(l.temp, dir, l.spec.Name)); err != nil {
			return err
		}
		c.argv0 = filepath.Join(l.seen(), dir, l.spec.Name)
	}
	if c.temp, err = os.Open(l.temp); err != nil {
		return err
	}
	defer c.temp.Close()

	l.mu.Lock()
	defer l.mu.Unlock()
	if l.killed {
		return context.Canceled
	}
	if l.p, err = c.run(); err != nil {
		return err
	}
	l.noted(l.p.pid)
	score := 0
	if l.group != nil {
		score = 300
	}
	l.p.killable(score) // may have ended already
	go l.readOutput(l.p)
	return nil
}

func (l *launcher) readOutput(p *process) {
	var both sync.WaitGroup
	both.Go(func() {
		rest := l.hello.read(p.stdout)
		l.out.read(rest)
	})
	both.Go(func() { l.out.read(p.stderr) })
	both.Go(func() {
		<-p.done
		time.AfterFunc(openFor, func() { closeFiles(p.stdout, p.stderr) })
		p.stdin.Close()
	})
	both.Wait()
	closeFiles(p.stdout, p.stderr)
	close(l.read)
}

// kill ends the process with all that it has started, or keeps it from being started.
func (l *launcher) kill() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.killed = true
	if l.p != nil {
		l.p.kill()
	}
}

// started is the process; nil when there never was one.
func (l *launcher) started() *process {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.p
}

// Wait implements runner.Runner.
func (l *launcher) Wait(context.Context) error {
	p := l.started()
	if p == nil {
		return errors.New("not started")
	}
	<-p.done
	<-l.read
	return nil
}

// Kill implements runner.Runner.
func (l *launcher) Kill(context.Context) error {
	l.kill()
	return nil
}

// Stdout implements runner.Runner: the first line only.
func (l *launcher) Stdout() io.ReadCloser { return l.hello }

// Stderr implements runner.Runner: nothing, we read it ourselves.
func (l *launcher) Stderr() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// Name implements runner.Runner.
func (l *launcher) Name() string { return l.spec.Name }

// ID implements runner.Runner. go-plugin does nothing for a process without one.
func (l *launcher) ID() string {
	if p := l.started(); p != nil {
		return strconv.Itoa(p.pid)
	}
	return "not started"
}

// Diagnose implements runner.Runner.
func (l *launcher) Diagnose(context.Context) string { return "" }

// PluginToHost implements runner.Runner: only sockets in the temporary directory are called.
func (l *launcher) PluginToHost(network, address string) (string, string, error) {
	name, ok := strings.CutPrefix(address, l.seen()+"/")
	if network != "unix" || !ok || strings.Contains(name, "/") {
		return "", "", fmt.Errorf("wants to be called on %s %s, which is no unix socket in $%s", network, address, goplugin.EnvUnixSocketDir)
	}
	return network, filepath.Join(l.temp, name), nil
}

// HostToPlugin implements runner.Runner.
func (l *launcher) HostToPlugin(network, address string) (string, string, error) {
	return network, filepath.Join(l.seen(), filepath.Base(address)), nil
}

// firstLine is what a plugin prints first: go-plugin's handshake, or what shows that it is no plugin.
type firstLine struct {
	to   *io.PipeWriter
	from *io.PipeReader
	mu   sync.Mutex
	text string
}

func newFirstLine() *firstLine {
	f := &firstLine{}
	f.from, f.to = io.Pipe()
	return f
}

// read passes the first line of r on and returns the rest.
func (f *firstLine) read(r io.Reader) io.Reader {
	lines := bufio.NewReaderSize(r, maxLine)
	line, err := lines.ReadSlice('\n') // at most maxLine: what is longer is no handshake
	text := strings.TrimRight(string(line), "\r\n")
	f.mu.Lock()
	f.text = text
	f.mu.Unlock()
	if err == nil || len(line) > 0 {
		io.WriteString(f.to, text+"\n")
	}
	f.to.Close()
	return lines
}

// said is the line.
func (f *firstLine) said() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.text
}

func (f *firstLine) Read(p []byte) (int, error) { return f.from.Read(p) }

// Close implements io.Closer.
func (f *firstLine) Close() error { return f.from.Close() }
