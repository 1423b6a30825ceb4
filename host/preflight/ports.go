package preflight

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"kubelith.io/kubelith/base/hostport"
	"kubelith.io/kubelith/host"
)

// socket is a listening socket.
type socket struct {
	address netip.Addr
	port    int
	inode   string
}

// checkPorts reports which ports are taken, which component needs them and which process has them. Ports of the server
// that runs on this data directory are fine.
func checkPorts(p probe, dataDir string, ports []Port) []Result {
	running := p.files.RunningServer(dataDir)
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
		fix = "stop that program or set another with " + port.Setting
	}
	return Result{name, Fail, fmt.Sprintf("%s needs it, and %s has it", port.Component, owner), fix}
}

// overlaps reports whether the addresses are the same, or one of them is all addresses.
func overlaps(wanted string, taken netip.Addr) bool {
	want, err := netip.ParseAddr(wanted)
	if err != nil || want.IsUnspecified() || taken.IsUnspecified() {
		return true
	}
	return want.Unmap() == taken.Unmap()
}

// sockets reads /proc/net/tcp and its relatives, see proc_pid_net(5): the second field is ADDRESS:PORT in hexadecimal,
// the fourth the state (0A: listening; UDP sockets without a peer have 07), the tenth the inode.
func sockets(files host.Tree, network string) []socket {
	state := map[string]string{"tcp": "0A", "udp": "07"}[network]
	var out []socket
	for _, file := range []string{network, network + "6"} {
		for _, line := range strings.Split(files.Text("/proc/net/"+file), "\n") {
			fields := strings.Fields(line)
			if len(fields) < 10 || fields[3] != state {
				continue
			}
			if address, err := hostport.ParseKernel(fields[1]); err == nil {
				out = append(out, socket{address.Addr(), int(address.Port()), fields[9]})
			}
		}
	}
	return out
}

// socketOwner finds the process that has a socket open, and describes it.
func socketOwner(files host.Tree, inode string) (pid, text string) {
	for _, pid := range files.Names("/proc") {
		if _, err := strconv.Atoi(pid); err != nil {
			continue
		}
		dir := filepath.Join("/proc", pid, "fd")
		for _, fd := range files.Names(dir) {
			if target, err := os.Readlink(files.Path(filepath.Join(dir, fd))); err == nil && target == "socket:["+inode+"]" {
				return pid, fmt.Sprintf("%s (pid %s)", files.Text(filepath.Join("/proc", pid, "comm")), pid)
			}
		}
	}
	return "", "a program in another namespace or the kernel"
}
