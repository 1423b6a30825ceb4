package process

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubelith.io/kubelith/base/oneline"
	"kubelith.io/kubelith/plugins/proto"
)

// exitError is why a process ended, or is not a plugin. output is what it printed last: only the operator may read
// that, as it may contain secrets.
type exitError struct{ reason, output string }

func (e *exitError) Error() string {
	if e.output == "" {
		return e.reason
	}
	return e.reason + ": " + e.output
}

// PublicError returns the text of an error without the plugin's output: for those who read the cluster's objects or
// send it requests.
func PublicError(err error) string {
	text := err.Error()
	if e := (*exitError)(nil); errors.As(err, &e) && e.output != "" {
		text = strings.Replace(text, e.Error(), e.reason+" (kubelith plugin describe shows its last output)", 1)
	}
	return text
}

// ExitReason returns why the process ended. Valid after Done.
func (p *Process) ExitReason() error {
	select {
	case <-p.runner.outputRead:
	case <-time.After(drainOutputFor):
	}
	if p.OutOfMemory() {
		return fmt.Errorf("used all of its %d MiB of memory and was killed: raise limits.memory, or find the leak", p.spec.Limits.withDefaults().Memory>>20)
	}
	return &exitError{p.runner.process().exitStatus(), p.runner.out.lastLine()}
}

// handshakeError returns why the handshake failed with err.
func (p *Process) handshakeError(err error) error {
	child := p.runner.process()
	if child == nil {
		return err // of the start itself
	}
	if line := p.runner.handshake.line(); line != "" {
		return handshakeLineError(line, err)
	}
	<-child.done // go-plugin has killed it unless it ended by itself
	if child.endedByKill() {
		return fmt.Errorf("printed no handshake: is it a plugin? It closed its output, or was silent for %v", handshakeTimeout)
	}
	return p.ExitReason()
}

// handshakeLineError returns the error in a handshake, CORE-PROTOCOL|PROTOCOL|NETWORK|ADDRESS|TYPE|CERTIFICATE.
func handshakeLineError(line string, err error) error {
	fields := strings.Split(strings.TrimSpace(line), "|")
	if len(fields) < 4 {
		return &exitError{"is not a plugin: its first line of output is not go-plugin's handshake", fmt.Sprintf("%.82q", oneline.Mask(line))}
	}
	switch {
	case fields[0] != strconv.Itoa(goplugin.CoreProtocolVersion):
		return fmt.Errorf("is not supported: it speaks go-plugin's core protocol %.20q, not %d", fields[0], goplugin.CoreProtocolVersion)
	case fields[1] != strconv.Itoa(proto.Version):
		return fmt.Errorf("speaks protocol %.20q, this kubelith speaks %d: build it with an SDK of this version", fields[1], proto.Version)
	case len(fields) < 5 || fields[4] != string(goplugin.ProtocolGRPC):
		return errors.New("speaks net/rpc: go-plugin's gRPC is needed")
	}
	return fmt.Errorf("failed the handshake: %s", oneline.Of(err.Error()))
}

// callError returns why one of the first calls failed with err.
func (p *Process) callError(what string, err error) error {
	select {
	case <-p.Done():
		return p.ExitReason()
	case <-time.After(200 * time.Millisecond): // it may be about to end, which explains more
	}
	if status.Code(err) == codes.DeadlineExceeded {
		return fmt.Errorf("%s: no answer in time", what)
	}
	if s, ok := status.FromError(err); ok {
		return fmt.Errorf("%s: %s", what, oneline.Of(s.Message()))
	}
	return fmt.Errorf("%s: %s", what, oneline.Of(err.Error()))
}
