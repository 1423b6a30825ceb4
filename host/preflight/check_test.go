package preflight

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/host/hosttest"
	"kubelith.io/kubelith/runtime/oci"
)

// goodHost is a probe for which every check is fine.
func goodHost(t *testing.T) (hosttest.Host, probe) {
	h := hosttest.New(t)
	h.Write("/proc/meminfo", "MemTotal: 4000000 kB\nMemAvailable: 3000000 kB\n")
	h.Write("/proc/swaps", "Filename Type\n")
	h.Write("/proc/self/limits", "Limit                     Soft Limit           Hard Limit           Units     \nMax open files            1024                 524288               files     \n")
	h.Write("/proc/filesystems", "nodev\toverlay\n\text4\n")
	h.Write("/proc/self/status", "Name: x\nCapEff:\t000001ffffffffff\n")
	h.Write("/dev/loop-control", "")
	h.Write("/proc/sys/net/ipv4/ip_forward", "1")
	h.Write("/proc/sys/fs/inotify/max_user_instances", "8192\n")
	h.Write("/proc/sys/fs/inotify/max_user_watches", "1048576\n")
	h.Write("/proc/sys/net/bridge/bridge-nf-call-iptables", "1")
	h.Write("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory hugetlb pids")
	// 127.0.0.1:10053 over UDP by an unknown, :::6443 over TCP by pid 7.
	h.Write("/proc/net/tcp6", "  sl  local_address\n   0: 00000000000000000000000000000000:192B 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1\n")
	h.Write("/proc/net/udp", "  sl  local_address\n   0: 0100007F:2745 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4343 1\n")
	h.Write("/proc/7/comm", "nginx\n")
	h.Link("/proc/7/fd/3", "socket:[4242]")
	return h, probe{
		files: h.Tree,
		now:   time.Unix(2000, 0),
		look:  func(name string) (string, error) { return "/usr/bin/" + name, nil },
		run: func(_, _ string, _ ...string) (string, error) {
			return "elements = { 192.0.2.1 . tcp . 80 : drop }", nil
		},
		isolated: func(work func() error) error { return work() },
		addLink:  func(string) error { return nil },
		statfs: func(_ string, st *unix.Statfs_t) error {
			*st = unix.Statfs_t{Bsize: 4096, Blocks: 1 << 24, Bavail: 1 << 23}
			return nil
		},
		writable:  func(string) error { return nil },
		drops:     func() string { return "" },
		overlayOn: func(string) error { return nil },
		route:     func(net.IP) error { return nil },
		runtimes:  crun("1.8.1"),
	}
}

// crun is a host with this version of it and without youki; without a version, with neither.
func crun(version string) oci.Host {
	return oci.Host{
		Look: func(name string) (string, error) {
			if name != oci.Crun || version == "" {
				return "", exec.ErrNotFound
			}
			return "/usr/bin/crun", nil
		},
		Run: func(string, ...string) (string, error) { return "crun version " + version + "\n+CAP +SECCOMP", nil },
	}
}

func TestRuntimes(t *testing.T) {
	for name, c := range map[string]struct {
		version, byDefault string
		status             Status
		want               string // one line, "" for none
	}{
		"offered":         {"1.8.1", oci.Runc, OK, "crun: 1.8.1, /usr/bin/crun"},
		"the default":     {"1.8.1", oci.Crun, OK, "crun: 1.8.1, /usr/bin/crun"},
		"not there":       {"", oci.Runc, OK, ""},
		"needed":          {"", oci.Crun, Fail, "crun: is the default runtime, but not in PATH: install it, or set --default-runtime runc"},
		"too old":         {"0.17", oci.Runc, OK, "crun: not used: /usr/bin/crun is version 0.17.0: install 1.8.1 or later"},
		"needed, too old": {"0.17", oci.Crun, Fail, "crun: is the default runtime, but /usr/bin/crun is version 0.17.0: install 1.8.1 or later, or set --default-runtime runc"},
	} {
		t.Run(name, func(t *testing.T) {
			lines := ""
			for _, r := range checkRuntimes(probe{runtimes: crun(c.version)}, Options{DefaultRuntime: c.byDefault}) {
				lines += r.Problem()
				if r.Status != c.status {
					t.Errorf("status %s, want %s", r.Status, c.status)
				}
			}
			if lines != c.want {
				t.Errorf("%q, want %q", lines, c.want)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	missing := errors.New("not there")
	opts := Options{DataDir: "/var/lib/kubelith", NodeName: "one", Containers: true, Proxy: true, ServiceIPs: []net.IP{net.ParseIP("10.43.0.10")}, NotBefore: time.Unix(1000, 0), NotBeforeOf: "this program was built at"}
	for name, test := range map[string]struct {
		change func(h hosttest.Host, p *probe, o *Options)
		want   Status
		text   string // in the line; "" means all is fine
	}{
		"a good host": {func(hosttest.Host, *probe, *Options) {}, OK, ""},
		"not root":    {func(_ hosttest.Host, p *probe, _ *Options) { p.uid = 1000 }, Fail, "not root"},
		"not root, no node": {func(_ hosttest.Host, p *probe, o *Options) {
			p.uid, o.AnyUser, o.Containers, o.Proxy = 1000, true, false, false
		}, OK, ""},
		"clock": {func(_ hosttest.Host, p *probe, _ *Options) { p.now = time.Unix(1, 0) }, Fail, "clock: the clock says 1970-01-01T00:00:01Z, but this program was built at 1970-01-01T00:16:40Z: set the clock"},
		"inotify instances": {func(h hosttest.Host, _ *probe, _ *Options) {
			h.Write("/proc/sys/fs/inotify/max_user_instances", "128\n")
		}, Warn, "inotify: fs.inotify.max_user_instances is 128, which a few pods can use up for all processes of root: `sysctl -w fs.inotify.max_user_instances=512`"},
		"inotify watches": {func(h hosttest.Host, _ *probe, _ *Options) {
			h.Write("/proc/sys/fs/inotify/max_user_watches", "8192\n")
		}, Warn, "`sysctl -w fs.inotify.max_user_watches=65536`"},
		"no default runtime": {func(_ hosttest.Host, _ *probe, o *Options) { o.DefaultRuntime = oci.Youki }, Fail, "youki: is the default runtime, but not in PATH: install it, or set --default-runtime runc"},
		"host name":          {func(_ hosttest.Host, _ *probe, o *Options) { o.NodeName = "My_Host" }, Fail, `"My_Host"`},
		"no overlay":         {func(h hosttest.Host, _ *probe, _ *Options) { h.Write("/proc/filesystems", "\text4\n") }, Fail, "modprobe overlay"},
		"overlay not on nfs": {func(_ hosttest.Host, p *probe, _ *Options) { p.overlayOn = func(string) error { return missing } }, Warn, "copied"},
		"read-only":          {func(_ hosttest.Host, p *probe, _ *Options) { p.writable = func(string) error { return missing } }, Fail, "--data-dir"},
		"disk full": {func(_ hosttest.Host, p *probe, _ *Options) {
			p.statfs = func(_ string, st *unix.Statfs_t) error {
				*st = unix.Statfs_t{Bsize: 1, Blocks: 9, Bavail: 1}
				return nil
			}
		}, Fail, "free at least"},
		"disk full below a cluster": {func(h hosttest.Host, p *probe, _ *Options) {
			h.Write("/var/lib/kubelith/server/db/member/x", "")
			p.statfs = func(_ string, st *unix.Statfs_t) error {
				*st = unix.Statfs_t{Bsize: 1, Blocks: 9, Bavail: 1}
				return nil
			}
		}, Warn, "free at least"},
		"memory": {func(h hosttest.Host, _ *probe, _ *Options) { h.Write("/proc/meminfo", "MemAvailable: 1000 kB\n") }, Warn, "memory"},
		"few open files": {func(h hosttest.Host, _ *probe, _ *Options) {
			h.Write("/proc/self/limits", "Max open files            1024                 4096               files     \n")
		}, Warn, "open files: at most 4096: raise the hard limit"},
		"no CAP_SYS_ADMIN": {func(h hosttest.Host, _ *probe, _ *Options) {
			h.Write("/proc/self/status", "CapEff:\t000001ffffdfffff\n")
		}, Fail, "CAP_SYS_ADMIN"},
		"no CAP_SYS_RESOURCE": {func(h hosttest.Host, _ *probe, _ *Options) {
			h.Write("/proc/self/status", "CapEff:\t000001fffeffffff\n")
		}, Warn, "CAP_SYS_RESOURCE"},
		"no memory cgroup": {func(h hosttest.Host, _ *probe, _ *Options) {
			h.Write("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu pids hugetlb")
		}, Fail, "controllers memory"},
		"no mkfs.ext4": {func(_ hosttest.Host, p *probe, _ *Options) { p.look = onlyMisses("mkfs.ext4") }, Warn, "volumes: their size cannot be enforced: mkfs.ext4 is missing: install e2fsprogs"},
		"no mkfs.ext4, quotas": {func(h hosttest.Host, p *probe, _ *Options) {
			p.look = onlyMisses("mkfs.ext4")
			h.Write("/proc/self/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 8:2 / /var/lib rw - xfs /dev/sda2 rw,attr2,prjquota\n3 1 8:3 / /var/lib/kubelet rw - ext4 /dev/sda3 rw\n")
		}, OK, ""},
		"no mkfs.ext4, quotas elsewhere": {func(h hosttest.Host, p *probe, _ *Options) {
			p.look = onlyMisses("mkfs.ext4")
			h.Write("/proc/self/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda1 rw,prjquota\n2 1 8:2 / /var/lib rw - xfs /dev/sda2 rw,attr2\n")
		}, Warn, "e2fsprogs"},
		"no loop": {func(h hosttest.Host, _ *probe, _ *Options) {
			os.Remove(h.Path("/dev/loop-control"))
		}, Warn, "modprobe loop"},
		"no bridge":               {func(_ hosttest.Host, p *probe, _ *Options) { p.addLink = onlyFails("bridge") }, Fail, "modprobe bridge"},
		"no route":                {func(_ hosttest.Host, p *probe, _ *Options) { p.route = func(net.IP) error { return missing } }, Warn, "no route to 10.43.0.10"},
		"no vxlan":                {func(_ hosttest.Host, p *probe, _ *Options) { p.addLink = onlyFails("vxlan") }, Warn, "modprobe vxlan"},
		"no wireguard":            {func(_ hosttest.Host, p *probe, o *Options) { p.addLink, o.WireGuard = onlyFails("wireguard"), true }, Fail, "modprobe wireguard` or use a kernel that has it, or choose --network vxlan on the server"},
		"no wireguard, no need":   {func(_ hosttest.Host, p *probe, _ *Options) { p.addLink = onlyFails("wireguard") }, OK, ""},
		"no vxlan, but wireguard": {func(_ hosttest.Host, p *probe, o *Options) { p.addLink, o.WireGuard = onlyFails("vxlan"), true }, OK, ""},
		"br_netfilter off": {func(h hosttest.Host, _ *probe, _ *Options) {
			h.Write("/proc/sys/net/bridge/bridge-nf-call-iptables", "0")
		}, Warn, "br_netfilter"},
		"no protocol names": {func(_ hosttest.Host, p *probe, _ *Options) {
			p.run = func(_, _ string, _ ...string) (string, error) { return "elements = { 192.0.2.1 . 6 . 80 : drop }", nil }
		}, Fail, "install the package with /etc/protocols"},
		"no nft":   {func(_ hosttest.Host, p *probe, _ *Options) { p.look = onlyMisses("nft") }, Fail, "install nftables"},
		"no mount": {func(_ hosttest.Host, p *probe, _ *Options) { p.look = onlyMisses("mount") }, Fail, "mount: not found"},
		"no nf_tables": {func(_ hosttest.Host, p *probe, _ *Options) {
			p.run = func(_, _ string, _ ...string) (string, error) { return "", missing }
		}, Fail, "nf_tables"},
		"no nft, no proxy": {func(_ hosttest.Host, p *probe, o *Options) { p.look = onlyMisses("nft"); o.Proxy = false }, OK, ""},
		"no nft, bridge": {func(_ hosttest.Host, p *probe, o *Options) {
			p.look = onlyMisses("nft")
			o.Proxy, o.Bridge = false, true
		}, Fail, "install nftables"},
		"forwarding dropped": {func(_ hosttest.Host, p *probe, o *Options) {
			o.Bridge = true
			p.drops = func() string { return "table ip filter, chain FORWARD" }
		}, Warn, "nftables: table ip filter, chain FORWARD"},
		"forwarding accepted": {func(_ hosttest.Host, _ *probe, o *Options) { o.Bridge = true }, OK, ""},
		"forwarding dropped by iptables": {func(h hosttest.Host, p *probe, o *Options) {
			o.Bridge = true
			h.Write("/proc/net/ip_tables_names", "nat\nfilter\n")
			p.run = answers(p.run, "-S FORWARD", "-P FORWARD DROP\n-A FORWARD -i a -j ACCEPT\n")
		}, Warn, "iptables-legacy: chain FORWARD"},
		"iptables not in use": {func(h hosttest.Host, p *probe, o *Options) {
			o.Bridge = true
			h.Write("/proc/net/ip_tables_names", "nat\nmyfilter\n")
			p.run = answers(p.run, "-S FORWARD", "-P FORWARD DROP\n")
		}, OK, ""},
		"noexec":             {noexec, Fail, "mount it with exec"},
		"noexec, no pods":    {func(h hosttest.Host, p *probe, o *Options) { noexec(h, p, o); o.Containers = false }, OK, ""},
		"control plane only": {func(_ hosttest.Host, p *probe, o *Options) { p.addLink = onlyFails("veth"); o.Containers = false }, OK, ""},
		"port taken": {func(_ hosttest.Host, _ *probe, o *Options) {
			o.Ports = []Port{{"apiserver", lifecycle.Port{Network: "tcp", Address: "192.0.2.1", Number: 6443, Setting: "--https-port"}}}
		}, Fail, "apiserver needs it, and nginx (pid 7) has it: stop that program or set another with --https-port"},
		"port of the running server": {func(h hosttest.Host, _ *probe, o *Options) {
			o.Ports = []Port{{"apiserver", lifecycle.Port{Network: "tcp", Address: "192.0.2.1", Number: 6443, Setting: "--https-port"}}}
			h.Write("/var/lib/kubelith/lock", "")
			var st unix.Stat_t
			if err := unix.Stat(h.Path("/var/lib/kubelith/lock"), &st); err != nil {
				t.Fatal(err)
			}
			h.Write("/proc/locks", fmt.Sprintf("1: FLOCK  ADVISORY  WRITE 7 %02x:%02x:%d 0 EOF\n", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino))
		}, OK, ""},
		"port of loopback": {func(_ hosttest.Host, _ *probe, o *Options) {
			o.Ports = []Port{{"dns", lifecycle.Port{Network: "udp", Address: "127.0.0.1", Number: 10053, Setting: ""}}}
		}, Fail, "stop that program: dns has no other port"},
		"another address": {func(_ hosttest.Host, _ *probe, o *Options) {
			o.Ports = []Port{{"dns", lifecycle.Port{Network: "udp", Address: "192.0.2.1", Number: 10053, Setting: ""}}, {"x", lifecycle.Port{Network: "tcp", Address: "", Number: 10053, Setting: ""}}}
		}, OK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h, p := goodHost(t)
			o := opts
			test.change(h, &p, &o)
			results := slices.DeleteFunc(check(o, p), func(r Result) bool { return r.Status == OK })
			if test.text == "" {
				if len(results) > 0 {
					t.Errorf("got %v", results)
				}
				return
			}
			if len(results) == 0 || results[0].Status != test.want || !strings.Contains(results[0].String(), test.text) || results[0].Fix == "" {
				t.Errorf("got %v, want %s with %q", results, test.want, test.text)
			}
			if err := Failures(results); (err != nil) != (test.want == Fail) {
				t.Errorf("failures: %v", err)
			}
		})
	}
}

func noexec(_ hosttest.Host, p *probe, _ *Options) {
	p.statfs = func(_ string, st *unix.Statfs_t) error {
		*st = unix.Statfs_t{Bsize: 4096, Blocks: 1 << 24, Bavail: 1 << 23, Flags: unix.ST_NOEXEC}
		return nil
	}
}

// answers wraps run, with another answer to commands that end so.
func answers(run func(string, string, ...string) (string, error), end, answer string) func(string, string, ...string) (string, error) {
	return func(stdin, program string, args ...string) (string, error) {
		if strings.HasSuffix(strings.Join(args, " "), end) {
			return answer, nil
		}
		return run(stdin, program, args...)
	}
}

func onlyFails(kind string) func(string) error {
	return func(k string) error {
		if k == kind {
			return unix.EOPNOTSUPP
		}
		return nil
	}
}

func onlyMisses(program string) func(string) (string, error) {
	return func(name string) (string, error) {
		if name == program {
			return "", errors.New("not found")
		}
		return "/bin/" + name, nil
	}
}

// One program on all addresses is one problem.
func TestPortOnSeveralAddresses(t *testing.T) {
	_, p := goodHost(t)
	ports := []Port{{"apiserver", lifecycle.Port{Network: "tcp", Address: "192.0.2.1", Number: 6443, Setting: ""}}, {"apiserver", lifecycle.Port{Network: "tcp", Address: "127.0.0.1", Number: 6443, Setting: ""}}}
	if got := checkPorts(p, "/var/lib/kubelith", ports); len(got) != 1 || got[0].Status != Fail {
		t.Errorf("got %v", got)
	}
}

func TestCgroupLayouts(t *testing.T) {
	for want, mountinfo := range map[string]string{
		"v1":                  "1 0 0:1 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n2 0 0:2 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n",
		"hybrid of v1 and v2": "1 0 0:1 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n2 0 0:2 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,memory\n",
		"":                    "1 0 8:1 / / rw - ext4 d rw\n",
	} {
		h := hosttest.New(t)
		h.Write("/proc/self/mountinfo", mountinfo)
		layout, have := cgroupControllers(h.Tree)
		if layout != want || (want != "" && (!have["cpu"] || !have["memory"])) {
			t.Errorf("got %q %v, want %q", layout, have, want)
		}
	}
}
