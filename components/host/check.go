package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Status is how a check ended.
type Status string

const (
	OK   Status = "ok"
	Warn Status = "warning" // a server runs, with something missing
	Fail Status = "failed"  // a server would not work
)

// Result is what one check found.
type Result struct {
	Name    string // of the check: "cgroups", "port 6443"
	Status  Status
	Message string
	Fix     string // what to do; empty with OK, and where the message says it
}

// String is one line: "failed   nft: not found: install nftables".
func (r Result) String() string {
	return fmt.Sprintf("%-8s %s", r.Status, r.Problem())
}

// Problem is the line without the status.
func (r Result) Problem() string {
	line := r.Name + ": " + r.Message
	if r.Fix != "" {
		line += ": " + r.Fix
	}
	return line
}

// IsPort tells whether the check was of a port.
func (r Result) IsPort() bool { return strings.HasPrefix(r.Name, "port ") }

// Port is one that a component is going to listen on.
type Port struct {
	Component string
	Network   string // tcp or udp
	Address   string // empty: all addresses
	Number    int
	Setting   string // with which the user can choose another; empty: there is none
}

// CheckOptions say what is going to run. The directories need not exist.
type CheckOptions struct {
	DataDir  string
	NodeName string
	Ports    []Port
	// Containers: containerd, the kubelet and the pod network are going to run on this host.
	Containers bool
	// CgroupDriver is what manages the containers' control groups: systemd or cgroupfs.
	CgroupDriver string
	// Proxy: kube-proxy is going to run on this host.
	Proxy bool
	// Bridge: the pods' bridge is going to be masqueraded, which takes nft as kube-proxy does.
	Bridge bool
	// ServiceIPs are the cluster IPs, one per family, that programs of this host are going to reach through kube-proxy.
	ServiceIPs []net.IP
	// NotBefore is a time that the clock must have passed; zero means any. NotBeforeOf says what has it: "this program
	// was built at".
	NotBefore   time.Time
	NotBeforeOf string
}

// Check runs all checks, in the order in which they should be mended. It may load kernel modules, and makes test objects
// in namespaces of its own; it leaves nothing behind.
func Check(ctx context.Context, opts CheckOptions) []Result {
	return check(opts, probe{
		files:     tree{},
		uid:       os.Geteuid(),
		now:       time.Now(),
		look:      exec.LookPath,
		run:       func(stdin, name string, args ...string) (string, error) { return runProgram(ctx, stdin, name, args...) },
		isolated:  isolated,
		addLink:   addLink,
		statfs:    unix.Statfs,
		writable:  func(path string) error { return unix.Access(path, unix.W_OK) },
		overlayOn: overlayOn,
		route:     func(to net.IP) error { _, err := netlink.RouteGet(to); return err },
	})
}

// Failures joins the failed checks, one line each; nil when a server can start.
func Failures(results []Result) error {
	var errs []error
	for _, r := range results {
		if r.Status == Fail {
			errs = append(errs, errors.New(r.Problem()))
		}
	}
	return errors.Join(errs...)
}

// probe is all that the checks know of the host; tests give another one.
type probe struct {
	files     tree
	uid       int
	now       time.Time
	look      func(program string) (string, error)
	run       func(stdin, program string, args ...string) (output string, err error)
	isolated  func(work func() error) error // in new network and mount namespaces
	addLink   func(kind string) error
	statfs    func(path string, st *unix.Statfs_t) error
	writable  func(path string) error
	overlayOn func(dir string) error
	route     func(to net.IP) error // the kernel's choice: an error when there is none
}

func check(opts CheckOptions, p probe) []Result {
	if p.uid != 0 {
		// Everything after this would only say the same in other words.
		return []Result{{"user", Fail, "not root", "run it with sudo"}}
	}
	var checks []func() []Result
	many := func(f func() []Result) { checks = append(checks, f) }
	one := func(f func() Result) { many(func() []Result { return []Result{f()} }) }

	one(func() Result { return Result{Name: "user", Status: OK, Message: "root"} })
	one(func() Result { return checkClock(p, opts) })
	one(func() Result { return checkNodeName(opts.NodeName) })
	many(func() []Result { return checkPorts(p, opts.DataDir, opts.Ports) })
	many(func() []Result { return checkDataDir(p, opts) })
	one(func() Result { return checkMemory(p) })
	one(func() Result { return checkSwap(p) })
	one(func() Result { return checkOpenFiles(p) })
	if opts.Containers || opts.Proxy {
		many(func() []Result { return checkCapabilities(p) })
		one(func() Result { return checkSysctls(p) })
	}
	if opts.Containers {
		one(func() Result { return checkInotify(p) })
		many(func() []Result { return checkCgroups(p, opts.CgroupDriver) })
		many(func() []Result { return checkPrograms(p, "mount", "umount") })
		many(func() []Result { return checkLinks(p) })
		one(func() Result { return checkBridgeFilter(p) })
		one(func() Result { return checkVolumes(p, opts.DataDir) })
	}
	if opts.Proxy || opts.Bridge {
		many(func() []Result { return checkPacketFilter(p) })
	}
	if opts.Bridge {
		one(func() Result { return checkForwarding(p) })
	}
	if opts.Proxy {
		many(func() []Result { return checkServiceRoutes(p, opts.ServiceIPs) })
	}
	return together(checks)
}

// together runs checks at the same time, as some wait for the kernel to make and remove namespaces; the results are in
// the order of the checks.
func together(checks []func() []Result) []Result {
	results := make([][]Result, len(checks))
	var wg sync.WaitGroup
	for i, check := range checks {
		wg.Go(func() { results[i] = check() })
	}
	wg.Wait()
	return slices.Concat(results...)
}

func runProgram(ctx context.Context, stdin, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		if line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n"); line != "" {
			return "", errors.New(line)
		}
		return "", err
	}
	return string(out), nil
}
