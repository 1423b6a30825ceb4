package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Isolate cuts the node off the network, as if its cable were unplugged.
func (s *Server) Isolate(t testing.TB) { s.cable(t, "down") }

// Rejoin ends Isolate.
func (s *Server) Rejoin(t testing.TB) { s.cable(t, "up") }

func (s *Server) cable(t testing.TB, state string) {
	t.Helper()
	if out, err := exec.Command("ip", "link", "set", s.Veth(), state).CombinedOutput(); err != nil {
		t.Fatalf("set the host's end of node %s %s: %v: %s", s.NodeName(), state, err, out)
	}
}

// SmallDisk returns an Options.Prepare that gives the data directory a disk of that many GiB, in memory, so that it can
// be filled.
func SmallDisk(gib int) func(*Server) error {
	return func(s *Server) error {
		script := fmt.Sprintf("mkdir -p /mnt/small && mount -t tmpfs -o size=%[1]dg,mode=0700 small /mnt/small && cp -a %[2]s/. /mnt/small && mount --bind /mnt/small %[2]s", gib, DataDir)
		if out, err := s.Command("sh", "-c", script).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
}

// Partition cuts two nodes of a network off from each other, while both still reach all others. It drops by the
// sender's Ethernet address, and so also tunnelled and routed packets of pods. heal ends it.
func Partition(t testing.TB, a, b *Server) (heal func()) {
	t.Helper()
	const rules = `add table inet %[1]s
add chain inet %[1]s hear { type filter hook prerouting priority -300; }
add rule inet %[1]s hear ether saddr %[2]s drop`
	table := fmt.Sprintf("klt_partition_%d_%d", a.Index, b.Index)
	for _, pair := range [][2]*Server{{a, b}, {b, a}} {
		hears, peer := pair[0], pair[1]
		mac, err := os.ReadFile(peer.Path("/sys/class/net/eth0/address"))
		if err != nil {
			t.Fatal(err)
		}
		hears.Exec(t, "nft", fmt.Sprintf(rules, table, strings.TrimSpace(string(mac))))
	}
	return func() {
		t.Helper()
		for _, s := range []*Server{a, b} {
			s.Exec(t, "nft", "delete", "table", "inet", table)
		}
	}
}

// AddAddress gives the node one more IPv4 address.
func (s *Server) AddAddress(t testing.TB, ip string) {
	t.Helper()
	s.Exec(t, "ip", "addr", "add", ip+"/24", "dev", "eth0")
}

// RemoveAddress takes an IPv4 address away; the others and the default route stay.
func (s *Server) RemoveAddress(t testing.TB, ip string) {
	t.Helper()
	// Without it the kernel removes all other addresses of the subnet together with the first.
	s.Exec(t, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/conf/eth0/promote_secondaries")
	s.Exec(t, "ip", "addr", "del", ip+"/24", "dev", "eth0")
	s.Exec(t, "ip", "route", "replace", "default", "via", s.HostIP)
}

// LinkCounter returns a counter of a network interface of the node, such as tx_packets; -1 when there is no such
// interface.
func (s *Server) LinkCounter(t testing.TB, link, counter string) int64 {
	t.Helper()
	content, err := os.ReadFile(s.Path("/sys/class/net/" + link + "/statistics/" + counter))
	if os.IsNotExist(err) || errors.Is(err, unix.EINVAL) { // EINVAL: it is about to go (net/core/net-sysfs.c)
		return -1
	}
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
