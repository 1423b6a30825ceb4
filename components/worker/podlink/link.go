package podlink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/ip"
	"github.com/containernetworking/plugins/pkg/ipam"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/utils/sysctl"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/reconcile"
)

// network is the configuration of a call.
type network struct {
	types.PluginConf
	Bridge        string `json:"bridge"`
	MTU           int    `json:"mtu"` // 0: the kernel's choice
	RuntimeConfig struct {
		PortMappings []json.RawMessage `json:"portMappings"`
	} `json:"runtimeConfig"`

	addresses *allocator.IPAMConfig
}

func readNetwork(config []byte, args string) (*network, error) {
	n := &network{}
	if err := json.Unmarshal(config, n); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the configuration: "+err.Error(), "")
	}
	if n.Bridge == "" {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "the configuration names no bridge", "")
	}
	var err error
	if n.addresses, _, err = allocator.LoadIPAMConfig(config, args); err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "the configuration: "+err.Error(), "")
	}
	return n, nil
}

// Indices of a result's interfaces.
const (
	ofBridge = iota
	ofHost
	ofPod
)

// add connects a pod: a pair of interfaces, one at the bridge and one in the pod, with the pod's addresses and routes.
// What it has done when it fails, it undoes.
//
// Source: containernetworking/plugins, plugins/main/bridge: sysctls, order, and the wait for the bridge's port.
func (s *Server) add(ctx context.Context, c *call, n *network) (_ types.Result, err error) {
	netns, err := ns.GetNS(c.netns)
	if err != nil {
		return nil, fmt.Errorf("the network namespace of the pod: %w", err)
	}
	defer netns.Close()
	addresses, err := s.take(c, n)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.giveBack(c, n))
		}
	}()
	port, err := ip.RandomVethName()
	if err != nil {
		return nil, err
	}
	guarded := s.guard(ctx, c, port, addresses)
	defer func() {
		if err != nil {
			_ = guarded()
			err = errors.Join(err, s.unguard(c))
		}
	}()
	bridge, err := ensureBridge(n, addresses)
	if err != nil {
		return nil, fmt.Errorf("the bridge %s: %w", n.Bridge, err)
	}
	host, err := connect(c, n, port, bridge, netns)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, netlink.LinkDel(host))
		}
	}()
	result := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{
			ofBridge: {Name: n.Bridge, Mac: bridge.Attrs().HardwareAddr.String()},
			ofHost:   {Name: host.Attrs().Name, Mac: host.Attrs().HardwareAddr.String()},
			ofPod:    {Name: c.ifName, Sandbox: c.netns},
		},
		IPs:    addresses,
		Routes: n.addresses.Routes,
	}
	if err := netns.Do(func(ns.NetNS) error { return configure(c.ifName, result) }); err != nil {
		return nil, err
	}
	if err := waitUp(ctx, host.Attrs().Name); err != nil {
		return nil, err
	}
	if err := guarded(); err != nil {
		return nil, err
	}
	if len(n.RuntimeConfig.PortMappings) > 0 {
		if err := s.openPorts(ctx, c, n, result); err != nil {
			return nil, err
		}
	}
	return result.GetAsVersion(n.CNIVersion)
}

// ensureBridge creates the bridge if it is missing, and gives it the gateways of the addresses.
func ensureBridge(n *network, addresses []*current.IPConfig) (netlink.Link, error) {
	bridge, err := netlinksafe.LinkByName(n.Bridge)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		bridge, err = makeBridge(n)
	}
	if err != nil {
		return nil, err
	}
	if _, ok := bridge.(*netlink.Bridge); !ok {
		return nil, fmt.Errorf("it is of type %s: delete the interface", bridge.Type())
	}
	if err := filterBridged(bridge, addresses); err != nil {
		return nil, err
	}
	if bridge.Attrs().Flags&net.FlagUp == 0 {
		if err := netlink.LinkSetUp(bridge); err != nil {
			return nil, err
		}
	}
	for _, a := range addresses {
		if err := ensureGateway(bridge, &net.IPNet{IP: a.Gateway, Mask: a.Address.Mask}); err != nil {
			return nil, fmt.Errorf("the address %s: %w", a.Gateway, err)
		}
	}
	return bridge, nil
}

// filterBridged has the packet filter see what the bridge passes between pods, whatever the host's
// bridge-nf-call-iptables is: another program may switch that off, and Services and network policies depend on it.
//
// Source: linux/if_link.h.
func filterBridged(bridge netlink.Link, addresses []*current.IPConfig) error {
	request := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Index = int32(bridge.Attrs().Index)
	request.AddData(message)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(bridge.Type()))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	for _, a := range addresses {
		call := nl.IFLA_BR_NF_CALL_IPTABLES
		if a.Address.IP.To4() == nil {
			call = nl.IFLA_BR_NF_CALL_IP6TABLES
		}
		data.AddRtAttr(call, []byte{1})
	}
	request.AddData(info)
	if _, err := request.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("let the packet filter see bridged packets: %w", err)
	}
	return nil
}

func makeBridge(n *network) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = n.Bridge, n.MTU
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil && !errors.Is(err, fs.ErrExist) { // another call created it
		return nil, err
	}
	ignoreRouters(n.Bridge)
	return netlinksafe.LinkByName(n.Bridge)
}

// ensureGateway gives the bridge an address. Another one that it has is of a node's earlier CIDR.
func ensureGateway(bridge netlink.Link, gateway *net.IPNet) error {
	family := netlink.FAMILY_V4
	if gateway.IP.To4() == nil {
		family = netlink.FAMILY_V6
	}
	have, err := netlinksafe.AddrList(bridge, family)
	if err != nil {
		return err
	}
	for _, a := range have {
		if a.IPNet.String() == gateway.String() {
			return nil
		}
	}
	for _, a := range have {
		if family == netlink.FAMILY_V4 || a.Contains(gateway.IP) || gateway.Contains(a.IP) {
			if err := netlink.AddrDel(bridge, &netlink.Addr{IPNet: a.IPNet}); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
	}
	if err := netlink.AddrAdd(bridge, &netlink.Addr{IPNet: gateway}); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// Set, it stays. Otherwise the bridge takes the lowest one of its ports, and pods lose their gateway when it
	// changes.
	return netlink.LinkSetHardwareAddr(bridge, bridge.Attrs().HardwareAddr)
}

// connect creates the pair of interfaces, and returns the host's.
func connect(c *call, n *network, port string, bridge netlink.Link, netns ns.NetNS) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = port
	attrs.MTU, attrs.MasterIndex = n.MTU, bridge.Attrs().Index
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: c.ifName, PeerMTU: uint32(n.MTU), PeerNamespace: netlink.NsFd(int(netns.Fd()))}
	if err := netlink.LinkAdd(pair); err != nil {
		return nil, fmt.Errorf("connect %s of the pod to the bridge %s: %w", c.ifName, n.Bridge, err)
	}
	host, err := netlinksafe.LinkByName(attrs.Name)
	if err == nil {
		ignoreRouters(attrs.Name)
		err = netlink.LinkSetHairpin(host, true) // a pod reaches itself through its Service
	}
	if err == nil {
		err = netlink.LinkSetUp(host)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect the pod to the bridge %s: %w", n.Bridge, err), netlink.LinkDel(pair))
	}
	return host, nil
}

// ignoreRouters keeps an interface from taking routes of others. A host without IPv6 has no such setting.
func ignoreRouters(name string) {
	_, _ = sysctl.Sysctl("net/ipv6/conf/"+name+"/accept_ra", "0")
}

// configure sets the pod's interface up, in its namespace.
func configure(ifName string, result *current.Result) error {
	// No other pod has the address, so there is no need to wait for an objection. Neighbours learn when it moves here.
	_, _ = sysctl.Sysctl("net/ipv6/conf/"+ifName+"/accept_dad", "0")
	_, _ = sysctl.Sysctl("net/ipv4/conf/"+ifName+"/arp_notify", "1")
	if err := ipam.ConfigureIface(ifName, result); err != nil {
		return err
	}
	link, err := netlinksafe.LinkByName(ifName)
	if err != nil {
		return err
	}
	result.Interfaces[ofPod].Mac = link.Attrs().HardwareAddr.String()
	return nil
}

// upTimeout is how long a port of the bridge may take to forward.
const upTimeout = 3 * time.Second

// waitUp returns when the bridge forwards for an interface.
func waitUp(ctx context.Context, name string) error {
	for wait, deadline := time.Millisecond, time.Now().Add(upTimeout); ; wait *= 2 {
		link, err := netlinksafe.LinkByName(name)
		if err != nil {
			return err
		}
		state := link.Attrs().OperState
		if state == netlink.OperUp {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the bridge's port %s is not up: it is %s", name, state)
		}
		if !reconcile.Sleep(ctx, wait) {
			return ctx.Err()
		}
	}
}

// del disconnects a pod. It may be called any number of times, also when the namespace is gone, and with it the
// interfaces.
func (s *Server) del(ctx context.Context, c *call, n *network) error {
	if len(n.RuntimeConfig.PortMappings) > 0 {
		s.ports.Lock() // reopen opens them again as long as the pod has an address
		defer s.ports.Unlock()
		if err := s.closePorts(ctx, c, n); err != nil {
			return err
		}
	}
	if c.netns != "" {
		err := ns.WithNetNSPath(c.netns, func(ns.NetNS) error { return ip.DelLinkByName(c.ifName) })
		if err != nil && !errors.Is(err, ip.ErrLinkNotFound) && !errors.As(err, &ns.NSPathNotExistErr{}) {
			return err
		}
	}
	if err := s.unguard(c); err != nil {
		return err
	}
	return s.giveBack(c, n) // last, when nothing uses them any more
}

// check returns why a pod is not connected as the result of its ADD says.
func (s *Server) check(c *call, n *network) error {
	if err := version.ParsePrevResult(&n.PluginConf); err != nil {
		return types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
	}
	if n.PrevResult == nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "the configuration has no prevResult", "")
	}
	result, err := current.NewResultFromResult(n.PrevResult)
	if err != nil {
		return err
	}
	if err := s.has(c, n); err != nil {
		return err
	}
	return ns.WithNetNSPath(c.netns, func(ns.NetNS) error {
		if err := ip.ValidateExpectedInterfaceIPs(c.ifName, result.IPs); err != nil {
			return err
		}
		return ip.ValidateExpectedRoute(result.Routes)
	})
}
