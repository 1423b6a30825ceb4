package tasks

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// What a message asks for, and says. The numbers are those of keeper/keeper.c.
const (
	msgRun = iota + 1
	msgConsole
	msgWatch
	msgForget
	msgResize
	msgCloseStdin
	msgList
	msgQuit

	msgStarted = iota + 8
	msgDone
	msgExited
	msgDrained
	msgState
)

const (
	flagStdin = 1 << iota
	flagStdout
	flagStderr
	flagExited
	flagOutput
)

// message is one of the keeper's protocol, in the machine's own byte order.
type message struct {
	Type, Key, Flags     uint32
	PID, Number          int32
	UID, GID             uint32
	Program              int32
	Seconds, Nanoseconds int64
}

// exit is how a process has ended.
type exit struct {
	status int
	at     time.Time
}

func (m *message) exit() exit { return exit{int(m.Number), time.Unix(m.Seconds, m.Nanoseconds)} }

// kept is a process that a keeper holds.
type kept struct {
	key     uint32
	exited  chan exit     // gets its exit, once
	drained chan struct{} // closed when its output has been passed on
}

func newKept(key uint32) *kept { return &kept{key, make(chan exit, 1), make(chan struct{})} }

// keeper is the connection to a pod's keeper (keeper/keeper.c).
type keeper struct {
	conn *net.UnixConn
	gone chan struct{} // closed when the keeper has ended
	key  uint32        // the last one that was given

	asking  sync.Mutex    // one question at a time
	silent  chan struct{} // closed when one is not answered
	answers chan message  // the answers to it

	mu       sync.Mutex
	programs map[int32]chan exit // those that run started, by their pid
	kept     map[uint32]*kept
}

// answerTimeout is how long a keeper may take. It is short of CPU only when all are.
const answerTimeout = time.Minute

// killTimeout is how long a program may take to end when it is killed.
const killTimeout = 5 * time.Second

// errGone: the keeper has ended.
var errGone = errors.New("the keeper of the pod has ended")

// startKeeper starts a keeper that listens at path. Its arguments tell users, and reset, whose it is.
func startKeeper(program, path string, args ...string) (_ *keeper, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false)
	defer listener.Close()
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(path))
		}
	}()
	file, err := listener.File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	cmd := &exec.Cmd{
		Path: program, Args: append([]string{program}, args...), Dir: "/", Env: os.Environ(), ExtraFiles: []*os.File{file},
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if err := cmd.Run(); err != nil { // it leaves a child that goes on
		return nil, fmt.Errorf("start the keeper of a pod: %w", err)
	}
	return dialKeeper(path)
}

// dialKeeper connects to the keeper at path.
func dialKeeper(path string) (*keeper, error) {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	k := &keeper{
		conn: conn, gone: make(chan struct{}), silent: make(chan struct{}), answers: make(chan message, 1),
		programs: map[int32]chan exit{}, kept: map[uint32]*kept{},
	}
	go k.listen()
	return k, nil
}

// listen takes what the keeper says, until it is gone.
func (k *keeper) listen() {
	defer close(k.gone)
	buffer := make([]byte, binary.Size(message{}))
	for {
		n, err := k.conn.Read(buffer)
		if err != nil || n == 0 {
			return
		}
		var m message
		if _, err := binary.Decode(buffer[:n], binary.NativeEndian, &m); err != nil {
			return
		}
		switch m.Type {
		case msgExited:
			k.exited(m)
		case msgDrained:
			k.mu.Lock()
			if p := k.kept[m.Key]; p != nil {
				p.drain()
			}
			k.mu.Unlock()
		case msgState:
			k.mu.Lock()
			k.known(m)
			k.mu.Unlock()
			k.answer(m)
		default:
			if m.Type == msgStarted && m.Number == 0 {
				k.mu.Lock()
				k.programs[m.PID] = make(chan exit, 1)
				k.mu.Unlock()
			}
			k.answer(m)
		}
	}
}

// answer passes on an answer, unless nobody waits for it any more.
func (k *keeper) answer(m message) {
	select {
	case k.answers <- m:
	case <-k.silent:
	}
}

// known takes a process that the keeper has kept while no server was there.
func (k *keeper) known(m message) {
	p := newKept(m.Key)
	if m.Flags&flagExited != 0 {
		p.exited <- m.exit()
	}
	if m.Flags&flagOutput == 0 {
		p.drain()
	}
	k.key = max(k.key, m.Key)
	k.kept[m.Key] = p
	if m.Program != 0 {
		k.programs[m.Program] = make(chan exit, 1)
	}
}

// drain may be called again.
func (p *kept) drain() {
	select {
	case <-p.drained:
	default:
		close(p.drained)
	}
}

func (k *keeper) exited(m message) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if ended := k.programs[m.PID]; ended != nil && len(ended) == 0 {
		ended <- m.exit()
		return
	}
	if p := k.kept[m.Key]; p != nil && len(p.exited) == 0 {
		p.exited <- m.exit()
	}
}

// send sends a message with what follows it.
func (k *keeper) send(m message, text []byte, files []int) error {
	content, err := binary.Append(nil, binary.NativeEndian, &m)
	if err != nil {
		return err
	}
	var rights []byte
	if len(files) > 0 {
		rights = unix.UnixRights(files...)
	}
	if _, _, err := k.conn.WriteMsgUnix(append(content, text...), rights, nil); err != nil {
		return fmt.Errorf("tell the keeper of the pod: %w", err)
	}
	return nil
}

// ask sends a message and calls each with the answers, up to the last one, which it returns.
func (k *keeper) ask(m message, text []byte, files []int, each func(message)) (message, error) {
	k.asking.Lock()
	defer k.asking.Unlock()
	if err := k.send(m, text, files); err != nil {
		return message{}, err
	}
	timeout := time.NewTimer(answerTimeout)
	defer timeout.Stop()
	for {
		select {
		case answer := <-k.answers:
			if answer.Type == msgState {
				each(answer)
				continue
			}
			if answer.Number != 0 {
				return answer, syscall.Errno(answer.Number)
			}
			return answer, nil
		case <-k.gone:
			return message{}, errGone
		case <-timeout.C:
			_ = k.conn.Close() // a later answer would be taken for that of another question
			close(k.silent)
			return message{}, errors.New("the keeper of the pod does not answer")
		}
	}
}

// hold returns a new process, which the keeper does not know yet.
func (k *keeper) hold() *kept {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.key++
	p := newKept(k.key)
	k.kept[p.key] = p
	return p
}

// run runs a program that leaves the process p behind, with p's streams, and returns its exit status.
func (k *keeper) run(ctx context.Context, p *kept, s *streams, args []string) (int, error) {
	var text bytes.Buffer
	for _, a := range args {
		text.WriteString(a)
		text.WriteByte(0)
	}
	m := message{Type: msgRun, Key: p.key, Flags: s.flags, UID: s.uid, GID: s.gid}
	started, err := k.ask(m, text.Bytes(), s.files, nil)
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", args[0], err)
	}
	return k.await(ctx, started.PID)
}

// await returns the exit status of a program that run started. It kills the program at the end of ctx, and does not
// wait for one that the kernel does not let die, such as for a file system that does not answer.
func (k *keeper) await(ctx context.Context, program int32) (int, error) {
	k.mu.Lock()
	ended := k.programs[program]
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.programs, program)
	}()
	select {
	case e := <-ended:
		return e.status, nil
	case <-k.gone:
		return 0, errGone
	case <-ctx.Done():
		_ = unix.Kill(int(program), unix.SIGKILL)
		select {
		case <-ended:
		case <-k.gone:
		case <-time.After(killTimeout):
		}
		return 0, ctx.Err()
	}
}

// console copies between a terminal and p's streams.
func (k *keeper) console(p *kept, master int, s *streams) error {
	_, err := k.ask(message{Type: msgConsole, Key: p.key, Flags: s.flags}, nil, append([]int{master}, s.files...), nil)
	return err
}

// watch tells the keeper which process p is.
func (k *keeper) watch(p *kept, pid int) error {
	_, err := k.ask(message{Type: msgWatch, Key: p.key, PID: int32(pid)}, nil, nil, nil)
	return err
}

// forget ends p's streams, and what the keeper knows of it.
func (k *keeper) forget(p *kept) {
	_, _ = k.ask(message{Type: msgForget, Key: p.key}, nil, nil, nil) // a keeper that is gone has forgotten
	k.mu.Lock()
	delete(k.kept, p.key)
	k.mu.Unlock()
}

// resize sets the size of p's terminal.
func (k *keeper) resize(p *kept, columns, rows uint32) error {
	return k.send(message{Type: msgResize, Key: p.key, Number: int32(rows&0xffff<<16 | columns&0xffff)}, nil, nil)
}

// closeStdin lets p's input end when its other writers have closed it.
func (k *keeper) closeStdin(p *kept) error {
	return k.send(message{Type: msgCloseStdin, Key: p.key}, nil, nil)
}

// found is a process that a keeper had when this server began. The server before ended while it was being created if
// its pid is 0; program is then what still creates it, 0 if that has ended.
type found struct {
	pid     int
	program int32
}

// adopt returns the processes that the keeper has, by their key.
func (k *keeper) adopt() (map[uint32]found, error) {
	have := map[uint32]found{}
	_, err := k.ask(message{Type: msgList}, nil, nil, func(m message) { have[m.Key] = found{int(m.PID), m.Program} })
	return have, err
}

// of returns a process that adopt has returned.
func (k *keeper) of(key uint32) *kept {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.kept[key]
}

// quit ends the keeper, whose processes have ended, and the connection. Those that were executed for clients of an
// earlier server have been nobody's since.
func (k *keeper) quit() {
	k.mu.Lock()
	left := slices.Collect(maps.Values(k.kept))
	k.mu.Unlock()
	for _, p := range left {
		k.forget(p)
	}
	_ = k.send(message{Type: msgQuit}, nil, nil)
	_ = k.conn.Close()
}
