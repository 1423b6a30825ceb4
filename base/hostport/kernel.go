package hostport

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ParseKernel parses an address in the kernel's tables of sockets, such as "0100007F:0016" in /proc/net/tcp: words of
// the address in little-endian byte order, as on all machines that Kubelith is built for, and the port. An IPv4 address
// in an IPv6 socket is returned as IPv4.
func ParseKernel(text string) (netip.AddrPort, error) {
	words, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(words)
	if err != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, fmt.Errorf("%q is not an address", text)
	}
	for i := 0; i < len(raw); i += 4 {
		slices.Reverse(raw[i : i+4])
	}
	ip, ok := netip.AddrFromSlice(raw)
	number, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q is not an address", text)
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(number)), nil
}
