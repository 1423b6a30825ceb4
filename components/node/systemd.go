package node

import (
	"net"
	"os"
	"strconv"
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

// observe is called from the Group's goroutine with every event.
func (s *systemd) observe(e lifecycle.Event, started bool) {
	switch {
	case started && !s.ready:
		s.ready = true
		s.notify("READY=1\nSTATUS=all components are ready") // or, on an agent, those that do without the server
		if s.watchdog > 0 {
			go s.ping()
		}
	case e.State == lifecycle.Stopping && !s.stopping:
		s.stopping = true
		s.notify("STOPPING=1\nSTATUS=stopping")
	case !s.ready && e.State == lifecycle.Ready:
		s.notify("STATUS=" + e.Component + " is ready")
	}
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
