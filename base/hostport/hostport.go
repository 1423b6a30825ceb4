// Package hostport has the formats in which ports of a host are written: a Node's annotation, which
// components/worker/hostports writes and components/cluster/servicelb reads, and the kernel's tables of sockets.
package hostport

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"kubelith.io/kubelith/base/names"
)

// most bounds the ports written to an annotation and read from one.
const most = 4096

// Port is a port of a node.
type Port struct {
	Protocol corev1.Protocol
	Number   int32
}

func (p Port) String() string { return fmt.Sprintf("%d/%s", p.Number, p.Protocol) }

// Of returns the ports on which the host of a node listens, and whether the node has reported them.
func Of(n *corev1.Node) (ports sets.Set[Port], reported bool) {
	text, reported := n.Annotations[names.HostPortsAnnotation]
	ports = sets.New[Port]()
	for item := range strings.SplitSeq(text, ",") {
		number, protocol, _ := strings.Cut(item, "/")
		if p, err := strconv.ParseUint(number, 10, 16); err == nil && len(ports) < most {
			ports.Insert(Port{corev1.Protocol(protocol), int32(p)})
		}
	}
	return ports, reported
}

// Text returns the annotation for ports: "22/TCP,111/UDP".
func Text(ports sets.Set[Port]) string {
	all := ports.UnsortedList()
	slices.SortFunc(all, func(a, b Port) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), strings.Compare(string(a.Protocol), string(b.Protocol)))
	})
	var texts []string
	for _, p := range all[:min(len(all), most)] {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ",")
}
