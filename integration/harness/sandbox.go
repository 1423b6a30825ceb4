package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// stateDir has one locked file per living sandbox.
const stateDir = "/run/kubelith-test"

// sandboxes is how many can exist at once: each has its own 10.123.N.0/24.
const sandboxes = 250

// sandbox is the parent's side of one set of namespaces.
type sandbox struct {
	sandboxID
	holder  *exec.Cmd
	alive   io.Closer // the holder's standard input
	network *Network  // nil: a veth pair to the host alone
	first   bool      // of its network: owns the bridge

	// HostIP is the host's end of the veth pair, NodeIP the server's end.
	HostIP, NodeIP string
	// HostIP6 and NodeIP6 are the same with Options.IPv6.
	HostIP6, NodeIP6 string
}

// newSandbox picks a free index, starts the holder and connects the network.
func newSandbox(opts Options) (_ *sandbox, err error) {
	id, state, err := allocate()
	if err != nil {
		return nil, err
	}
	defer state.Close() // the holder keeps the lock
	sb := &sandbox{sandboxID: id, network: opts.Network}
	sb.number()
	if err := os.MkdirAll(id.base, 0o755); err != nil {
		return nil, err
	}
	if err := id.makeCgroups(); err != nil {
		return nil, err
	}
	if err := sb.startHolder(state); err != nil {
		return nil, err
	}
	if err := sb.connect(opts.IPv6); err != nil {
		return nil, errors.Join(err, sb.close())
	}
	return sb, nil
}

func (sb *sandbox) startHolder(state *os.File) error {
	spec, err := json.Marshal(holderSpec{Index: sb.index, Base: sb.base, Resolver: sb.HostIP, Bridge: sb.first})
	if err != nil {
		return err
	}
	hostNet, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return err
	}
	defer hostNet.Close()
	statusRead, statusWrite, err := os.Pipe()
	if err != nil {
		return err
	}
	defer statusRead.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), holderEnv+"="+string(spec))
	cmd.ExtraFiles = []*os.File{state, statusWrite, hostNet}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET, Setsid: true}
	if sb.alive, err = cmd.StdinPipe(); err != nil {
		return err
	}
	err = cmd.Start()
	statusWrite.Close()
	if err != nil {
		return fmt.Errorf("start sandbox: %w", err)
	}
	sb.holder = cmd
	said, err := io.ReadAll(statusRead)
	if err != nil || string(said) != "ready" {
		return fmt.Errorf("set up sandbox %d: %s %w", sb.index, said, errors.Join(err, cmd.Wait()))
	}
	return nil
}

// number assigns the sandbox its addresses: 10.123.N.2 and fd00:123:N::2 at the end of its own veth pair, or the next
// ones of its network.
func (sb *sandbox) number() {
	network, member := sb.index, 0
	if sb.network != nil {
		network, member = sb.network.admit(sb.index)
		sb.first = member == 0
	}
	prefix := fmt.Sprintf("10.123.%d.", network)
	sb.HostIP, sb.NodeIP = prefix+"1", prefix+fmt.Sprint(2+member)
	prefix = fmt.Sprintf("fd00:123:%x::", network)
	sb.HostIP6, sb.NodeIP6 = prefix+"1", fmt.Sprintf("%s%x", prefix, 2+member)
}

// connect joins the namespace to the host or to its network by a veth pair; the host is the default route.
func (sb *sandbox) connect(ipv6 bool) error {
	pid := fmt.Sprint(sb.holder.Process.Pid)
	in := []string{"nsenter", "--target=" + pid, "--net", "ip"}
	steps := [][]string{{"ip", "link", "add", sb.veth(), "type", "veth", "peer", "name", "eth0", "netns", pid}}
	if sb.network == nil {
		steps = append(steps, sb.hostAddresses(sb.veth(), ipv6)...)
	} else {
		steps = append(steps, sb.enslave(ipv6)...)
	}
	steps = append(steps,
		[]string{"ip", "link", "set", sb.veth(), "up"},
		append(in, "link", "set", "lo", "up"),
		append(in, "addr", "add", sb.NodeIP+"/24", "dev", "eth0"),
		append(in, "link", "set", "eth0", "up"),
		append(in, "route", "add", "default", "via", sb.HostIP))
	if ipv6 {
		steps = append(steps,
			append(in, "addr", "add", sb.NodeIP6+"/64", "dev", "eth0", "nodad"),
			append(in, "-6", "route", "add", "default", "via", sb.HostIP6))
	}
	for _, step := range steps {
		if out, err := exec.Command(step[0], step[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(step, " "), err, out)
		}
	}
	return nil
}

// hostAddresses returns the commands that give a link of the host the host's addresses.
func (sb *sandbox) hostAddresses(link string, ipv6 bool) [][]string {
	steps := [][]string{{"ip", "addr", "add", sb.HostIP + "/24", "dev", link}}
	if ipv6 {
		steps = append(steps, []string{"ip", "addr", "add", sb.HostIP6 + "/64", "dev", link, "nodad"})
	}
	return append(steps, []string{"ip", "link", "set", link, "up"})
}

// close ends the holder, which removes everything of the sandbox.
func (sb *sandbox) close() error {
	sb.alive.Close()
	done := make(chan error, 1)
	go func() { done <- sb.holder.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("sandbox %d was not removed cleanly: %w", sb.index, err)
		}
		return nil
	case <-time.After(Patience(90 * time.Second)):
		return fmt.Errorf("sandbox %d: its holder (pid %d) is still removing it after 90 s", sb.index, sb.holder.Process.Pid)
	}
}

// Path returns the path of a sandbox's file as seen from outside.
func (sb *sandbox) Path(inside string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", sb.holder.Process.Pid), inside)
}

// Command returns a program to run in the sandbox's network and mount namespaces.
func (sb *sandbox) Command(program string, args ...string) *exec.Cmd {
	full := append([]string{fmt.Sprintf("--target=%d", sb.holder.Process.Pid), "--mount", "--net", "--", program}, args...)
	cmd := exec.Command("nsenter", full...)
	cmd.WaitDelay = 5 * time.Second // for output pipes that a grandchild keeps
	return cmd
}

// allocate takes the first free index and its lock, and removes what a dead run left there.
func allocate() (sandboxID, *os.File, error) {
	if err := os.MkdirAll(stateDir, 0o755); err != nil {
		return sandboxID{}, nil, err
	}
	for i := range sandboxes {
		state, leftover, err := lockState(i)
		if err != nil {
			continue // in use
		}
		id := sandboxID{index: i, base: filepath.Join(testDir(), fmt.Sprint(i))}
		if leftover != "" {
			if err := (sandboxID{index: i, base: leftover}).teardown(false); err != nil {
				fmt.Fprintf(os.Stderr, "harness: remove what an earlier run left of sandbox %d: %v\n", i, err)
				state.Close()
				continue
			}
		}
		if addressTaken(i) {
			state.Truncate(0)
			state.Close()
			continue
		}
		if _, err := state.WriteAt([]byte(id.base), 0); err != nil {
			state.Close()
			return sandboxID{}, nil, err
		}
		return id, state, nil
	}
	return sandboxID{}, nil, fmt.Errorf("no free sandbox: all %d are in use or their addresses are", sandboxes)
}

// lockState locks the state file of an index; leftover is the directory that a dead holder recorded.
func lockState(index int) (state *os.File, leftover string, err error) {
	state, err = os.OpenFile(filepath.Join(stateDir, fmt.Sprint(index)), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, "", err
	}
	if err := unix.Flock(int(state.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		state.Close()
		return nil, "", err
	}
	content, err := io.ReadAll(state)
	if err != nil {
		state.Close()
		return nil, "", err
	}
	return state, string(content), nil
}

// addressTaken reports whether the host already uses addresses of 10.123.index.0/24.
func addressTaken(index int) bool {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	ours := net.IPNet{IP: net.IPv4(10, 123, byte(index), 0).To4(), Mask: net.CIDRMask(24, 32)}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && (ours.Contains(n.IP) || n.Contains(ours.IP)) {
			return true
		}
	}
	return false
}

// testDir holds the sandboxes' directories.
func testDir() string {
	if dir := os.Getenv("KUBELITH_TEST_DIR"); dir != "" {
		return dir
	}
	return "/var/tmp/kubelith-test"
}
