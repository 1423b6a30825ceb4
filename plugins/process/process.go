package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

const (
	// HealthTimeout is the deadline of a health check.
	HealthTimeout = 5 * time.Second
	exitTimeout   = 3 * time.Second // for a process to exit by itself when asked
)

// Process is one process of a plugin, which has described itself.
type Process struct {
	spec        *Spec
	exe         *Executable
	generation  uint64
	runner      *pluginRunner
	client      *goplugin.Client
	conn        *grpc.ClientConn
	description *pluginv1.Description
	record      *record
	started     time.Time
}

// Spec returns what the process was made from. It must not be changed.
func (p *Process) Spec() *Spec { return p.spec }

// Conn returns the connection on which the plugin serves its services.
func (p *Process) Conn() *grpc.ClientConn { return p.conn }

// Description returns how the plugin described itself at its start.
func (p *Process) Description() *pluginv1.Description { return p.description }

// Generation returns a number that no other process of the launcher has; never 0.
func (p *Process) Generation() uint64 { return p.generation }

// SHA256 returns the checksum of the executable, in hex.
func (p *Process) SHA256() string { return p.exe.SHA256 }

// PID returns the process ID in the server's pid namespace.
func (p *Process) PID() int { return p.runner.process().pid }

// Started returns when the process got ready.
func (p *Process) Started() time.Time { return p.started }

// Cgroup returns the directory of the cgroup that limits the process; empty: nothing limits it.
func (p *Process) Cgroup() string {
	if p.runner.cgroup == nil {
		return ""
	}
	return p.runner.cgroup.Dir()
}

// Done is closed when the process has ended, by itself or not.
func (p *Process) Done() <-chan struct{} { return p.runner.process().done }

// Health queries go-plugin's health service, which answers as long as the process serves anything. It returns within
// HealthTimeout.
func (p *Process) Health(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, HealthTimeout)
	defer cancel()
	answer, err := grpc_health_v1.NewHealthClient(p.conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: goplugin.GRPCServiceName})
	if err == nil && answer.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		err = fmt.Errorf("it reports %s", answer.Status)
	}
	return err
}

// Kill ends the process and everything it started, at once. Stop must follow.
func (p *Process) Kill() { p.runner.kill() }

// Killed reports whether Kill or Stop ended the process. Valid after Done.
func (p *Process) Killed() bool { return p.runner.process().endedByKill() }

// OutOfMemory reports whether the kernel killed a process of the plugin because of its memory limit.
func (p *Process) OutOfMemory() bool { return p.runner.cgroup != nil && p.runner.cgroup.OOMKills() > 0 }

// Stop asks the process to exit, kills it if it does not within 3 s, and removes its cgroup, record and files. A
// process that has ended is only cleaned up after.
func (p *Process) Stop() error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.client.Kill() // asks; hangs if the process is stopped by a signal
	}()
	select {
	case <-ended:
	case <-time.After(exitTimeout):
	}
	p.Kill() // also what it has left
	select {
	case <-ended:
	case <-time.After(exitTimeout):
		return fmt.Errorf("process %s cannot be killed: it hangs in the kernel", p.runner.ID())
	}
	return p.release()
}

// release removes what belongs to a process that has ended or never started.
func (p *Process) release() error {
	p.exe.Close()
	var err error
	if p.runner.temp != "" {
		if err = detachBelow(p.runner.temp); err == nil {
			os.RemoveAll(p.runner.temp) // go-plugin leaves it if the start failed
		}
	}
	if p.runner.cgroup != nil {
		err = errors.Join(err, p.runner.cgroup.Remove())
	}
	return errors.Join(err, p.record.remove())
}
