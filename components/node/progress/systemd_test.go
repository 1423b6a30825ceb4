package progress

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"kubelith.io/kubelith/base/lifecycle"
)

// What systemd gets: READY=1 once, what is missing before and after, more time before, and the stop.
func TestSystemdHears(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "n")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s := &Systemd{socket: socket}
	ready := lifecycle.Event{State: lifecycle.Ready}
	buffer := make([]byte, 4096)
	for _, step := range []struct {
		say  func()
		want string
	}{
		{func() { s.Observe(ready, false, []string{"apiserver", "dns"}) }, "STATUS=starting: apiserver, dns"},
		{func() { s.patience(false, time.Minute, []string{"apiserver"}) }, "EXTEND_TIMEOUT_USEC=60000000\nSTATUS=starting: apiserver"},
		{func() { s.Observe(ready, true, []string{"dns"}) }, "READY=1\nSTATUS=ready; still starting: dns"},
		{func() { s.patience(true, time.Minute, []string{"dns"}) }, "STATUS=ready; still starting: dns"},
		{func() { s.Observe(ready, true, nil) }, "STATUS=all components are ready"},
		{func() { s.Observe(lifecycle.Event{State: lifecycle.Stopping}, true, nil) }, "STOPPING=1\nSTATUS=stopping"},
	} {
		step.say()
		conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		n, err := conn.Read(buffer)
		if err != nil || string(buffer[:n]) != step.want {
			t.Errorf("%q, %v, want %q", buffer[:n], err, step.want)
		}
	}
}
