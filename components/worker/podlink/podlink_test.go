package podlink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
)

// insideEnv is set in the namespaces of the tests.
const insideEnv = "KUBELITH_PODLINK_TEST_INSIDE"

// TestMain runs the tests again in their own network namespace, as its root.
func TestMain(m *testing.M) {
	if os.Getenv(insideEnv) != "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	}
	fmt.Println("skipped: no user namespaces on this host:", err)
}

// pod is a network namespace, of a process that sleeps.
type pod struct {
	t     *testing.T
	id    string
	netns string
	end   func()
}

func newPod(t *testing.T, id string) *pod {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end := func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	t.Cleanup(end)
	return &pod{t, id, fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid), end}
}

// do runs f in the pod's namespace.
func (p *pod) do(f func() error) {
	p.t.Helper()
	if err := ns.WithNetNSPath(p.netns, func(ns.NetNS) error { return f() }); err != nil {
		p.t.Errorf("%s: %v", p.id, err)
	}
}

// world is a node with a bridge.
type world struct {
	*testing.T
	s      *Server
	config map[string]any
}

func newWorld(t *testing.T, cidrs ...string) *world {
	t.Helper()
	w := &world{T: t, s: New(Options{Log: quiet()})}
	t.Cleanup(func() {
		if link, err := netlink.LinkByName("br0"); err == nil {
			_ = netlink.LinkDel(link)
		}
	})
	w.config = map[string]any{"cniVersion": "1.0.0", "name": "n", "type": "kubelith-cni", "bridge": "br0", "mtu": 1400}
	w.use(t.TempDir(), cidrs...)
	return w
}

// use sets the pods' CIDRs.
func (w *world) use(dir string, cidrs ...string) {
	var ranges [][]map[string]string
	routes := []map[string]string{}
	for _, cidr := range cidrs {
		ranges = append(ranges, []map[string]string{{"subnet": cidr}})
		all := "0.0.0.0/0"
		if strings.Contains(cidr, ":") {
			all = "::/0"
		}
		routes = append(routes, map[string]string{"dst": all})
	}
	w.config["ipam"] = map[string]any{"dataDir": dir, "ranges": ranges, "routes": routes}
}

func quiet() logrus.FieldLogger {
	l := logrus.New()
	l.Out = io.Discard
	return l
}

// call returns what the program prints, and its exit status.
func (w *world) call(command string, p *pod) (string, bool) {
	w.Helper()
	config, err := json.Marshal(w.config)
	if err != nil {
		w.Fatal(err)
	}
	content := fmt.Sprintf("CNI_COMMAND=%s\x00CNI_CONTAINERID=%s\x00CNI_NETNS=%s\x00CNI_IFNAME=eth0\x00CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAME=a\x00\x00%s", command, p.id, p.netns, config)
	answer := string(w.s.answer(w.Context(), []byte(content)))
	return answer[1:], answer[0] == '0'
}

func (w *world) add(p *pod) *current.Result {
	w.Helper()
	printed, ok := w.call("ADD", p)
	if !ok {
		w.Fatalf("ADD of %s: %s", p.id, printed)
	}
	r, err := current.NewResult([]byte(printed))
	if err != nil {
		w.Fatalf("%s: %v", printed, err)
	}
	return r.(*current.Result)
}

// refused returns the message of a call that fails.
func (w *world) refused(command string, p *pod) string {
	w.Helper()
	printed, ok := w.call(command, p)
	var e types.Error
	if err := json.Unmarshal([]byte(printed), &e); ok || err != nil || e.Code == 0 {
		w.Fatalf("%s of %s = %s, want an error of CNI", command, p.id, printed)
	}
	return e.Msg
}

func (w *world) done(command string, p *pod) {
	w.Helper()
	if printed, ok := w.call(command, p); !ok || printed != "" {
		w.Errorf("%s of %s: %s", command, p.id, printed)
	}
}

// reserved returns the addresses that are taken.
func (w *world) reserved() string {
	w.Helper()
	entries, err := os.ReadDir(filepath.Join(w.config["ipam"].(map[string]any)["dataDir"].(string), "n"))
	if err != nil {
		w.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if net.ParseIP(e.Name()) != nil {
			names = append(names, e.Name())
		}
	}
	return strings.Join(names, " ")
}

// ports returns how many interfaces the bridge has.
func (w *world) ports() (n int) {
	w.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		w.Fatal(err)
	}
	for _, l := range links {
		if l.Attrs().MasterIndex != 0 {
			n++
		}
	}
	return n
}

// Pods of both families reach each other, their node and themselves, and leave nothing behind.
func TestPods(t *testing.T) {
	w := newWorld(t, "10.42.0.0/24", "fd42::/64")
	a, b := newPod(t, "a"), newPod(t, "b")
	ra, rb := w.add(a), w.add(b)
	if got := fmt.Sprint(ra.IPs[0].Address.String(), " ", ra.IPs[1].Address.String(), " ", rb.IPs[0].Address.IP); got != "10.42.0.2/24 fd42::2/64 10.42.0.3" {
		t.Errorf("addresses: %s", got)
	}
	if len(ra.Interfaces) != 3 || ra.Interfaces[ofBridge].Name != "br0" || ra.Interfaces[ofPod].Name != "eth0" || ra.Interfaces[ofPod].Sandbox != a.netns || *ra.IPs[0].Interface != ofPod {
		t.Errorf("the result: %+v", ra)
	}
	host, err := netlink.LinkByName(ra.Interfaces[ofHost].Name)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := netlink.LinkGetProtinfo(host); err != nil || !p.Hairpin || host.Attrs().MTU != 1400 || host.Attrs().HardwareAddr.String() != ra.Interfaces[ofHost].Mac {
		t.Errorf("the host's end: %+v, %v, %+v", p, err, host.Attrs())
	}
	a.do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil && (link.Attrs().MTU != 1400 || link.Attrs().HardwareAddr.String() != ra.Interfaces[ofPod].Mac) {
			err = fmt.Errorf("eth0: %+v", link.Attrs())
		}
		return err
	})
	for _, ip := range rb.IPs {
		var l net.Listener
		b.do(func() (err error) {
			l, err = net.Listen("tcp", net.JoinHostPort(ip.Address.IP.String(), "7000"))
			return err
		})
		if l == nil {
			t.FailNow()
		}
		defer l.Close()
		reach := func() error {
			conn, err := net.DialTimeout("tcp", l.Addr().String(), 2*time.Second)
			if err == nil {
				conn.Close()
			}
			return err
		}
		a.do(reach)
		err := reach()
		for deadline := time.Now().Add(20 * time.Second); err != nil && time.Now().Before(deadline); err = reach() {
			time.Sleep(50 * time.Millisecond) // the kernel checks for duplicates of the bridge's IPv6 address
		}
		if err != nil {
			t.Errorf("from the node: %v", err)
		}
	}
	w.config["prevResult"] = ra
	w.done("CHECK", a)
	a.do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.AddrDel(link, &netlink.Addr{IPNet: &ra.IPs[0].Address})
	})
	w.refused("CHECK", a)
	delete(w.config, "prevResult")

	w.done("DEL", a)
	w.done("DEL", a)
	if got := w.reserved(); got != "10.42.0.3 fd42::3" || w.ports() != 1 {
		t.Errorf("after the first pod: %q, %d ports", got, w.ports())
	}
	b.end() // with its namespace
	w.done("DEL", b)
	if got := w.reserved(); got != "" {
		t.Errorf("after both pods: %q", got)
	}
}

// What fails leaves neither an address nor an interface.
func TestRefused(t *testing.T) {
	w := newWorld(t, "10.42.0.0/30") // one address for pods
	a, b := newPod(t, "a"), newPod(t, "b")
	b.do(func() error { return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}}) })
	if got := w.refused("ADD", b); !strings.Contains(got, "eth0") || w.reserved() != "" || w.ports() != 0 {
		t.Errorf("an interface that exists: %s; %q, %d ports", got, w.reserved(), w.ports())
	}
	w.add(a)
	if got := w.refused("ADD", newPod(t, "c")); !strings.Contains(got, "no IP addresses available in range set") || w.ports() != 1 {
		t.Errorf("no address is left: %s, %d ports", got, w.ports())
	}
	if got := w.refused("ADD", &pod{t: t, id: "d", netns: "/proc/self/nope"}); !strings.Contains(got, "network namespace") {
		t.Errorf("no namespace: %s", got)
	}
	if got := w.refused("GROW", a); !strings.Contains(got, "GROW") {
		t.Errorf("an unknown command: %s", got)
	}
	w.done("DEL", a)
	w.config["bridge"] = "lo"
	if got := w.refused("ADD", newPod(t, "e")); !strings.Contains(got, "the bridge lo") || w.reserved() != "" {
		t.Errorf("no bridge: %s; %q", got, w.reserved())
	}
	for name, content := range map[string]string{
		"cut off":         "CNI_COMMAND=ADD",
		"no container":    "CNI_COMMAND=DEL\x00CNI_IFNAME=eth0\x00\x00{}",
		"no interface":    "CNI_COMMAND=DEL\x00CNI_CONTAINERID=a\x00\x00{}",
		"no namespace":    "CNI_COMMAND=ADD\x00CNI_CONTAINERID=a\x00CNI_IFNAME=eth0\x00\x00{}",
		"no bridge":       "CNI_COMMAND=DEL\x00CNI_CONTAINERID=a\x00CNI_IFNAME=eth0\x00\x00{}",
		"no addresses":    "CNI_COMMAND=DEL\x00CNI_CONTAINERID=a\x00CNI_IFNAME=eth0\x00\x00{\"bridge\":\"br0\"}",
		"no JSON":         "CNI_COMMAND=DEL\x00CNI_CONTAINERID=a\x00CNI_IFNAME=eth0\x00\x00{",
		"another command": "CNI_CONTAINERID=a\x00CNI_IFNAME=eth0\x00CNI_NETNS=/n\x00\x00{}",
	} {
		var e types.Error
		if answer := w.s.answer(t.Context(), []byte(content)); answer[0] != '1' || json.Unmarshal(answer[1:], &e) != nil || e.Msg == "" {
			t.Errorf("%s: %s", name, answer)
		}
	}
}

// A node that gets other CIDRs keeps its bridge.
func TestOtherCIDR(t *testing.T) {
	w := newWorld(t, "10.42.0.0/24")
	w.add(newPod(t, "a"))
	w.use(t.TempDir(), "10.43.0.0/24")
	r := w.add(newPod(t, "b"))
	bridge, err := netlink.LinkByName("br0")
	if err != nil {
		t.Fatal(err)
	}
	addresses, err := netlink.AddrList(bridge, netlink.FAMILY_V4)
	if err != nil || len(addresses) != 1 || addresses[0].IPNet.String() != "10.43.0.1/24" || r.IPs[0].Address.IP.String() != "10.43.0.2" {
		t.Errorf("the bridge has %v (%v), the pod %v", addresses, err, r.IPs[0])
	}
}

// The component answers at its socket, also after one that was killed.
func TestRun(t *testing.T) {
	w := newWorld(t, "10.42.0.0/24")
	w.s.opts.Socket = filepath.Join(t.TempDir(), "cni", "s")
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		ready, ended := make(chan struct{}), make(chan error, 1)
		go func() { ended <- w.s.Run(ctx, func() { close(ready) }) }()
		<-ready
		if info, err := os.Stat(w.s.opts.Socket); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the socket: %v, %v", info, err)
		}
		conn, err := net.Dial("unix", w.s.opts.Socket)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "CNI_COMMAND=DEL")
		conn.(*net.UnixConn).CloseWrite()
		answer, err := io.ReadAll(conn)
		if err != nil || !strings.HasPrefix(string(answer), "1{") {
			t.Errorf("the answer: %s, %v", answer, err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v", err)
		}
		if err := os.WriteFile(w.s.opts.Socket, nil, 0o600); err != nil { // what a killed process leaves
			t.Fatal(err)
		}
	}
}

// The program hands calls over, prints the answers, and reports the error where there is none.
func TestProgram(t *testing.T) {
	compiler, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc, which building Kubelith needs")
	}
	program := filepath.Join(t.TempDir(), "kubelith-cni")
	if out, err := exec.Command(compiler, "-Wall", "-Wextra", "-Werror", "-o", program, "program/kubelith-cni.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w := newWorld(t, "10.42.0.0/24")
	w.s.opts.Socket = filepath.Join(t.TempDir(), "s")
	w.config["socket"] = w.s.opts.Socket
	run := func(command string, p *pod, config string) (string, bool) {
		cmd := exec.Command(program)
		cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + p.id, "CNI_NETNS=" + p.netns, "CNI_IFNAME=eth0"}
		cmd.Stdin = strings.NewReader(config)
		out, err := cmd.Output()
		return string(out), err == nil
	}
	config, err := json.Marshal(w.config)
	if err != nil {
		t.Fatal(err)
	}
	a := newPod(t, "a")
	for name, c := range map[string]struct{ config, want string }{
		"Kubelith does not run": {string(config), "is it running: No such file or directory"},
		"no socket":             {`{"bridge":"br0"}`, "names no socket"},
		"a long name":           {`{"socket":"/` + strings.Repeat("x", 200) + `"}`, "File name too long"},
		"a long configuration":  {strings.Repeat(" ", 1<<20), "Argument list too long"},
	} {
		out, ok := run("ADD", a, c.config)
		var e types.Error
		if err := json.Unmarshal([]byte(out), &e); ok || err != nil || e.Code != types.ErrTryAgainLater || !strings.Contains(e.Msg, c.want) {
			t.Errorf("%s: %s, %t", name, out, ok)
		}
	}
	if out, ok := run("VERSION", &pod{}, ""); !ok || !strings.Contains(out, `"supportedVersions":["1.0.0"]`) {
		t.Errorf("VERSION: %s, %t", out, ok)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- w.s.Run(ctx, func() { close(ready) }) }()
	<-ready
	if out, ok := run("ADD", a, string(config)); !ok || !strings.Contains(out, `"10.42.0.2/24"`) {
		t.Errorf("ADD: %s, %t", out, ok)
	}
	if out, ok := run("ADD", a, string(config)); ok || !strings.Contains(out, "duplicate allocation") {
		t.Errorf("ADD again: %s, %t", out, ok)
	}
	if out, ok := run("DEL", a, string(config)); !ok || out != "" {
		t.Errorf("DEL: %s, %t", out, ok)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
