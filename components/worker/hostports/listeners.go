package hostports

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
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
	tcpListening = 10
	udpOpen      = 7
)

// listeners returns the ports on which programs of the host listen for others: not only on loopback, and not on a port
// that the kernel gave a program for its own requests.
func listeners(dir string) (sets.Set[hostport.Port], error) {
	first, last := ephemeral(dir)
	found := sets.New[hostport.Port]()
	for _, table := range []struct {
		file                    string
		family, protocol, state uint8
		name                    corev1.Protocol
	}{
		{"tcp", unix.AF_INET, unix.IPPROTO_TCP, tcpListening, corev1.ProtocolTCP},
		{"tcp6", unix.AF_INET6, unix.IPPROTO_TCP, tcpListening, corev1.ProtocolTCP},
		{"udp", unix.AF_INET, unix.IPPROTO_UDP, udpOpen, corev1.ProtocolUDP},
		{"udp6", unix.AF_INET6, unix.IPPROTO_UDP, udpOpen, corev1.ProtocolUDP},
	} {
		var addresses []netip.AddrPort
		err := errors.ErrUnsupported
		if dir == hostNet {
			addresses, err = sockets(table.family, table.protocol, table.state)
		}
		if err != nil {
			if addresses, err = inTable(filepath.Join(dir, table.file), table.state); err != nil {
				return nil, err
			}
		}
		for _, a := range addresses {
			p := a.Port()
			if a.Addr().IsLoopback() || p == 0 || table.name == corev1.ProtocolUDP && p >= first && p <= last {
				continue
			}
			found.Insert(hostport.Port{Protocol: table.name, Number: int32(p)})
		}
	}
	return found, nil
}

// inTable reads the addresses of sockets in a state from a file of the kernel; none if it has no such file.
func inTable(path string, state uint8) ([]netip.AddrPort, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // a kernel without IPv6
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	addresses, err := waiting(f, state)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return addresses, nil
}

// waiting reads the addresses of sockets in a state from a table of the kernel.
//
//	sl  local_address rem_address   st ...
//	 0: 00000000:0016 00000000:0000 0A ...
//
// Listening sockets come first in the TCP table (tcp_get_idx of Linux): the rest, on a busy host very many, is not
// read.
func waiting(table io.Reader, state uint8) (addresses []netip.AddrPort, err error) {
	wanted := fmt.Sprintf("%02X", state)
	lines := bufio.NewScanner(table)
	lines.Scan() // the heading
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 {
			return nil, fmt.Errorf("%q is not a socket", lines.Text())
		}
		if fields[3] != wanted {
			if state == tcpListening {
				break
			}
			continue
		}
		address, err := hostport.ParseKernel(fields[1])
		if err != nil {
			return nil, err
		}
		addresses = append(addresses, address)
	}
	return addresses, lines.Err()
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
