package rules

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// Pod is what policies know of a pod of the pod network. A pod with the host's network is none: its address is the
// node's.
type Pod struct {
	Namespace, Name string
	UID             types.UID
	Labels          map[string]string
	Ports           []NamedPort
	IPs             []netip.Addr
}

// NamedPort is a port of a container.
type NamedPort struct {
	Name     string
	Protocol corev1.Protocol
	Port     uint16
}

// PodOf reads a pod. It returns nil for those that policies do not know: with the host's network, or ended, when its
// address is another pod's.
func PodOf(pod *corev1.Pod) *Pod {
	if pod.Spec.HostNetwork || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	p := &Pod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Labels: pod.Labels}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, port := range c.Ports {
			if port.Name == "" {
				continue
			}
			protocol := port.Protocol
			if protocol == "" {
				protocol = corev1.ProtocolTCP
			}
			p.Ports = append(p.Ports, NamedPort{port.Name, protocol, uint16(port.ContainerPort)})
		}
	}
	for _, ip := range pod.Status.PodIPs {
		if address, err := netip.ParseAddr(ip.IP); err == nil {
			p.IPs = append(p.IPs, address.Unmap())
		}
	}
	return p
}

// profile is what rules can tell pods apart by, apart from their addresses. Equal ones are one pointer in a Compiler.
type profile struct {
	namespace       string
	namespaceLabels labels.Set
	labels          labels.Set
	ports           []NamedPort
}

func (p *profile) key() string {
	var b strings.Builder
	b.WriteString(p.namespace)
	for _, set := range []labels.Set{p.namespaceLabels, p.labels} {
		b.WriteByte(0)
		for _, k := range slices.Sorted(maps.Keys(set)) {
			b.WriteString(k + "=" + set[k] + "\x01")
		}
	}
	for _, port := range p.ports {
		fmt.Fprintf(&b, "\x00%s/%s/%d", port.Name, port.Protocol, port.Port)
	}
	return b.String()
}

// named returns the numbers of a pod's port of that name and protocol.
func (p *profile) named(name string, protocol corev1.Protocol) (numbers []uint16) {
	if p == nil {
		return nil
	}
	for _, port := range p.ports {
		if port.Name == name && port.Protocol == protocol {
			numbers = append(numbers, port.Port)
		}
	}
	return numbers
}

// Direction is that of a connection, seen from the selected pod.
type Direction int

// The directions.
const (
	Egress Direction = iota
	Ingress
)

func (d Direction) String() string { return [...]string{"egress", "ingress"}[d] }
