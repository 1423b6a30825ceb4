package servicelb

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// hostNet is where the kernel tells of the sockets of this process's network. Not of the process: its first thread may be
// in another one.
const hostNet = "/proc/thread-self/net"

// The states of sockets that wait for whoever comes. Source: include/net/tcp_states.h of Linux; UDP has no listening, an
// unconnected socket is closed.
const (
	tcpListening = "0A"
	udpOpen      = "07"
)

// listeners are the ports on which programs of the host listen for others: not on loopback alone, and not on a port that the kernel
// gave a program for its own questions.
func listeners(dir string) (sets.Set[Port], error) {
	first, last := ephemeral(dir)
	found := sets.New[Port]()
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
			found.Insert(Port{table.protocol, int32(p)})
		}
	}
	return found, nil
}

// waiting reads the ports of sockets in a state from a table of the kernel.
//
//	sl  local_address rem_address   st ...
//	 0: 00000000:0016 00000000:0000 0A ...
//
// The sockets that listen come first in those of TCP (tcp_get_idx of Linux): the rest, on a busy host very many, is not read.
func waiting(table io.Reader, state string) (ports []uint16, err error) {
	lines := bufio.NewScanner(table)
	lines.Scan() // the heading
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 {
			return nil, fmt.Errorf("%q is no socket", lines.Text())
		}
		if fields[3] != state {
			if state == tcpListening {
				break
			}
			continue
		}
		ip, port, err := socketAddress(fields[1])
		if err != nil {
			return nil, err
		}
		if !ip.IsLoopback() && port != 0 {
			ports = append(ports, port)
		}
	}
	return ports, lines.Err()
}

// socketAddress parses "0100007F:0016": words of the address in the byte order of a little-endian machine, as are all that
// Kubelith is built for, and the port.
func socketAddress(text string) (netip.Addr, uint16, error) {
	words, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(words)
	if err != nil || len(raw)%4 != 0 {
		return netip.Addr{}, 0, fmt.Errorf("%q is no address", text)
	}
	for i := 0; i < len(raw); i += 4 {
		slices.Reverse(raw[i : i+4])
	}
	ip, ok := netip.AddrFromSlice(raw)
	number, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil {
		return netip.Addr{}, 0, fmt.Errorf("%q is no address", text)
	}
	return ip.Unmap(), uint16(number), nil
}

// ephemeral is the range from which the kernel gives ports.
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
