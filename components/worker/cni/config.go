package cni

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/runtime/payload"
)

const (
	ourFile     = "10-kubelith.conflist"
	networkName = "kubelith" // podlink keeps addresses in a directory of this name
)

// config is a CNI configuration as a file.
type config struct {
	file    string // its name in ConfDir
	content []byte
	origin  string // the path it was read from, "" when it is ours
}

type object = map[string]any

// bridgeConfig connects pods through a bridge, with addresses from the CIDRs (one per family).
//
// Its program hands each call over to components/worker/podlink, at the socket. It has a name of our own, so that the
// plugin directory of a third party, which is searched first, cannot replace it.
func bridgeConfig(podCIDRs []string, dataDir, socket string, mtu int) (config, error) {
	var ranges [][]object
	var routes []object
	for _, cidr := range podCIDRs {
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil {
			return config{}, fmt.Errorf("the Node's pod CIDR %q: %w", cidr, err)
		}
		ranges = append(ranges, []object{{"subnet": prefix.Masked().String()}})
		if prefix.Addr().Is4() {
			routes = append(routes, object{"dst": "0.0.0.0/0"})
		} else {
			routes = append(routes, object{"dst": "::/0"})
		}
	}
	bridge := object{
		"type":         payload.CNI,
		"socket":       socket,
		"bridge":       names.Bridge,
		"ipam":         object{"dataDir": dataDir, "ranges": ranges, "routes": routes},
		"capabilities": object{"portMappings": true},
	}
	if mtu > 0 {
		bridge["mtu"] = mtu
	}
	return list(bridge)
}

// noopConfig makes CRI report a network. Pods with their own network namespace get only the loopback interface, and
// CRI, which requires an address for them, does not start them.
func noopConfig() config {
	c, err := list(object{"type": payload.Loopback})
	if err != nil {
		panic(err) // only constants
	}
	return c
}

func list(plugins ...object) (config, error) {
	content, err := json.MarshalIndent(object{"cniVersion": "1.0.0", "name": networkName, "plugins": plugins}, "", "  ")
	if err != nil {
		return config{}, err
	}
	return config{file: ourFile, content: append(content, '\n')}, nil
}
