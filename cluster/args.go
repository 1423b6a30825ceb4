package cluster

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
)

// check reports options that contradict each other or the library's own settings.
func (o Options) check() error {
	if len(o.Images) > 0 && !o.Node {
		return errors.New("Options.Images needs Options.Node: without a node no container runs")
	}
	for _, arg := range o.Args {
		if name := flagName(arg); slices.Contains(own(), name) {
			return fmt.Errorf("Options.Args has --%s, which the library sets itself: leave it out", name)
		}
	}
	return nil
}

// own are the flags that the library sets, or that would break what it relies on: what keeps clusters apart and ends
// them.
func own() []string {
	return []string{"data-dir", "run-dir", "kubelet-root-dir", "write-kubeconfig", "bind-address", "https-port", "advertise-address",
		"node-ip", "log-file", "stop-with-stdin"}
}

// flagName returns NAME of --NAME=VALUE, --NAME and -NAME; "" for what is no flag.
func flagName(arg string) string {
	if !strings.HasPrefix(arg, "-") {
		return ""
	}
	name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	return name
}

// values returns the values of a flag that may be repeated, and whose value may follow as the next argument.
func values(args []string, flag string) []string {
	var all []string
	for i, arg := range args {
		if flagName(arg) != flag {
			continue
		}
		_, value, ok := strings.Cut(arg, "=")
		if !ok && i+1 < len(args) {
			value = args[i+1]
		}
		all = append(all, strings.Split(value, ",")...)
	}
	return all
}

// withoutNode are the components that a cluster without a node does not run.
func withoutNode() []string {
	return []string{"containerd", "kubelet", "network", "proxy", "dns", "local-storage", "servicelb", "metrics-server"}
}

// nowhere is an address of no machine (RFC 5737). The API of a cluster without a node has it as its advertised address,
// which must not be a loopback address: such a cluster has no pods that would use it.
const nowhere = "192.0.2.1"

// serverArgs returns the arguments with which the server is started, each time.
func (c *Cluster) serverArgs() []string {
	args := []string{"server", "--stop-with-stdin", "--write-kubeconfig=" + c.Kubeconfig(), "--bind-address=" + c.addr.ip, "--https-port=" + c.addr.port}
	if !slices.Contains(flagNames(c.opts.Args), "config") {
		args = append(args, "--config=") // not the host's
	}
	if c.opts.Node {
		return append(append(args, c.box.serverArgs()...), c.opts.Args...)
	}
	// Three directories beside each other, as the server wants them; its sockets need a short path.
	args = append(args, "--data-dir="+c.dir.path("data"), "--run-dir="+c.dir.path("run"), "--kubelet-root-dir="+c.dir.path("kubelet"),
		"--node-ip="+nowhere, "--disable="+strings.Join(withoutNode(), ","))
	return append(args, c.opts.Args...)
}

func flagNames(args []string) []string {
	var names []string
	for _, arg := range args {
		names = append(names, flagName(arg))
	}
	return names
}

// address is where a server listens.
type address struct{ ip, port string }

// freeAddress returns a random address of the loopback network, and a port that no program has there or on all
// addresses. Two clusters are as good as never given the same address, so nothing can take the port before the server
// does, except a program that listens on all addresses.
func freeAddress() (address, error) {
	var err error
	for range 10 {
		ip := randomLoopback()
		for _, port := range []string{"6443", "0"} {
			var l net.Listener
			if l, err = net.Listen("tcp", net.JoinHostPort(ip, port)); err == nil {
				defer l.Close()
				_, port, err = net.SplitHostPort(l.Addr().String())
				return address{ip, port}, err
			}
		}
	}
	return address{}, fmt.Errorf("no address of 127.0.0.0/8 is free for the API: %w", err)
}
