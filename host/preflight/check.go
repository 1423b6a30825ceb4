// Package preflight reports whether Kubelith can run on this machine.
package preflight

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

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/nft"
	"kubelith.io/kubelith/host"
	"kubelith.io/kubelith/runtime/oci"
)

// Status is the result of a check.
type Status string

const (
	OK   Status = "ok"
	Warn Status = "warning" // a server runs, but something is missing
	Fail Status = "failed"  // a server would not work
)

// Result is what one check found.
type Result struct {
	Name    string // of the check: "cgroups", "port 6443"
	Status  Status
	Message string
	Fix     string // what to do; empty with OK, and if the message has it
}

// String returns one line: "failed   nft: not found: install nftables".
func (r Result) String() string {
	return fmt.Sprintf("%-8s %s", r.Status, r.Problem())
}

// Problem returns the line without the status.
func (r Result) Problem() string {
	line := r.Name + ": " + r.Message
	if r.Fix != "" {
		line += ": " + r.Fix
	}
	return line
}

// IsPort reports whether the check was of a port.
func (r Result) IsPort() bool { return strings.HasPrefix(r.Name, "port ") }

// Port is a port that a component will listen on.
type Port struct {
	Component string
	lifecycle.Port
}

// Options describe what will run. The directories need not exist.
type Options struct {
	DataDir  string
	NodeName string
	Ports    []Port
	// Syncs: etcd will store its data below DataDir. It is measured how fast that is, which may take three seconds.
	Syncs bool
	// Memory is how many bytes should be available; 0: what an idle server and a few small pods need.
	Memory uint64
	// AnyUser: nothing that will run needs root.
	AnyUser bool
	// Containers: containerd, the kubelet and the pod network will run on this host.
	Containers bool
	// CgroupDriver manages the containers' control groups: systemd or cgroupfs.
	CgroupDriver string
	// DefaultRuntime starts the containers: of runtime/oci.
	DefaultRuntime string
	// Proxy: kube-proxy will run on this host.
	Proxy bool
	// Bridge: the pods' bridge will be masqueraded, which needs nft as kube-proxy does.
	Bridge bool
	// WireGuard: it will connect the pods of different nodes.
	WireGuard bool
	// PolicyRules are commands of nft with all that network policies need; empty if they will not be enforced anyway.
	PolicyRules string
	// PolicyLog: packets that network policies drop will be logged.
	PolicyLog bool
	// ServiceIPs are the cluster IPs, one per family, that programs of this host will reach through kube-proxy.
	ServiceIPs []net.IP
	// Passed are the trials of nft's rules that need not be made again; nil: none.
	Passed *Passed
	// NotBefore is a time that the clock must have passed; zero means any. NotBeforeOf names the event at that time:
	// "this program was built at".
	NotBefore   time.Time
	NotBeforeOf string
}

// Check runs all checks, in the order in which to fix them. It may load kernel modules, and creates test objects in its
// own namespaces; it leaves nothing behind.
func Check(ctx context.Context, opts Options) []Result {
	return check(opts, probe{
		files:     host.Tree{},
		uid:       os.Geteuid(),
		now:       time.Now(),
		clock:     time.Now,
		look:      exec.LookPath,
		run:       func(stdin, name string, args ...string) (string, error) { return host.Run(ctx, stdin, name, args...) },
		isolated:  isolated,
		addLink:   addLink,
		statfs:    unix.Statfs,
		writable:  func(path string) error { return unix.Access(path, unix.W_OK) },
		drops:     nft.Drops,
		overlayOn: overlayOn,
		syncs:     syncedFile,
		route:     func(to net.IP) error { _, err := netlink.RouteGet(to); return err },
		runtimes:  oci.This(ctx),
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

// probe is the checks' access to the host; tests use another one.
type probe struct {
	files     host.Tree
	uid       int
	now       time.Time
	clock     func() time.Time // for measurements
	look      func(program string) (string, error)
	run       func(stdin, program string, args ...string) (output string, err error)
	isolated  func(work func() error) error // in new network and mount namespaces
	addLink   func(kind string) error
	statfs    func(path string, st *unix.Statfs_t) error
	writable  func(path string) error
	drops     func() (chain string) // see nft.Drops
	overlayOn func(dir string) error
	syncs     func(dir string) (write func() error, end func(), err error) // write writes a little and syncs it
	route     func(to net.IP) error                                        // the kernel's choice: an error when there is no route
	runtimes  oci.Host
}

func check(opts Options, p probe) []Result {
	if p.uid != 0 && !opts.AnyUser {
		// All further checks would only repeat this.
		return []Result{{"user", Fail, "not root", "run it with sudo"}}
	}
	var checks []func() []Result
	many := func(f func() []Result) { checks = append(checks, f) }
	one := func(f func() Result) { many(func() []Result { return []Result{f()} }) }

	one(func() Result { return checkUser(p) })
	one(func() Result { return checkClock(p, opts) })
	one(func() Result { return checkNodeName(opts.NodeName) })
	many(func() []Result { return checkPorts(p, opts.DataDir, opts.Ports) })
	many(func() []Result { return checkDataDir(p, opts) })
	one(func() Result { return checkMemory(p, opts.Memory) })
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
		many(func() []Result { return checkRuntimes(p, opts) })
		many(func() []Result { return checkLinks(p, opts.WireGuard) })
		one(func() Result { return checkBridgeFilter(p) })
		one(func() Result { return checkVolumes(p, opts.DataDir) })
	}
	if opts.Proxy || opts.Bridge {
		many(func() []Result { return checkPacketFilter(p, opts) })
	}
	if opts.PolicyRules != "" {
		many(func() []Result { return checkPolicies(p, opts) })
	}
	if opts.PolicyLog {
		many(func() []Result { return checkPolicyLog(p) })
	}
	if opts.Bridge {
		one(func() Result { return checkForwarding(p) })
	}
	if opts.Proxy {
		many(func() []Result { return checkServiceRoutes(p, opts.ServiceIPs) })
	}
	results := together(checks)
	if opts.Syncs { // the other checks write to the disk, too
		results = append(results, checkSyncs(p, opts.DataDir))
	}
	return results
}

func checkUser(p probe) Result {
	if p.uid != 0 {
		return Result{Name: "user", Status: OK, Message: fmt.Sprintf("%d; a server without a node does not need root", p.uid)}
	}
	return Result{Name: "user", Status: OK, Message: "root"}
}

// together runs checks in parallel, as some wait for the kernel to create and remove namespaces; the results are in the
// order of the checks.
func together(checks []func() []Result) []Result {
	results := make([][]Result, len(checks))
	var wg sync.WaitGroup
	for i, check := range checks {
		wg.Go(func() { results[i] = check() })
	}
	wg.Wait()
	return slices.Concat(results...)
}
