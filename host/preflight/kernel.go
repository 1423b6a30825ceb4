package preflight

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/filetree"
	"kubelith.io/kubelith/host"
)

// capabilities returns the effective set of this process (proc_pid_status(5), CapEff).
func (p probe) capabilities() (mask uint64) {
	for _, line := range strings.Split(p.files.Text("/proc/self/status"), "\n") {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			mask, _ = strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		}
	}
	return mask
}

// checkCapabilities compares the effective set with what containers, mounts and networks need.
func checkCapabilities(p probe) []Result {
	mask := p.capabilities()
	needed := map[string]int{"CAP_CHOWN": unix.CAP_CHOWN, "CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "CAP_FOWNER": unix.CAP_FOWNER,
		"CAP_KILL": unix.CAP_KILL, "CAP_MKNOD": unix.CAP_MKNOD, "CAP_NET_ADMIN": unix.CAP_NET_ADMIN, "CAP_NET_RAW": unix.CAP_NET_RAW,
		"CAP_SETGID": unix.CAP_SETGID, "CAP_SETUID": unix.CAP_SETUID, "CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN, "CAP_SYS_CHROOT": unix.CAP_SYS_CHROOT}
	var out []Result
	for _, name := range slices.Sorted(maps.Keys(needed)) {
		if mask&(1<<needed[name]) == 0 {
			out = append(out, Result{"capability " + name, Fail, "missing", "run on the host itself or in a privileged container"})
		}
	}
	if mask&(1<<unix.CAP_SYS_RESOURCE) == 0 {
		out = append(out, Result{"capability CAP_SYS_RESOURCE", Warn, "missing, so the kernel's OOM killer cannot follow the QoS classes of pods",
			"run on the host itself or in a privileged container"})
	}
	if len(out) == 0 {
		out = []Result{{Name: "capabilities", Status: OK, Message: "all required ones present"}}
	}
	return out
}

// checkSysctls: pods need forwarding, which the network plugins enable.
func checkSysctls(p probe) Result {
	const forward = "/proc/sys/net/ipv4/ip_forward"
	err := p.writable(p.files.Path(forward))
	switch {
	case err == nil:
		return Result{Name: "kernel settings", Status: OK, Message: "/proc/sys is writable"}
	case p.files.Text(forward) == "1":
		return Result{"kernel settings", Warn, "/proc/sys is read-only, so pods cannot set sysctls", "mount /proc/sys writable"}
	default:
		return Result{"kernel settings", Fail, "forwarding is off and /proc/sys is read-only", "set net.ipv4.ip_forward=1 or mount /proc/sys writable"}
	}
}

// checkCgroups reports the layout and the driver (systemd or cgroupfs). The kubelet does not start without cpu, cpuset
// and memory.
func checkCgroups(p probe, driver string) []Result {
	layout, have := cgroupControllers(p.files)
	if layout == "" {
		return []Result{{"cgroups", Fail, "none are mounted at /sys/fs/cgroup", "mount cgroup2 there or start with systemd"}}
	}
	var missing, wanted []string
	for _, c := range []string{"cpu", "cpuset", "memory"} {
		if !have[c] {
			missing = append(missing, c)
		}
	}
	for _, c := range []string{"pids", "hugetlb"} {
		if !have[c] {
			wanted = append(wanted, c)
		}
	}
	switch {
	case len(missing) > 0:
		return []Result{{"cgroups", Fail, fmt.Sprintf("%s without controllers %s", layout, strings.Join(missing, ", ")),
			"enable them on the kernel's command line, for example with cgroup_enable=memory, and reboot"}}
	case len(wanted) > 0:
		message := fmt.Sprintf("%s without controllers %s, so such limits have no effect", layout, strings.Join(wanted, ", "))
		return []Result{{"cgroups", Warn, message, "use a kernel that has them"}}
	}
	return []Result{{Name: "cgroups", Status: OK, Message: layout + ", managed by " + driver}}
}

// cgroupControllers returns the layout ("" without cgroups) and the usable controllers: with v2 those in
// cgroup.controllers, with v1 the mounted ones.
func cgroupControllers(files host.Tree) (layout string, have map[string]bool) {
	have = map[string]bool{}
	if files.Exists(host.Cgroups + "/cgroup.controllers") {
		for _, c := range strings.Fields(files.Text(host.Cgroups + "/cgroup.controllers")) {
			have[c] = true
		}
		have["hugetlb"] = have["hugetlb"] || !files.Exists("/sys/kernel/mm/hugepages")
		return "v2", have
	}
	mounts, _ := files.Mounts() // without /proc there are none
	for _, m := range mounts {
		switch {
		case !filetree.Below(host.Cgroups, m.Mountpoint):
		case m.FSType == "cgroup":
			for _, c := range strings.Split(m.VFSOptions, ",") {
				have[c] = true
			}
			if layout == "" {
				layout = "v1"
			}
		case m.FSType == "cgroup2":
			layout = "hybrid of v1 and v2"
		}
	}
	return layout, have
}

func checkPrograms(p probe, names ...string) []Result {
	var out []Result
	for _, name := range names {
		path, err := p.look(name)
		if err != nil {
			out = append(out, Result{name, Fail, "not found", "install the package that has it (util-linux or mount)"})
			continue
		}
		out = append(out, Result{Name: name, Status: OK, Message: path})
	}
	return out
}

// checkLinks creates the kinds of interfaces that pods need. The kernel loads modules for them by itself.
func checkLinks(p probe, wireGuard bool) []Result {
	var out []Result
	between := "vxlan"
	if wireGuard {
		between = "wireguard"
	}
	for _, kind := range []string{"bridge", "veth", between} {
		err := p.isolated(func() error { return p.addLink(kind) })
		if err == nil {
			out = append(out, Result{Name: "interface " + kind, Status: OK, Message: "can be created"})
			continue
		}
		r := Result{"interface " + kind, Fail, fmt.Sprintf("the kernel cannot create one (%v)", err),
			"load it with `modprobe " + kind + "` or use a kernel that has it"}
		switch kind {
		case "vxlan":
			r.Status = Warn // only clusters of several nodes need it
			r.Fix += ", or choose --network host-gw"
		case "wireguard": // the user relies on the encryption
			r.Fix += ", or choose --network vxlan on the server"
		}
		out = append(out, r)
	}
	return out
}

// checkBridgeFilter: without br_netfilter a Service's answers to a pod on the same bridge bypass the packet filter and
// keep the wrong address.
func checkBridgeFilter(p probe) Result {
	const call = "/proc/sys/net/bridge/bridge-nf-call-iptables"
	if !p.files.Exists(call) {
		_, _ = p.run("", "modprobe", "br_netfilter") // the file shows whether it helped
	}
	switch {
	case !p.files.Exists(call):
		return Result{"br_netfilter", Fail, "the kernel does not filter bridged packets, so Services would not work",
			"load it with `modprobe br_netfilter` or use a kernel that has it"}
	case p.files.Text(call) == "0":
		return Result{"br_netfilter", Warn, "switched off, so Services would not work between pods of this node",
			"set net.bridge.bridge-nf-call-iptables=1"}
	}
	return Result{Name: "br_netfilter", Status: OK, Message: "on"}
}

// rulesOfProxy uses each feature of nf_tables that kube-proxy's rules use.
const rulesOfProxy = `add table ip kubelith-check
add chain ip kubelith-check nat { type nat hook postrouting priority 100 ; }
add chain ip kubelith-check filter { type filter hook forward priority 0 ; }
add chain ip kubelith-check translate { type nat hook prerouting priority -100 ; }
add map ip kubelith-check services { type ipv4_addr . inet_proto . inet_service : verdict ; }
add set ip kubelith-check affinity { type ipv4_addr ; flags dynamic,timeout ; timeout 10s ; }
add rule ip kubelith-check nat mark and 0x4000 != 0 masquerade fully-random
add rule ip kubelith-check filter ct state new ip daddr . meta l4proto . th dport vmap @services
add rule ip kubelith-check filter fib daddr type local reject
add rule ip kubelith-check translate numgen random mod 2 vmap { 0 : drop, 1 : accept }
add rule ip kubelith-check translate update @affinity { ip saddr } meta l4proto tcp dnat to 192.0.2.1:80
add element ip kubelith-check services { 192.0.2.1 . tcp . 80 : drop }
`

// errUnnamed: nft lists protocols as numbers.
var errUnnamed = errors.New("nft lists tcp as a number")

// checkPacketFilter writes rules like kube-proxy's (the pod network needs some of them) into an empty network
// namespace.
func checkPacketFilter(p probe, opts Options) []Result {
	nft, err := p.look("nft")
	if err != nil {
		return []Result{{"nft", Fail, "not found", "install nftables"}}
	}
	out := []Result{{Name: "nft", Status: OK, Message: nft}}
	// What nft lists depends on the names of protocols, too.
	err = opts.Passed.try(p, nft, rulesOfProxy+p.files.Text("/etc/protocols"), func() error {
		if _, err := p.run(rulesOfProxy, nft, "-f", "-"); err != nil {
			return err
		}
		elements, err := p.run("", nft, "list", "map", "ip", "kubelith-check", "services")
		if err == nil && !strings.Contains(elements, ". tcp .") {
			return errUnnamed
		}
		return err
	})
	if err != nil && !errors.Is(err, errUnnamed) {
		return append(out, Result{"nf_tables", Fail, fmt.Sprintf("the kernel rejects rules that kube-proxy needs (%v)", err),
			"load them with `modprobe -a nf_tables nft_chain_nat nft_masq nft_fib_ipv4 nft_reject_ipv4 nft_numgen nft_ct` or use kernel 5.13 or later with them"})
	}
	out = append(out, Result{Name: "nf_tables", Status: OK, Message: "accepts the rules that kube-proxy needs"})
	if err != nil {
		// kube-proxy compares nft's list with the desired rules, and deletes the difference.
		out = append(out, Result{"protocol names", Fail, "nft lists tcp as a number, so kube-proxy would delete its own rules at the next restart",
			"install the package with /etc/protocols (netbase)"})
	}
	return out
}

// checkServiceRoutes: kube-proxy redirects packets to a cluster IP, but if this host itself sends one and has no route
// for it, the kernel drops it before kube-proxy sees it. Pods always have a route.
func checkServiceRoutes(p probe, ips []net.IP) []Result {
	var out []Result
	for _, ip := range ips {
		if err := p.route(ip); err != nil {
			out = append(out, Result{"route to Services", Warn, fmt.Sprintf("no route to %s, so this host's own programs (not its pods) cannot reach cluster IPs", ip),
				"add a default route, through any interface"})
		}
	}
	if len(out) == 0 && len(ips) > 0 {
		out = []Result{{Name: "route to Services", Status: OK, Message: "present"}}
	}
	return out
}
