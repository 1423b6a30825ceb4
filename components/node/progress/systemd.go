package progress

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"k8s.io/apimachinery/pkg/util/wait"

	"kubelith.io/kubelith/base/lifecycle"
)

// Systemd reports the state of the process to the service manager (sd_notify(3)).
//
// The variables are removed from the environment first: the kubelet would send READY=1 as soon as it is ready itself,
// and watchdog pings for the whole process.
type Systemd struct {
	socket   string
	watchdog time.Duration
	ready    bool
	stopping bool
}

// CaptureSystemd reads the variables of the service manager and removes them.
func CaptureSystemd() *Systemd {
	s := &Systemd{socket: os.Getenv("NOTIFY_SOCKET")}
	s.watchdog, _ = daemon.SdWatchdogEnabled(true) // a value that cannot be parsed means no watchdog
	os.Unsetenv("NOTIFY_SOCKET")
	return s
}

// Observe is called from the Group's goroutine with every event. reached and missing are the progress of the start.
func (s *Systemd) Observe(e lifecycle.Event, reached bool, missing []string) {
	switch {
	case e.State == lifecycle.Stopping:
		if !s.stopping {
			s.stopping = true
			s.notify(daemon.SdNotifyStopping + "\nSTATUS=stopping")
		}
	case e.State != lifecycle.Ready:
	case reached && !s.ready:
		s.ready = true
		s.notify(daemon.SdNotifyReady + "\n" + status(reached, missing))
	default:
		s.notify(status(reached, missing))
	}
}

// patience extends the start timeout by while, so that the service manager does not end a slow start.
func (s *Systemd) patience(reached bool, while time.Duration, missing []string) {
	text := status(reached, missing)
	if !reached {
		text = fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d\n%s", while.Microseconds(), text)
	}
	s.notify(text)
}

// status is the line that systemctl status shows.
func status(reached bool, missing []string) string {
	switch {
	case len(missing) == 0:
		return "STATUS=all components are ready"
	case reached:
		return "STATUS=ready; still starting: " + strings.Join(missing, ", ")
	}
	return "STATUS=starting: " + strings.Join(missing, ", ")
}

// Ping answers the watchdog, if there is one, twice per period until ctx ends.
func (s *Systemd) Ping(ctx context.Context) {
	if s.watchdog > 0 {
		wait.UntilWithContext(ctx, func(context.Context) { s.notify(daemon.SdNotifyWatchdog) }, s.watchdog/2)
	}
}

// notify sends one datagram; without a socket it does nothing.
func (s *Systemd) notify(state string) {
	if s.socket == "" {
		return
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: s.socket, Net: "unixgram"})
	if err != nil {
		return
	}
	defer c.Close()
	c.Write([]byte(state))
}
