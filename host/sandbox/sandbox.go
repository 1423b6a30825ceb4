// Package sandbox gives a node its own machine on this one, so that nothing on the host changes and several nodes run
// at once. Kubelith's own integration tests and the Go library (kubelith.io/kubelith/cluster) start nodes in it.
//
// A sandbox has its own network namespace (joined to the host by a veth pair, 10.123.N.1 outside and 10.123.N.2
// inside), its own mount namespace in which /run, /var/lib, /var/log, /etc, /opt and /usr/libexec are private, and its
// own cgroup root. Process ids are shared with the host. It needs root, ip (iproute2) and nsenter (util-linux).
//
// A holder process keeps the namespaces: the program that called New, executed again with the argument "sandbox" and
// the variable HolderEnv, on which that program must call Hold. The holder, or the next New or Sweep, removes what an
// interrupted run has left. KUBELITH_TEST_DIR (default /var/tmp/kubelith-test) must be on a disk that overlayfs can
// use.
package sandbox

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

// StateDir has one locked file per living sandbox.
const StateDir = "/run/kubelith-test"

// sandboxes is how many can exist at once: each has its own 10.123.N.0/24.
const sandboxes = 250

// Options describe a sandbox. The zero value is joined to the host alone, with IPv4.
type Options struct {
	// IPv6 gives the veth pair fd00:123:N::1 and fd00:123:N::2 as well.
	IPv6 bool
	// Network joins the sandbox to others.
	Network *Network
}

// Sandbox is the parent's side of one set of namespaces.
type Sandbox struct {
	ID
	holder  *exec.Cmd
	alive   io.Closer // the holder's standard input
	network *Network  // nil: a veth pair to the host alone
	first   bool      // of its network: owns the bridge

	// HostIP is the host's end of the veth pair, NodeIP the server's end.
	HostIP, NodeIP string
	// HostIP6 and NodeIP6 are the same with Options.IPv6.
	HostIP6, NodeIP6 string
}

// New picks a free index, starts the holder and connects the network.
func New(opts Options) (_ *Sandbox, err error) {
	if err := raiseLimits(); err != nil {
		return nil, err
	}
	if os.Getenv(HolderEnv) != "" { // a program without Hold would start itself for ever
		return nil, errors.New("this process is a sandbox's holder and runs as a program: call Hold first, as harness.Main does")
	}
	if err := ownDir(testDir()); err != nil {
		return nil, err
	}
	id, state, err := allocate()
	if err != nil {
		return nil, err
	}
	defer state.Close() // the holder keeps the lock
	sb := &Sandbox{ID: id, network: opts.Network}
	sb.number()
	if err := os.MkdirAll(id.Base, 0o755); err != nil {
		return nil, err
	}
	if err := id.makeCgroups(); err != nil {
		return nil, err
	}
	if err := sb.startHolder(state); err != nil {
		return nil, err
	}
	if err := sb.connect(opts.IPv6); err != nil {
		return nil, errors.Join(err, sb.Close())
	}
	return sb, nil
}

func (sb *Sandbox) startHolder(state *os.File) error {
	spec, err := json.Marshal(holderSpec{Index: sb.Index, Base: sb.Base, Resolver: sb.HostIP, Bridge: sb.first})
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
	cmd := exec.Command("/proc/self/exe", "sandbox")
	cmd.Env = append(os.Environ(), HolderEnv+"="+string(spec))
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
		return fmt.Errorf("set up sandbox %d: %s %w", sb.Index, said, errors.Join(err, cmd.Wait()))
	}
	return nil
}

// number assigns the sandbox its addresses: 10.123.N.2 and fd00:123:N::2 at the end of its own veth pair, or the next
// ones of its network.
func (sb *Sandbox) number() {
	network, member := sb.Index, 0
	if sb.network != nil {
		network, member = sb.network.admit(sb.Index)
		sb.first = member == 0
	}
	prefix := fmt.Sprintf("10.123.%d.", network)
	sb.HostIP, sb.NodeIP = prefix+"1", prefix+fmt.Sprint(2+member)
	prefix = fmt.Sprintf("fd00:123:%x::", network)
	sb.HostIP6, sb.NodeIP6 = prefix+"1", fmt.Sprintf("%s%x", prefix, 2+member)
}

// connect joins the namespace to the host or to its network by a veth pair; the host is the default route.
func (sb *Sandbox) connect(ipv6 bool) error {
	pid := fmt.Sprint(sb.holder.Process.Pid)
	in := []string{"nsenter", "--target=" + pid, "--net", "ip"}
	steps := [][]string{{"ip", "link", "add", sb.Veth(), "type", "veth", "peer", "name", "eth0", "netns", pid}}
	if sb.network == nil {
		steps = append(steps, sb.hostAddresses(sb.Veth(), ipv6)...)
	} else {
		steps = append(steps, sb.enslave(ipv6)...)
	}
	steps = append(steps,
		[]string{"ip", "link", "set", sb.Veth(), "up"},
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
func (sb *Sandbox) hostAddresses(link string, ipv6 bool) [][]string {
	steps := [][]string{{"ip", "addr", "add", sb.HostIP + "/24", "dev", link}}
	if ipv6 {
		steps = append(steps, []string{"ip", "addr", "add", sb.HostIP6 + "/64", "dev", link, "nodad"})
	}
	return append(steps, []string{"ip", "link", "set", link, "up"})
}

// Close ends the holder, which removes everything of the sandbox.
func (sb *Sandbox) Close() error {
	sb.alive.Close()
	done := make(chan error, 1)
	go func() { done <- sb.holder.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("sandbox %d was not removed cleanly: %w", sb.Index, err)
		}
		return nil
	case <-time.After(Patience(90 * time.Second)):
		return fmt.Errorf("sandbox %d: its holder (pid %d) is still removing it after 90 s", sb.Index, sb.holder.Process.Pid)
	}
}

// Path returns the path of a sandbox's file as seen from outside.
func (sb *Sandbox) Path(inside string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", sb.holder.Process.Pid), inside)
}

// Command returns a program to run in the sandbox's network and mount namespaces.
func (sb *Sandbox) Command(program string, args ...string) *exec.Cmd {
	full := append([]string{fmt.Sprintf("--target=%d", sb.holder.Process.Pid), "--mount", "--net", "--", program}, args...)
	cmd := exec.Command("nsenter", full...)
	cmd.WaitDelay = 5 * time.Second // for output pipes that a grandchild keeps
	return cmd
}

// HolderPID returns a process in the sandbox's own network and mount namespaces, like the server itself.
func (sb *Sandbox) HolderPID() int { return sb.holder.Process.Pid }

// allocate takes the first free index and its lock, and removes what a dead run left there.
func allocate() (ID, *os.File, error) {
	if err := os.MkdirAll(StateDir, 0o755); err != nil {
		return ID{}, nil, err
	}
	for i := range sandboxes {
		state, leftover, err := lockState(i)
		if err != nil {
			continue // in use
		}
		id := ID{Index: i, Base: filepath.Join(testDir(), fmt.Sprint(i))}
		if leftover != "" {
			if err := (ID{Index: i, Base: leftover}).teardown(false); err != nil {
				fmt.Fprintf(os.Stderr, "sandbox: remove what an earlier run left of sandbox %d: %v\n", i, err)
				state.Close()
				continue
			}
		}
		if addressTaken(i) {
			state.Truncate(0)
			state.Close()
			continue
		}
		if _, err := state.WriteAt([]byte(id.Base), 0); err != nil {
			state.Close()
			return ID{}, nil, err
		}
		return id, state, nil
	}
	return ID{}, nil, fmt.Errorf("no free sandbox: all %d are in use or their addresses are", sandboxes)
}

// lockState locks the state file of an index; leftover is the directory that a dead holder recorded.
func lockState(index int) (state *os.File, leftover string, err error) {
	state, err = os.OpenFile(filepath.Join(StateDir, fmt.Sprint(index)), os.O_RDWR|os.O_CREATE, 0o600)
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

// addressTaken reports whether the host already uses addresses of 10.123.Index.0/24.
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

// ownDir creates a directory, and refuses one of another user, who could have laid files into what becomes a sandbox's
// /etc.
func ownDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s is another user's, or others may write to it: remove it, or set KUBELITH_TEST_DIR", dir)
	}
	return nil
}

// testDir holds the sandboxes' directories.
func testDir() string {
	if dir := os.Getenv("KUBELITH_TEST_DIR"); dir != "" {
		return dir
	}
	return "/var/tmp/kubelith-test"
}
