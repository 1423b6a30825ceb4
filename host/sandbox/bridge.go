package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
)

// Network is an Ethernet that several sandboxes share: a bridge kltbN in the host's namespace whose ports are the
// host's ends of their veth pairs. N is the index of the first sandbox, which must be removed last; the host has
// 10.123.N.1, the sandboxes 10.123.N.2 and so on.
type Network struct {
	mu      sync.Mutex
	index   int
	members int
}

// admit returns the number of the network and that of its new member, from 0.
func (n *Network) admit(index int) (network, member int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.members == 0 {
		n.index = index
	}
	n.members++
	return n.index, n.members - 1
}

// Bridge is the bridge of a network whose first sandbox this is.
func (id ID) Bridge() string { return fmt.Sprintf("kltb%d", id.Index) }

// enslave returns the commands that make the host's end of the veth pair a port of the bridge, which comes with the
// first.
func (sb *Sandbox) enslave(ipv6 bool) [][]string {
	bridge := ID{Index: sb.network.index}.Bridge()
	var steps [][]string
	if sb.first {
		// A fixed address: without one the bridge changes it as ports are added, and the neighbours would keep the old
		// one.
		mac := fmt.Sprintf("02:00:0a:7b:%02x:01", sb.network.index)
		steps = append(steps, []string{"ip", "link", "add", bridge, "address", mac, "type", "bridge"})
		steps = append(steps, sb.hostAddresses(bridge, ipv6)...)
	}
	return append(steps, []string{"ip", "link", "set", sb.Veth(), "master", bridge})
}

// removeBridge removes the bridge from within the sandbox; host is the host's network namespace.
func (id ID) removeBridge(host *os.File) error {
	cmd := exec.Command("nsenter", "--net=/proc/self/fd/3", "ip", "link", "del", id.Bridge())
	cmd.ExtraFiles = []*os.File{host}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", cmd, err, out)
	}
	return nil
}
