package cni

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/sirupsen/logrus"
)

const (
	sysctls     = "/proc/sys/net"
	forwarding  = "ipv4/ip_forward"
	forwarding6 = "ipv6/conf/all/forwarding"
	bridgeNF    = "bridge/bridge-nf-call-iptables"
	bridgeNF6   = "bridge/bridge-nf-call-ip6tables"
)

// otherwise returns which of the sysctls that setSysctls sets have another value now.
func otherwise(podCIDRs []string) (names []string) {
	for _, cidr := range podCIDRs {
		wanted := []string{forwarding, bridgeNF}
		if prefix, err := netip.ParsePrefix(cidr); err == nil && prefix.Addr().Is6() {
			wanted = []string{forwarding6, bridgeNF6}
		}
		for _, name := range wanted {
			if content, err := os.ReadFile(filepath.Join(sysctls, name)); err == nil && strings.TrimSpace(string(content)) != "1" {
				names = append(names, "the sysctl net/"+name)
			}
		}
	}
	return names
}

// setSysctls lets this host forward pods' traffic, and lets the rules for Services see traffic between pods on the
// bridge: without that, a Service whose endpoint is on the same node answers from the wrong address.
func setSysctls(ctx context.Context, podCIDRs []string, log logrus.FieldLogger) error {
	if _, err := os.Stat(filepath.Join(sysctls, bridgeNF)); err != nil {
		// If this fails, the module is not loaded, or not built: see the warning below.
		if out, err := exec.CommandContext(ctx, "modprobe", "br_netfilter").CombinedOutput(); err != nil {
			log.WithError(err).Warnf("pods may not reach Services whose endpoint is on this node: load the kernel module br_netfilter (%s)",
				strings.TrimSpace(string(out)))
		}
	}
	for _, cidr := range podCIDRs {
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil {
			return err
		}
		if prefix.Addr().Is4() {
			err = setFamily(forwarding, bridgeNF)
		} else {
			if err = keepRouterAdvertisements(); err == nil {
				err = setFamily(forwarding6, bridgeNF6)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func setFamily(forwarding, bridge string) error {
	if err := setSysctl(forwarding, "1"); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(sysctls, bridge)); err != nil {
		return nil // warned about
	}
	return setSysctl(bridge, "1")
}

// keepRouterAdvertisements keeps the host's own IPv6 routes: a forwarding host drops router advertisements
// unless accept_ra is 2 (Linux Documentation/networking/ip-sysctl.rst).
func keepRouterAdvertisements() error {
	paths, err := filepath.Glob(filepath.Join(sysctls, "ipv6/conf/*/accept_ra"))
	if err != nil {
		return err
	}
	for _, p := range paths {
		content, err := os.ReadFile(p)
		if err != nil || strings.TrimSpace(string(content)) != "1" {
			continue // the interface is gone, or accepts none
		}
		if err := os.WriteFile(p, []byte("2"), 0o644); err != nil {
			return fmt.Errorf("set %s: %w", p, err)
		}
	}
	return nil
}

// setSysctl writes only a different value: /proc/sys may be read-only, and right.
func setSysctl(name, value string) error {
	path := filepath.Join(sysctls, name)
	if content, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(content)) == value {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set sysctl net/%s to %s: %w", name, value, err)
	}
	return nil
}
