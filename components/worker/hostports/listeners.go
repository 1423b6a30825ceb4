package hostports

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"kubelith.io/kubelith/base/hostport"
)

// hostNet is where the kernel lists the sockets of this thread's network namespace. Not of the process: its first
// thread may be in another one.
const hostNet = "/proc/thread-self/net"

// The states of sockets that wait for any peer. Source: include/net/tcp_states.h of Linux; UDP has no listening, an
// unconnected socket is closed.
const (
	tcpListening = "0A"
	udpOpen      = "07"
)

// listeners returns the ports on which programs of the host listen for others: not only on loopback, and not on a port
// that the kernel gave a program for its own requests.
func listeners(dir string) (sets.Set[hostport.Port], error) {
	first, last := ephemeral(dir)
	found := sets.New[hostport.Port]()
	for _, table := range []struct {
		file, state string
		protocol    corev1.Protocol
	}{
		{"tcp", tcpListening, corev1.ProtocolTCP}, {"tcp6", tcpListening, corev1.ProtocolTCP},
		{"udp", udpOpen, corev1.ProtocolUDP}, {"udp6", udpOpen, corev1.ProtocolUDP},
	} {
		f, err := os.Open(filepath.Join(dir, table.file))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, err
		}
		ports, err := waiting(f, table.state)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", f.Name(), err)
		}
		for _, p := range ports {
			if table.protocol == corev1.ProtocolUDP && p >= first && p <= last {
				continue
			}
			found.Insert(hostport.Port{Protocol: table.protocol, Number: int32(p)})
		}
	}
	return found, nil
}

// waiting reads the ports of sockets in a state from a table of the kernel.
//
//	sl  local_address rem_address   st ...
//	 0: 00000000:0016 00000000:0000 0A ...
//
// Listening sockets come first in the TCP table (tcp_get_idx of Linux): the rest, on a busy host very many, is not
// read.
func waiting(table io.Reader, state string) (ports []uint16, err error) {
	lines := bufio.NewScanner(table)
	lines.Scan() // the heading
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 {
			return nil, fmt.Errorf("%q is not a socket", lines.Text())
		}
		if fields[3] != state {
			if state == tcpListening {
				break
			}
			continue
		}
		address, err := hostport.ParseKernel(fields[1])
		if err != nil {
			return nil, err
		}
		if !address.Addr().IsLoopback() && address.Port() != 0 {
			ports = append(ports, address.Port())
		}
	}
	return ports, lines.Err()
}

// ephemeral returns the range of the ports that the kernel assigns.
func ephemeral(dir string) (first, last uint16) {
	first, last = 32768, 60999
	file := "/proc/sys/net/ipv4/ip_local_port_range"
	if dir != hostNet {
		file = filepath.Join(dir, "ip_local_port_range")
	}
	if text, err := os.ReadFile(file); err == nil {
		_, _ = fmt.Sscan(string(text), &first, &last)
	}
	return first, last
}
