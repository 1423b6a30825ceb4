package reset

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
)

// portsGrace is how long the kernel may take to remove the ends of veth pairs after their network namespace is gone.
const portsGrace = 3 * time.Second

// network is the part of the kernel's network that reset needs.
type network interface {
	addresses(link string) ([]netip.Prefix, error)
	ports(bridge string) ([]string, error)
	removeLink(name string) error
	marked(alias string) (links []string, err error)
	routes(protocol int) (count int, err error)
	removeRoutes(protocol int) error
	nft(ctx context.Context, args ...string) (string, error)
}

// ownBridge returns the bridge's name if it exists and is ours: one of its networks holds an address that our network
// assigned. Other software uses the name cni0 too.
func (r *Reset) ownBridge() string {
	prefixes, err := r.nets.addresses(r.opts.Bridge)
	if err != nil || len(prefixes) == 0 || r.neighbour() {
		return ""
	}
	dir := r.addressDir()
	for _, name := range r.files.Names(dir) {
		if strings.HasPrefix(name, "last_reserved_ip") {
			name = r.files.Text(dir + "/" + name)
		}
		ip, err := netip.ParseAddr(name)
		if err != nil {
			continue // the lock file
		}
		if slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(ip) }) {
			return r.opts.Bridge
		}
	}
	return ""
}

// removeNetwork removes the bridge (if given), the links and routes to other nodes, and the packet filter's tables and
// rules.
func (r *Reset) removeNetwork(ctx context.Context, bridge string, ids map[string]bool) []error {
	var errs []error
	if bridge != "" {
		poll(ctx, portsGrace, func() bool {
			ports, err := r.nets.ports(bridge)
			return err != nil || len(ports) == 0
		})
		ports, err := r.nets.ports(bridge)
		if err != nil {
			errs = append(errs, fmt.Errorf("ports of %s: %w", bridge, err))
		}
		for _, link := range append(ports, bridge) {
			if err := r.nets.removeLink(link); err != nil {
				errs = append(errs, fmt.Errorf("remove interface %s: %w", link, err))
				continue
			}
			r.printf("removed interface %s", link)
		}
	}
	errs = append(errs, r.removeNodeNetwork()...)
	tables, rules := r.packetFilter(ids)
	for _, t := range tables {
		if _, err := r.nets.nft(ctx, "delete", "table", t.family, t.name); err != nil {
			errs = append(errs, fmt.Errorf("remove nftables table %s %s: %w", t.family, t.name, err))
			continue
		}
		r.printf("removed nftables table %s %s", t.family, t.name)
	}
	for _, rule := range rules {
		if _, err := r.nets.nft(ctx, "delete", "rule", rule.table.family, rule.table.name, rule.chain, "handle", rule.handle); err != nil {
			errs = append(errs, fmt.Errorf("remove nftables rule of %s: %w", rule.comment, err))
			continue
		}
		r.printf("removed nftables rule of %s", rule.comment)
	}
	errs = append(errs, r.removeKubeletChains(ctx)...)
	return append(errs, r.removeUnusedTables(ctx)...)
}

// kernelNetwork is the real implementation.
type kernelNetwork struct{ nftProgram string }

func (kernelNetwork) addresses(name string) ([]netip.Prefix, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, err
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	var out []netip.Prefix
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && !a.IP.IsLinkLocalUnicast() {
			bits, _ := net.IPMask(a.Mask).Size()
			out = append(out, netip.PrefixFrom(ip.Unmap(), bits))
		}
	}
	return out, nil
}

func (kernelNetwork) ports(bridge string) ([]string, error) {
	master, err := netlink.LinkByName(bridge)
	if err != nil {
		return nil, err
	}
	links, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, l := range links {
		if l.Attrs().MasterIndex == master.Attrs().Index && l.Type() == "veth" {
			out = append(out, l.Attrs().Name)
		}
	}
	return out, nil
}

func (kernelNetwork) removeLink(name string) error {
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return err
	}
	return netlink.LinkDel(link)
}

func (k kernelNetwork) nft(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, k.nftProgram, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		line, _, _ := strings.Cut(strings.TrimSpace(string(exit.Stderr)), "\n")
		return "", errors.New(line)
	}
	return string(out), err
}
