package network

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// The tests of this file run real components, each in a process with its own network namespace: the test binary
// executes itself. The namespaces are joined by a veth pair, and the processes see one list of Nodes, which the test
// serves on a unix socket.

const hostEnv = "KUBELITH_NETWORK_TEST_HOST"

func TestMain(m *testing.M) {
	if spec := os.Getenv(hostEnv); spec != "" {
		hostMain(spec)
		return
	}
	klog.LogToStderr(false) // flannel's lines; a host keeps its own
	klog.SetOutput(io.Discard)
	os.Exit(m.Run())
}

// hostSpec describes the component of one host.
type hostSpec struct {
	Name    string
	Backend Backend
	IPs     []net.IP
	CIDRs   []string // of the cluster
	API     string   // path of the socket
	Key     string   // file
}

// hostMain is a host: it runs commands from its standard input, one per line, and answers each with a line.
func hostMain(text string) {
	var spec hostSpec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		panic(err)
	}
	echo, err := net.Listen("tcp", ":7000")
	if err != nil {
		panic(err)
	}
	go answer(echo)
	ears, err := net.ListenPacket("udp", fmt.Sprintf(":%d", smuggledPort))
	if err != nil {
		panic(err)
	}
	heard := make(chan byte, 100)
	go listen(ears, heard)
	var occupied net.PacketConn
	log := logrus.New()
	log.SetOutput(os.Stderr)
	var server *Server
	var cancel context.CancelFunc
	var ended chan error
	start := func() error {
		var err error
		server, err = New(Options{Backend: spec.Backend, NodeName: spec.Name, NodeIPs: spec.IPs, ClusterCIDRs: spec.CIDRs, KeyFile: spec.Key,
			Client: &rest.Config{Host: "http://api", QPS: -1, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", spec.API)
			}}, Log: log})
		if err != nil {
			return err
		}
		server.ThirdParty(false)
		var ctx context.Context
		ctx, cancel = context.WithCancel(context.Background())
		ready := make(chan struct{})
		ended = make(chan error, 1)
		go func(done chan<- error) { done <- server.Run(ctx, func() { close(ready) }) }(ended)
		select {
		case <-ready:
			return nil
		case err := <-ended:
			return err
		}
	}
	stop := func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(20 * time.Second):
			return errors.New("does not stop")
		}
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		command, argument, _ := strings.Cut(lines.Text(), " ")
		reply := ""
		err := fmt.Errorf("unknown command %q", command)
		switch command {
		case "start":
			spec.Backend = Backend(argument)
			err = start()
		case "stop":
			err = stop()
		case "third-party":
			server.ThirdParty(argument == "yes")
			err = nil
		case "dial":
			reply, err = dial(argument)
		case "occupy": // a UDP port; 0 gives it up
			if occupied != nil {
				occupied.Close()
			}
			occupied, err = net.ListenPacket("udp", ":"+argument)
		case "smuggle":
			err = smuggle(strings.Fields(argument))
		case "heard":
			for err = nil; len(heard) > 0; {
				reply += string(<-heard)
			}
		}
		if err != nil {
			reply = "error: " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		fmt.Println(reply)
	}
}

// answer sends each client its address, and how many bytes it sent.
func answer(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			if n, err := io.Copy(io.Discard, conn); err == nil {
				fmt.Fprintf(conn, "%s %d", conn.RemoteAddr().(*net.TCPAddr).IP, n)
			}
		}()
	}
}

// dial sends many full packets to another host and returns its answer.
func dial(address string) (string, error) {
	conn, err := net.DialTimeout("tcp", net.JoinHostPort(address, "7000"), 2*time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	if _, err := conn.Write(make([]byte, 100_000)); err != nil {
		return "", err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return "", err
	}
	said, err := io.ReadAll(conn)
	return string(said), err
}

// smuggledPort is where a host receives what came in by VXLAN from any source.
const smuggledPort = 7001

// listen passes on what is in the packets, a byte each.
func listen(l net.PacketConn, heard chan<- byte) {
	for packet := make([]byte, 1); ; {
		if _, _, err := l.ReadFrom(packet); err != nil {
			return
		}
		heard <- packet[0]
	}
}

// smuggle sends one packet as VXLAN's devices do, from a program: args are the outer source and destination, the MAC
// address of the device there, the pods' addresses inside, and the byte to send.
func smuggle(args []string) error {
	from, to := netip.AddrPortFrom(netip.MustParseAddr(args[0]), 0), netip.AddrPortFrom(netip.MustParseAddr(args[1]), port)
	mac, err := net.ParseMAC(args[2])
	if err != nil {
		return err
	}
	src, dst := netip.MustParseAddr(args[3]).As4(), netip.MustParseAddr(args[4]).As4()
	udp := binary.BigEndian.AppendUint16(nil, smuggledPort)
	udp = binary.BigEndian.AppendUint16(udp, smuggledPort)
	udp = append(udp, 0, 9, 0, 0, args[5][0]) // length; no checksum
	ip := []byte{0x45, 0, 0, byte(20 + len(udp)), 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	ip = append(append(ip, src[:]...), dst[:]...)
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	packet := []byte{8, 0, 0, 0, 0, 0, vni, 0}                      // RFC 7348
	packet = append(append(packet, mac...), 2, 0, 0, 0, 0, 9, 8, 0) // Ethernet: to, from, IPv4
	packet = append(append(packet, ip...), udp...)
	conn, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(to))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write(packet)
	return err
}

// world is two hosts, a and b, and their Nodes.
type world struct {
	t     *testing.T
	api   *fakeAPI
	hosts map[string]*simHost
}

type simHost struct {
	t       *testing.T
	pid     string
	in      io.Writer
	replies *bufio.Scanner
	node    *corev1.Node
	log     string // file
}

// said is the host's log.
func (h *simHost) said() string {
	h.t.Helper()
	text, err := os.ReadFile(h.log)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(text)
}

// newWorld makes two hosts on one wire: addresses 192.0.2.1 and .2, 2001:db8::1 and ::2. Pods of a host are one
// address on its loopback interface.
func newWorld(t *testing.T, families ...string) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	for _, program := range []string{"ip", "nsenter", "bridge", "nft"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs the program %s", program)
		}
	}
	w := &world{t: t, api: &fakeAPI{nodes: map[string]*corev1.Node{}, watchers: map[chan watchEvent]bool{}}, hosts: map[string]*simHost{}}
	socket := filepath.Join(t.TempDir(), "api")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: w.api}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close() })
	cidrs := map[string]string{"ipv4": "10.42.0.0/16", "ipv6": "fd42::/56"}
	var cluster []string
	for _, f := range families {
		cluster = append(cluster, cidrs[f])
	}
	for i, name := range []string{"a", "b"} {
		var parts []string
		spec := hostSpec{Name: name, CIDRs: cluster, API: socket, Key: filepath.Join(t.TempDir(), "wireguard.key")}
		for _, f := range families {
			pods, address := fmt.Sprintf("10.42.%d.0/24", i), fmt.Sprintf("192.0.2.%d", i+1)
			if f == "ipv6" {
				pods, address = fmt.Sprintf("fd42:0:0:%d::/64", i), fmt.Sprintf("2001:db8::%d", i+1)
			}
			parts = append(parts, pods, address)
			spec.IPs = append(spec.IPs, net.ParseIP(address))
		}
		w.hosts[name] = startHost(t, spec)
		w.hosts[name].node = obj(name, parts...)
	}
	a, b := w.hosts["a"], w.hosts["b"]
	a.ip("link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", b.pid)
	for i, h := range []*simHost{a, b} {
		h.ip("link", "set", "lo", "up")
		h.ip("addr", "add", fmt.Sprintf("192.0.2.%d/24", i+1), "dev", "eth0")
		h.ip("addr", "add", fmt.Sprintf("2001:db8::%d/64", i+1), "dev", "eth0", "nodad")
		h.ip("link", "set", "eth0", "up")
		h.ip("addr", "add", fmt.Sprintf("10.42.%d.9/32", i), "dev", "lo")
		h.ip("addr", "add", fmt.Sprintf("fd42:0:0:%d::9/128", i), "dev", "lo")
	}
	w.api.set(a.node)
	w.api.set(b.node)
	return w
}

func startHost(t *testing.T, spec hostSpec) *simHost {
	t.Helper()
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), hostEnv+"="+string(text))
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	log, err := os.Create(filepath.Join(t.TempDir(), spec.Name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = log
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if said, _ := os.ReadFile(log.Name()); t.Failed() || testing.Verbose() {
			t.Logf("the log of host %s:\n%s", spec.Name, said)
		}
		log.Close()
	})
	return &simHost{t: t, pid: strconv.Itoa(cmd.Process.Pid), in: in, replies: bufio.NewScanner(out), log: log.Name()}
}

// do runs a command of hostMain.
func (h *simHost) do(command string) (string, error) {
	h.t.Helper()
	if _, err := fmt.Fprintln(h.in, command); err != nil {
		h.t.Fatalf("%s: %v", command, err)
	}
	if !h.replies.Scan() {
		h.t.Fatalf("%s: the host has ended", command)
	}
	if why, failed := strings.CutPrefix(h.replies.Text(), "error: "); failed {
		return "", errors.New(why)
	}
	return h.replies.Text(), nil
}

func (h *simHost) must(command string) {
	h.t.Helper()
	if _, err := h.do(command); err != nil {
		h.t.Fatalf("%s: %v", command, err)
	}
}

// run runs a program in the host's network.
func (h *simHost) run(program string, args ...string) string {
	h.t.Helper()
	out, err := exec.Command("nsenter", append([]string{"--target=" + h.pid, "--net", program}, args...)...).CombinedOutput()
	if err != nil {
		h.t.Fatalf("%s %s: %v: %s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (h *simHost) ip(args ...string) string { h.t.Helper(); return h.run("ip", args...) }

// links are the names of the interfaces.
func (h *simHost) links() (out []string) {
	for line := range strings.Lines(h.ip("-o", "link")) {
		name, _, _ := strings.Cut(strings.Fields(line)[1], "@")
		out = append(out, strings.TrimSuffix(name, ":"))
	}
	slices.Sort(out)
	return out
}

// packets is how many the interface has sent.
func (h *simHost) packets(link string) int {
	h.t.Helper()
	var stats []struct {
		Stats64 struct{ Tx struct{ Packets int } }
	}
	if err := json.Unmarshal([]byte(h.ip("-s", "-j", "link", "show", link)), &stats); err != nil || len(stats) != 1 {
		h.t.Fatalf("counters of %s: %v", link, err)
	}
	return stats[0].Stats64.Tx.Packets
}

// eventually polls until check finds nothing wrong.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(45 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

// reach waits until each host reaches the other's pod and is seen there with an address of its own pods or its node.
func (w *world) reach(ipv6 bool) {
	w.t.Helper()
	address := map[string]string{"a": "10.42.0.9", "b": "10.42.1.9"}
	if ipv6 {
		address = map[string]string{"a": "fd42::9", "b": "fd42:0:0:1::9"}
	}
	for from, to := range map[string]string{"a": "b", "b": "a"} {
		eventually(w.t, from+" to the pod of "+to, func() error {
			said, err := w.hosts[from].do("dial " + address[to])
			if err == nil && !strings.HasSuffix(said, " 100000") {
				err = fmt.Errorf("it answered %q", said)
			}
			return err
		})
	}
}

// entries are our routes, neighbours and forwarding entries, or what looks like them.
func (h *simHost) entries() string {
	h.t.Helper()
	var out []string
	for text, sign := range map[string]string{
		h.ip("-4", "route"):                       " via ",
		h.ip("-6", "route"):                       " via ",
		h.ip("neigh", "show", "nud", "permanent"): "",
		h.run("bridge", "fdb", "show"):            " dst ",
	} {
		for line := range strings.Lines(text) {
			if strings.Contains(line, sign) {
				out = append(out, line)
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, "")
}
