package reset

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/names"
)

// nodeNetwork returns what components/worker/network has left, unless another server uses it.
func (r *Reset) nodeNetwork() (links []string, routes int) {
	if r.neighbour() {
		return nil, 0
	}
	links, err := r.nets.marked(names.LinkAlias)
	if err != nil {
		links = nil
	}
	routes, err = r.nets.routes(names.RouteProtocol)
	if err != nil {
		routes = 0
	}
	return links, routes
}

// removeNodeNetwork removes it.
func (r *Reset) removeNodeNetwork() []error {
	var errs []error
	links, routes := r.nodeNetwork()
	for _, link := range links {
		if err := r.nets.removeLink(link); err != nil {
			errs = append(errs, fmt.Errorf("remove interface %s: %w", link, err))
			continue
		}
		r.printf("removed interface %s", link)
	}
	if routes > 0 {
		if err := r.nets.removeRoutes(names.RouteProtocol); err != nil {
			return append(errs, fmt.Errorf("remove routes to other nodes: %w", err))
		}
		r.printf("removed %d routes to other nodes", routes)
	}
	return errs
}

// marked returns the interfaces with the alias.
func (kernelNetwork) marked(alias string) ([]string, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, l := range links {
		if l.Attrs().Alias == alias && (l.Type() == "vxlan" || l.Type() == "wireguard") {
			out = append(out, l.Attrs().Name)
		}
	}
	return out, nil
}

// routes counts the routes in the main table that have the protocol.
func (kernelNetwork) routes(protocol int) (int, error) {
	list, err := routesOf(protocol)
	return len(list), err
}

func (kernelNetwork) removeRoutes(protocol int) error {
	list, err := routesOf(protocol)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range list {
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("%s: %w", r.Dst, err))
		}
	}
	return errors.Join(errs...)
}

func routesOf(protocol int) ([]netlink.Route, error) {
	return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: netlink.RouteProtocol(protocol)}, netlink.RT_FILTER_PROTOCOL)
}
