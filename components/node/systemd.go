package node

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"kubelith.io/kubelith/components/lifecycle"
)

// systemd tells the service manager how the process is (sd_notify(3)).
//
// The variables are taken out of the environment first: the kubelet would say
// READY=1 as soon as itself is, and send watchdog pings for all of us.
type systemd struct {
	socket   string
	watchdog time.Duration
	ready    bool
	stopping bool
}

func captureSystemd() *systemd {
	s := &systemd{socket: os.Getenv("NOTIFY_SOCKET")}
	if us, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64); err == nil && us > 0 {
		s.watchdog = time.Duration(us) * time.Microsecond
	}
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		os.Unsetenv(name)
	}
	return s
}

// observe is called from the Group's goroutine with every event. reached and missing are the progress of the start.
func (s *systemd) observe(e lifecycle.Event, reached bool, missing []string) {
	switch {
	case e.State == lifecycle.Stopping:
		if !s.stopping {
			s.stopping = true
			s.notify("STOPPING=1\nSTATUS=stopping")
		}
	case e.State != lifecycle.Ready:
	case reached && !s.ready:
		s.ready = true
		s.notify("READY=1\n" + status(reached, missing))
		if s.watchdog > 0 {
			go s.ping()
		}
	default:
		s.notify(status(reached, missing))
	}
}

// patience keeps the service manager from ending a start that takes long: it grants another while.
func (s *systemd) patience(reached bool, while time.Duration, missing []string) {
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

// ping answers the watchdog twice per period for as long as the process lives.
func (s *systemd) ping() {
	for range time.Tick(s.watchdog / 2) {
		s.notify("WATCHDOG=1")
	}
}

// notify sends one datagram; without a socket there is nobody to tell.
func (s *systemd) notify(state string) {
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
