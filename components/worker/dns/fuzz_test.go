package dns

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// FuzzResolvers reads a host's resolv.conf: whatever is in it, only addresses reach the Corefile, and no more than it
// takes.
func FuzzResolvers(f *testing.F) {
	f.Add([]byte("nameserver 192.0.2.1\nnameserver fe80::1%eth0\nsearch a b\noptions ndots:5\n"))
	f.Add([]byte("nameserver 10.43.0.10\nnameserver 127.0.0.53\n"))
	f.Add([]byte("nameserver\nnameserver  \noptions timeout: attempts:x\n"))
	f.Add([]byte("nameserver 192.0.2.1 {\n  forward\n}\n"))
	f.Add([]byte("\x00\xff"))
	clusterDNS := net.ParseIP("10.43.0.10")
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "resolv.conf")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		found, err := resolvers(path, []net.IP{clusterDNS})
		if err != nil {
			return
		}
		if len(found) > maxUpstreams {
			t.Errorf("%d resolvers", len(found))
		}
		for _, server := range found {
			if ip := net.ParseIP(withoutZone(server)); ip == nil || ip.Equal(clusterDNS) {
				t.Errorf("%q is taken for a resolver", server)
			}
		}
	})
}
