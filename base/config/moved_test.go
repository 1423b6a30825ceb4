package config

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
)

func TestMoved(t *testing.T) {
	addr := netip.MustParseAddr
	hosts := func(v4, v6 host) func(bool) (host, error) {
		return func(is6 bool) (host, error) {
			if is6 {
				return v6, nil
			}
			return v4, nil
		}
	}
	eth0 := host{routes: []route{{link: 2}}, addrs: []address{{link: 3, ip: addr("172.17.0.1")}, {link: 2, ip: addr("192.0.2.2")}}}
	eth06 := host{routes: []route{{link: 2}}, addrs: []address{{link: 2, ip: addr("2001:db8::2")}}}
	waiting := host{routes: []route{{link: 2}}, addrs: []address{{link: 3, ip: addr("172.17.0.1")}}}
	unplugged := host{addrs: []address{{link: 3, ip: addr("172.17.0.1")}}}
	for name, c := range map[string]struct {
		had, present []string
		read         func(bool) (host, error)
		missing      bool
		want         []string
	}{
		"as it was":                         {had: []string{"192.0.2.1"}, present: []string{"127.0.0.1", "192.0.2.1"}, read: hosts(eth0, host{})},
		"the route leads elsewhere":         {had: []string{"172.17.0.1"}, present: []string{"172.17.0.1", "192.0.2.2"}, read: hosts(eth0, host{})},
		"another one":                       {had: []string{"192.0.2.1"}, present: []string{"172.17.0.1", "192.0.2.2"}, read: hosts(eth0, host{}), missing: true, want: []string{"192.0.2.2"}},
		"no cable, a bridge":                {had: []string{"192.0.2.1"}, present: []string{"172.17.0.1"}, read: hosts(unplugged, host{}), missing: true},
		"not yet from DHCP":                 {had: []string{"192.0.2.1"}, present: []string{"172.17.0.1"}, read: hosts(waiting, host{}), missing: true},
		"another prefix of the second":      {had: []string{"192.0.2.2", "2001:db8::1"}, present: []string{"192.0.2.2", "2001:db8::2"}, read: hosts(eth0, eth06), missing: true, want: []string{"192.0.2.2", "2001:db8::2"}},
		"the second is gone for the moment": {had: []string{"192.0.2.2", "2001:db8::1"}, present: []string{"192.0.2.2"}, read: hosts(eth0, host{}), missing: true},
	} {
		t.Run(name, func(t *testing.T) {
			var present []net.Addr
			for _, a := range c.present {
				present = append(present, &net.IPNet{IP: net.ParseIP(a), Mask: net.CIDRMask(24, 32)})
			}
			got, missing, err := moved([]netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}, c.had, present, c.read)
			if err != nil || !slices.Equal(got, c.want) || missing != c.missing {
				t.Errorf("got %q, %v, %v, want %q, %v", got, missing, err, c.want, c.missing)
			}
		})
	}
	failed := errors.New("netlink")
	if _, _, err := moved(nil, []string{"192.0.2.1"}, nil, func(bool) (host, error) { return host{}, failed }); !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
}
