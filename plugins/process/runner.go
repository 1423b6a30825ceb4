package process

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

// pluginRunner starts the process for go-plugin, which adds its variables to the environment and reads the first line
// of output; the rest of the output is read here. go-plugin's own runner can neither limit a process nor be sure to end
// it.
type pluginRunner struct {
	spec        *Spec
	exe         *Executable
	cgroup      *cgroups.Group // nil: no limits
	out         *output
	started     func(pid int) // called once the process has started
	credentials func(spec *Spec, dir, seen string) ([]string, error)

	temp       string        // temporary directory, created by go-plugin: the plugin's socket is in it
	env        []string      // with go-plugin's part
	handshake  *firstLine    // for go-plugin: the first line of output
	outputRead chan struct{} // closed when all output has been read

	mu     sync.Mutex
	killed bool
	child  *child // nil until started
}

var _ runner.Runner = (*pluginRunner)(nil)

// prepare is go-plugin's RunnerFunc.
func (r *pluginRunner) prepare(cmd *exec.Cmd, temp string) error {
	r.temp = temp
	if err := r.share(temp); err != nil {
		return err
	}
	r.env = append(r.environment(), cmd.Env...)
	for i, v := range r.env {
		if strings.HasPrefix(v, goplugin.EnvUnixSocketDir+"=") {
			r.env[i] = goplugin.EnvUnixSocketDir + "=" + r.seen()
		}
	}
	r.handshake, r.outputRead = newFirstLine(), make(chan struct{})
	if r.credentials != nil {
		more, err := r.credentials(r.spec, temp, r.seen())
		if err != nil {
			return fmt.Errorf("credentials for the cluster: %w", err)
		}
		r.env = append(r.env, more...)
	}
	return nil
}

// share lets a plugin with its own user create its sockets in the temporary directory. The directory stays the server's
// and gets the sticky bit: the server keeps writing to it, as root, and the plugin must not be able to replace any file
// with a link.
func (r *pluginRunner) share(temp string) error {
	group := r.spec.Limits.Group()
	if r.spec.Limits.UID == nil || group == nil {
		return nil
	}
	if err := os.Chown(temp, -1, *group); err != nil {
		return err
	}
	return os.Chmod(temp, 0o770|os.ModeSticky)
}

// seen returns the path of the temporary directory for the plugin. With its own user it cannot pass the directories
// above.
func (r *pluginRunner) seen() string {
	if r.spec.Limits.UID != nil {
		return "/proc/self/fd/" + strconv.Itoa(tempFD)
	}
	return r.temp
}

// environment returns the variables of the plugin without go-plugin's. It inherits none of the server's.
func (r *pluginRunner) environment() []string {
	return slices.Concat(r.spec.Env, []string{ // of two with one name, the first counts
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"TMPDIR=" + r.seen(),
		// For Go plugins. A second thread that looks for work makes each admission call a third slower and costs a
		// third more CPU (bench/plugins); one thread per CPU of a big machine costs memory as well. A plugin that
		// computes sets its own value.
		"GOMAXPROCS=1",
	})
}

// Start implements runner.Runner.
func (r *pluginRunner) Start(context.Context) error {
	caps, err := r.spec.Capabilities()
	if err != nil {
		return err
	}
	c := command{exe: r.exe, argv0: r.exe.path, argv: append([]string{r.exe.path}, r.spec.Args...), env: r.env,
		uid: r.spec.Limits.UID, gid: r.spec.Limits.GID, caps: caps, cgroup: r.cgroup}
	// The interpreter of a script gets the script's path, as it may look for more files beside it. With a checksum it
	// gets the open file, so that it reads what was checked.
	if !r.exe.script || r.spec.SHA256 != "" {
		// The kernel names the process after this link, which has the plugin's name.
		const dir = "exe"
		if err := os.Mkdir(filepath.Join(r.temp, dir), 0o755); err != nil {
			return err
		}
		if err := os.Symlink("/proc/self/fd/"+strconv.Itoa(exeFD), filepath.Join(r.temp, dir, r.spec.Name)); err != nil {
			return err
		}
		c.argv0 = filepath.Join(r.seen(), dir, r.spec.Name)
	}
	if c.temp, err = os.Open(r.temp); err != nil {
		return err
	}
	defer c.temp.Close()

	r.mu.Lock()
	defer r.mu.Unlock()
	if r.killed {
		return context.Canceled
	}
	if r.child, err = c.run(); err != nil {
		return err
	}
	r.started(r.child.pid)
	score := 0
	if r.cgroup != nil {
		score = 300
	}
	r.child.setOOMScore(score) // may have ended already
	go r.readOutput(r.child)
	return nil
}

func (r *pluginRunner) readOutput(c *child) {
	var both sync.WaitGroup
	both.Go(func() {
		rest := r.handshake.read(c.stdout)
		r.out.read(rest)
	})
	both.Go(func() { r.out.read(c.stderr) })
	both.Go(func() {
		<-c.done
		time.AfterFunc(drainOutputFor, func() { closeFiles(c.stdout, c.stderr) })
		c.stdin.Close()
	})
	both.Wait()
	closeFiles(c.stdout, c.stderr)
	close(r.outputRead)
}

// kill ends the process with everything it started, or keeps it from being started.
func (r *pluginRunner) kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.killed = true
	if r.child != nil {
		r.child.kill()
	}
}

// process returns the started process; nil if there never was one.
func (r *pluginRunner) process() *child {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.child
}

// Wait implements runner.Runner.
func (r *pluginRunner) Wait(context.Context) error {
	c := r.process()
	if c == nil {
		return errors.New("not started")
	}
	<-c.done
	<-r.outputRead
	return detachBelow(r.temp) // go-plugin deletes the directory next
}

// Kill implements runner.Runner.
func (r *pluginRunner) Kill(context.Context) error {
	r.kill()
	return nil
}

// Stdout implements runner.Runner. It has the first line only.
func (r *pluginRunner) Stdout() io.ReadCloser { return r.handshake }

// Stderr implements runner.Runner. It is empty: readOutput reads the real one.
func (r *pluginRunner) Stderr() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// Name implements runner.Runner.
func (r *pluginRunner) Name() string { return r.spec.Name }

// ID implements runner.Runner. go-plugin does nothing for a process without an ID.
func (r *pluginRunner) ID() string {
	if c := r.process(); c != nil {
		return strconv.Itoa(c.pid)
	}
	return "not started"
}

// Diagnose implements runner.Runner.
func (r *pluginRunner) Diagnose(context.Context) string { return "" }

// PluginToHost implements runner.Runner. It accepts sockets in the temporary directory only.
func (r *pluginRunner) PluginToHost(network, address string) (string, string, error) {
	name, ok := strings.CutPrefix(address, r.seen()+"/")
	if network != "unix" || !ok || strings.Contains(name, "/") {
		return "", "", fmt.Errorf("listens on %s %s, which is not a unix socket in $%s", network, address, goplugin.EnvUnixSocketDir)
	}
	return network, filepath.Join(r.temp, name), nil
}

// HostToPlugin implements runner.Runner.
func (r *pluginRunner) HostToPlugin(network, address string) (string, string, error) {
	return network, filepath.Join(r.seen(), filepath.Base(address)), nil
}

// firstLine is the first line of a plugin's output: go-plugin's handshake, or proof that it is no plugin.
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

// read passes on the first line of r and returns the rest.
func (f *firstLine) read(r io.Reader) io.Reader {
	lines := bufio.NewReaderSize(r, maxLine)
	line, err := lines.ReadSlice('\n') // at most maxLine: a longer one is no handshake
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

// line returns the line; empty as long as there is none.
func (f *firstLine) line() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.text
}

func (f *firstLine) Read(p []byte) (int, error) { return f.from.Read(p) }

// Close implements io.Closer.
func (f *firstLine) Close() error { return f.from.Close() }
