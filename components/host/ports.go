package host

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// socket is one that listens.
type socket struct {
	address netip.Addr
	port    int
	inode   string
}

// checkPorts tells which ports are taken, for whom we need them and who has them. Those of the server that runs on this
// data directory are as they should be.
func checkPorts(p probe, dataDir string, ports []Port) []Result {
	running := runningServer(p.files, dataDir)
	open := map[string][]socket{"tcp": sockets(p.files, "tcp"), "udp": sockets(p.files, "udp")}
	var out []Result
	for _, port := range ports {
		// One program on all addresses takes the port of each.
		if r := checkPort(p, open[port.Network], port, running); !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

func checkPort(p probe, open []socket, port Port, running string) Result {
	name := fmt.Sprintf("port %d/%s", port.Number, port.Network)
	i := slices.IndexFunc(open, func(s socket) bool { return s.port == port.Number && overlaps(port.Address, s.address) })
	if i < 0 {
		return Result{Name: name, Status: OK, Message: "free for " + port.Component}
	}
	pid, owner := socketOwner(p.files, open[i].inode)
	if pid != "" && pid == running {
		return Result{Name: name, Status: OK, Message: "in use by the running server's " + port.Component}
	}
	fix := "stop that program: " + port.Component + " has no other port"
	if port.Setting != "" {
		fix = "stop that program or give another with " + port.Setting
	}
	return Result{name, Fail, fmt.Sprintf("%s needs it, and %s has it", port.Component, owner), fix}
}

// overlaps: the same address, or one of them is all addresses.
func overlaps(wanted string, taken netip.Addr) bool {
	want, err := netip.ParseAddr(wanted)
	if err != nil || want.IsUnspecified() || taken.IsUnspecified() {
		return true
	}
	return want.Unmap() == taken.Unmap()
}

// sockets reads /proc/net/tcp and its relatives, see proc_pid_net(5): the second field is ADDRESS:PORT in hexadecimal, the
// fourth the state (0A: listening; UDP sockets without a peer have 07), the tenth the inode.
func sockets(files tree, network string) []socket {
	state := map[string]string{"tcp": "0A", "udp": "07"}[network]
	var out []socket
	for _, file := range []string{network, network + "6"} {
		for _, line := range strings.Split(files.text("/proc/net/"+file), "\n") {
			fields := strings.Fields(line)
			if len(fields) < 10 || fields[3] != state {
				continue
			}
			address, port, _ := strings.Cut(fields[1], ":")
			n, err := strconv.ParseUint(port, 16, 16)
			if ip, ok := kernelAddress(address); err == nil && ok {
				out = append(out, socket{ip, int(n), fields[9]})
			}
		}
	}
	return out
}

// kernelAddress reads the kernel's form: words of four bytes in the machine's order (little endian on what we build for).
func kernelAddress(text string) (netip.Addr, bool) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b)%4 != 0 {
		return netip.Addr{}, false
	}
	for i := 0; i < len(b); i += 4 {
		slices.Reverse(b[i : i+4])
	}
	ip, ok := netip.AddrFromSlice(b)
	return ip.Unmap(), ok
}

// socketOwner finds the process that has a socket open, and describes it.
func socketOwner(files tree, inode string) (pid, text string) {
	for _, pid := range files.names("/proc") {
		if _, err := strconv.Atoi(pid); err != nil {
			continue
		}
		dir := filepath.Join("/proc", pid, "fd")
		for _, fd := range files.names(dir) {
			if target, err := os.Readlink(files.path(filepath.Join(dir, fd))); err == nil && target == "socket:["+inode+"]" {
				return pid, fmt.Sprintf("%s (pid %s)", files.text(filepath.Join("/proc", pid, "comm")), pid)
			}
		}
	}
	return "", "a program of another namespace or the kernel"
}
