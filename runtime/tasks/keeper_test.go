package tasks

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/runtime"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/procstat"
)

// program is the keeper, compiled once.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "keeper")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "kubelith-keeper")
	out, err := exec.Command("cc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, "keeper/keeper.c").CombinedOutput()
	if err != nil {
		return "", &exec.Error{Name: string(out), Err: err}
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := program(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// testKeeper starts a keeper, which ends with the test.
func testKeeper(t *testing.T) (k *keeper, socket string) {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatalf("compile the keeper: %v", err)
	}
	dir, err := os.MkdirTemp("", "k") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s", "k")
	k, err = startKeeper(path, socket, "-id", t.Name())
	if err != nil {
		t.Fatal(err)
	}
	return k, socket
}

// end ends a keeper with all that it has.
func end(t *testing.T, k *keeper) {
	t.Helper()
	have, err := k.adopt()
	if err != nil {
		t.Error(err)
	}
	for key, p := range have {
		if p.pid != 0 {
			_ = unix.Kill(p.pid, unix.SIGKILL)
		}
		k.forget(k.of(key))
	}
	if err := k.send(message{Type: msgQuit}, nil, nil); err != nil {
		t.Error(err)
	}
	select {
	case <-k.gone:
	case <-time.After(10 * time.Second):
		t.Error("the keeper does not end")
	}
}

// script returns the arguments of a program that does as runc does: it leaves a process behind, and its pid in a file.
// The process goes on when the program has ended: a shell takes the exit of a child that ends before, which runc does
// not.
func script(t *testing.T, commands string) (args []string, pid func() int) {
	file := filepath.Join(t.TempDir(), "pid")
	return []string{"/bin/sh", "-c", "exec 3<&0; (sleep 0.1; " + commands + ") <&3 3<&- & echo $! >" + file}, func() int {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// fifos are the streams of a process as CRI has them.
type fifos struct {
	io     runtime.IO
	output bytes.Buffer
	done   chan error // set by read
}

func newFIFOs(t *testing.T, stdin bool) *fifos {
	t.Helper()
	dir := t.TempDir()
	f := &fifos{io: runtime.IO{Stdout: filepath.Join(dir, "stdout"), Stderr: filepath.Join(dir, "stderr")}}
	if stdin {
		f.io.Stdin = filepath.Join(dir, "stdin")
	}
	for _, path := range []string{f.io.Stdin, f.io.Stdout, f.io.Stderr} {
		if path != "" {
			if err := unix.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return f
}

// read reads the output until its end, and ignores that of errors.
func (f *fifos) read() {
	f.done = make(chan error, 1)
	go func() { f.done <- readAll(f.io.Stdout, &f.output) }()
	go readAll(f.io.Stderr, io.Discard)
}

func readAll(path string, w io.Writer) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(w, file)
	return err
}

// readers has the output read by nobody, but open for reading, until close is called.
func (f *fifos) readers(t *testing.T) (close func()) {
	t.Helper()
	var files []int
	for _, path := range []string{f.io.Stdout, f.io.Stderr} {
		reader, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, reader)
	}
	return func() {
		for _, fd := range files {
			_ = unix.Close(fd)
		}
	}
}

// open opens the streams, which nobody needs to read yet.
func (f *fifos) open(t *testing.T) *streams {
	t.Helper()
	if f.done == nil {
		defer f.readers(t)()
	}
	s, err := openStreams(t.Context(), f.io, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (f *fifos) text(t *testing.T) string {
	t.Helper()
	select {
	case err := <-f.done:
		if err != nil {
			t.Fatal(err)
		}
		return f.output.String()
	case <-time.After(20 * time.Second):
		t.Fatal("the output does not end")
	}
	return ""
}

func run(t *testing.T, k *keeper, f *fifos, commands string) (*kept, int) {
	t.Helper()
	s := f.open(t)
	defer s.close()
	p := k.hold()
	args, pid := script(t, commands)
	if status, err := k.run(t.Context(), p, s, args); err != nil || status != 0 {
		t.Fatalf("run: %d, %v", status, err)
	}
	if err := k.watch(p, pid()); err != nil {
		t.Fatal(err)
	}
	return p, pid()
}

func exitOf(t *testing.T, p *kept) exit {
	t.Helper()
	select {
	case e := <-p.exited:
		return e
	case <-time.After(20 * time.Second):
		t.Fatal("the process does not end")
	}
	return exit{}
}

// TestLateReader: a process whose output has no reader yet waits for one, which would otherwise never see the end of a
// process that has ended before.
func TestLateReader(t *testing.T) {
	f := newFIFOs(t, false)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	opened := make(chan error)
	go func() {
		s, err := openStreams(ctx, f.io, 0, 0)
		if err == nil {
			s.close()
		}
		opened <- err
	}()
	select {
	case err := <-opened:
		t.Fatalf("the streams are open without a reader: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	readers := make(chan error)
	for _, path := range []string{f.io.Stdout, f.io.Stderr} {
		go func() { readers <- readAll(path, io.Discard) }()
	}
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
	for range 2 {
		select {
		case err := <-readers:
			if err != nil {
				t.Error(err)
			}
		case <-ctx.Done():
			t.Fatal("a reader that came late waits for ever")
		}
	}
}

// TestNoReader: a process whose errors nobody reads is not started, and its output ends.
func TestNoReader(t *testing.T) {
	f := newFIFOs(t, false)
	stdout, err := unix.Open(f.io.Stdout, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(stdout)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := openStreams(ctx, f.io, 0, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want that of the context", err)
	}
	if n, err := unix.Read(stdout, make([]byte, 1)); n != 0 || err != nil { // EAGAIN while it has a writer
		t.Errorf("read of its output: %d, %v, want the end", n, err)
	}
}

// TestKeeper: a process that outlives the program that started it has its input, its output and an exit status, also if
// it ends before it is watched.
func TestKeeper(t *testing.T) {
	k, _ := testKeeper(t)
	defer end(t, k)
	f := newFIFOs(t, true)
	f.read()
	p, pid := run(t, k, f, "cat; echo ended; exit 7")
	if stat, err := procstat.Read(pid); err != nil || stat.Ended() {
		t.Fatalf("the process: %+v, %v", stat, err)
	}
	in, err := os.OpenFile(f.io.Stdin, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	much := strings.Repeat("0123456789abcdef\n", 40_000) // more than all pipes hold
	if _, err := in.WriteString(much); err != nil {
		t.Fatal(err)
	}
	_ = in.Close()
	time.Sleep(50 * time.Millisecond)
	if len(p.exited) > 0 {
		t.Error("the input ends with its first writer")
	}
	if err := k.closeStdin(p); err != nil {
		t.Fatal(err)
	}
	if e := exitOf(t, p); e.status != 7 || time.Since(e.at) > time.Minute {
		t.Errorf("exit %+v, want 7", e)
	}
	if got := f.text(t); got != much+"ended\n" {
		t.Errorf("%d bytes of output, want %d", len(got), len(much)+6)
	}
	select {
	case <-p.drained:
	case <-time.After(20 * time.Second):
		t.Error("the keeper does not say that the output has ended")
	}
	k.forget(p)

	f = newFIFOs(t, false)
	f.read()
	s := f.open(t)
	defer s.close()
	early := k.hold()
	args, earlyPID := script(t, "exit 3")
	if status, err := k.run(t.Context(), early, s, args); err != nil || status != 0 {
		t.Fatalf("run: %d, %v", status, err)
	}
	time.Sleep(300 * time.Millisecond) // it ends
	if err := k.watch(early, earlyPID()); err != nil {
		t.Fatal(err)
	}
	if e := exitOf(t, early); e.status != 3 {
		t.Errorf("exit %+v, want 3", e)
	}
}

// TestKeeperManyExits: a process has ended, even if so many others end before it is watched that its status is
// forgotten.
func TestKeeperManyExits(t *testing.T) {
	k, _ := testKeeper(t)
	defer end(t, k)
	p := k.hold()
	args, pid := script(t, "exit 3")
	if status, err := k.run(t.Context(), p, &streams{}, args); err != nil || status != 0 {
		t.Fatalf("run: %d, %v", status, err)
	}
	time.Sleep(300 * time.Millisecond) // it ends
	orphans := "i=0; while [ $i -lt 100 ]; do (true &); i=$((i+1)); done; sleep 0.2"
	if status, err := k.run(t.Context(), k.hold(), &streams{}, []string{"/bin/sh", "-c", orphans}); err != nil || status != 0 {
		t.Fatalf("run: %d, %v", status, err)
	}
	if err := k.watch(p, pid()); err != nil {
		t.Fatal(err)
	}
	if e := exitOf(t, p); e.status != 255 || time.Since(e.at) > time.Minute {
		t.Errorf("exit %+v, want 255", e)
	}
}

// TestKeeperWithoutFiles: a keeper that may open no more files says so, and goes on.
func TestKeeperWithoutFiles(t *testing.T) {
	k, socket := testKeeper(t)
	defer func() { end(t, k) }()
	_, pid := run(t, k, newFIFOs(t, false), "exec sleep 60")
	limit := unix.Rlimit{Cur: 8, Max: 1024} // no number is left for the files of a message
	if err := unix.Prlimit(parentOf(t, pid), unix.RLIMIT_NOFILE, &limit, nil); err != nil {
		t.Fatal(err)
	}
	s := newFIFOs(t, false).open(t)
	defer s.close()
	if _, err := k.run(t.Context(), k.hold(), s, []string{"/bin/true"}); !errors.Is(err, unix.EMFILE) {
		t.Errorf("error %v, want EMFILE", err)
	}
	var err error
	if k, err = dialKeeper(socket); err != nil {
		t.Fatal(err)
	}
	if have, err := k.adopt(); err != nil || len(have) != 1 {
		t.Errorf("adopt = %v, %v, want one", have, err)
	}
}

// TestKeeperRestart: a later server finds processes, exit statuses and output of the time in between.
func TestKeeperRestart(t *testing.T) {
	k, socket := testKeeper(t)
	var all []*fifos
	var keys []uint32
	for _, commands := range []string{"exec sleep 60", "echo last words; exit 4", "exec sh -c 'kill -9 $$'"} {
		f := newFIFOs(t, false)
		p, _ := run(t, k, f, commands)
		all, keys = append(all, f), append(keys, p.key)
	}
	_ = k.conn.Close()
	time.Sleep(300 * time.Millisecond) // two end
	k, err := dialKeeper(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { end(t, k) }()
	have, err := k.adopt()
	if err != nil || len(have) != 3 {
		t.Fatalf("adopt = %v, %v, want three", have, err)
	}
	if p := k.of(keys[0]); len(p.exited) > 0 {
		t.Error("a process that runs has ended")
	} else {
		_ = unix.Kill(have[keys[0]].pid, unix.SIGTERM)
		if e := exitOf(t, p); e.status != 128+15 {
			t.Errorf("exit %+v, want 143", e)
		}
	}
	if e := exitOf(t, k.of(keys[1])); e.status != 4 {
		t.Errorf("exit %+v, want 4", e)
	}
	all[1].read() // nobody had it open since the process has written it
	if got := all[1].text(t); got != "last words\n" {
		t.Errorf("the output is %q", got)
	}
	if p := k.hold(); p.key <= keys[2] {
		t.Errorf("key %d is given again", p.key)
	}
	second, err := dialKeeper(socket) // takes over
	if err != nil {
		t.Fatal(err)
	}
	if have, err := second.adopt(); err != nil || len(have) != 3 {
		t.Errorf("adopt = %v, %v, want three", have, err)
	}
	select {
	case <-k.gone:
	case <-time.After(10 * time.Second):
		t.Error("the connection before is still there")
	}
	k = second
}

// TestKeeperRefuses: what cannot be started is an error, and leaves nothing.
func TestKeeperRefuses(t *testing.T) {
	k, _ := testKeeper(t)
	defer end(t, k)
	p := k.hold()
	if _, err := k.run(t.Context(), p, &streams{}, []string{"/nonexistent"}); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a program that is not there: %v", err)
	}
	if status, err := k.run(t.Context(), p, &streams{}, []string{"/bin/sh", "-c", "exit 5"}); err != nil || status != 5 {
		t.Errorf("a program that fails: %d, %v", status, err)
	}
	k.forget(p)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := k.run(ctx, k.hold(), &streams{}, []string{"/bin/sleep", "60"}); err != context.DeadlineExceeded {
		t.Errorf("a program that hangs: %v", err)
	}
	if err := k.send(message{Type: 99}, nil, nil); err != nil {
		t.Error(err)
	}
	if m := <-k.answers; m.Type != msgDone || m.Number == 0 {
		t.Errorf("an unknown message: %+v", m)
	}
	if _, err := k.ask(message{Type: msgRun, Flags: flagStdout}, []byte("/bin/true\x00"), nil, nil); err == nil {
		t.Error("a stream without a file is taken")
	}
}

// TestKeeperKilled: the end of a keeper is noticed.
func TestKeeperKilled(t *testing.T) {
	k, _ := testKeeper(t)
	f := newFIFOs(t, false)
	_, pid := run(t, k, f, "exec sleep 60")
	defer unix.Kill(pid, unix.SIGKILL)
	if err := unix.Kill(parentOf(t, pid), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-k.gone:
	case <-time.After(10 * time.Second):
		t.Error("the end of the keeper is not noticed")
	}
	if _, err := k.adopt(); err == nil {
		t.Error("a keeper that is gone answers")
	}
}

func parentOf(t *testing.T, pid int) int {
	t.Helper()
	stat, err := procstat.Read(pid)
	if err != nil {
		t.Fatal(err)
	}
	return stat.Parent
}
