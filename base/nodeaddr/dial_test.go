package nodeaddr

import (
	"net"
	"strings"
	"testing"
)

func TestDialer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	rules := Parse([]string{"10.42.0.0/16", "10.43.0.0/16"}, []string{"192.0.2.1"})
	rules.APIPort = 6443
	if c, err := rules.Dialer().DialContext(t.Context(), "tcp", l.Addr().String()); err == nil || !strings.Contains(err.Error(), "127.0.0.1 is not a node's address") {
		t.Errorf("loopback is dialled: %v, %v", c, err)
	}
	for address, refused := range map[string]bool{
		"192.0.2.1:10250": false, "192.0.2.2:6443": false, "[2001:db8::2]:10250": false,
		"192.0.2.1:6443": true, "[::ffff:192.0.2.1]:6443": true, "10.42.0.7:10250": true, "10.43.0.1:443": true,
		"127.0.0.1:10250": true, "[::1]:10250": true, "169.254.169.254:80": true, "[fe80::1%eth0]:10250": true, "0.0.0.0:10250": true, "x:1": true,
	} {
		if err := rules.refuse(address); (err != nil) != refused {
			t.Errorf("%s: %v", address, err)
		}
	}
}
