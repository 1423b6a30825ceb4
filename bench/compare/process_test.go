package compare

import (
	"os"
	"sync"
	"syscall"
	"time"
)

// restartDelay is systemd's default for RestartSec.
const restartDelay = 100 * time.Millisecond

// process is a supervised program.
type process struct {
	name     string
	stopping chan struct{}
	ended    chan struct{} // closed when it has ended for good
	once     sync.Once

	mu      sync.Mutex
	current *os.Process
	starts  int
}

// supervise starts the program and starts it again until end is called.
func (p *process) supervise(start func() (*os.Process, func())) {
	defer close(p.ended)
	for {
		p.mu.Lock()
		select {
		case <-p.stopping:
			p.mu.Unlock()
			return
		default:
		}
		proc, wait := start()
		p.current = proc
		p.starts++
		p.mu.Unlock()
		if proc != nil {
			wait()
		}
		select {
		case <-p.stopping:
			return
		case <-time.After(restartDelay):
		}
	}
}

// end sends the signal, kills after the timeout, and reports whether that was not necessary.
func (p *process) end(signal syscall.Signal, timeout time.Duration) bool {
	p.once.Do(func() { close(p.stopping) })
	p.signal(signal)
	select {
	case <-p.ended:
		return true
	case <-time.After(timeout):
		p.signal(syscall.SIGKILL)
		<-p.ended
		return false
	}
}

func (p *process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current != nil {
		p.current.Signal(s) // it may have ended: no error that matters
	}
}

func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == nil {
		return 0
	}
	return p.current.Pid
}

func (p *process) restarts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.starts - 1
}
