package dns

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func ips(texts ...string) []net.IP {
	var out []net.IP
	for _, t := range texts {
		out = append(out, net.ParseIP(t))
	}
	return out
}

func TestResolvers(t *testing.T) {
	clusterDNS := ips("10.43.0.10")
	for name, test := range map[string]struct {
		conf, fallback string
		want           []string
	}{
		"plain":                  {"nameserver 192.0.2.1\nnameserver 2001:db8::1\n", "", []string{"192.0.2.1", "2001:db8::1"}},
		"stub, real list there":  {"nameserver 127.0.0.53\noptions edns0\n", "nameserver 192.0.2.9\n", []string{"192.0.2.9"}},
		"stub, no real list":     {"nameserver 127.0.0.1\n", "", []string{"127.0.0.1"}},
		"stub and another":       {"nameserver 127.0.0.1\nnameserver 192.0.2.1\n", "nameserver 192.0.2.9\n", []string{"127.0.0.1", "192.0.2.1"}},
		"ourselves are left out": {"nameserver 10.43.0.10\nnameserver 192.0.2.1\n", "", []string{"192.0.2.1"}},
		"nothing but ourselves":  {"nameserver 10.43.0.10\n", "", nil},
		"twice the same":         {"nameserver 192.0.2.1\nnameserver 192.0.2.1\n", "", []string{"192.0.2.1"}},
		"a link-local address":   {"nameserver fe80::1%eth0\n", "", []string{"fe80::1%eth0"}},
		"not an address":         {"nameserver example.org\n", "", nil},
		"no resolver at all":     {"search example.org\n", "", nil},
		"a stub behind the stub": {"nameserver 127.0.0.53\n", "nameserver 127.0.0.1\n", []string{"127.0.0.53"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			conf, fallback := filepath.Join(dir, "conf"), filepath.Join(dir, "fallback")
			write(t, conf, test.conf)
			if test.fallback != "" {
				write(t, fallback, test.fallback)
			}
			got, err := resolvers(chooseResolvConf(conf, fallback), clusterDNS)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
	if _, err := resolvers(filepath.Join(t.TempDir(), "missing"), nil); err == nil {
		t.Error("a missing file is no error")
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCorefile(t *testing.T) {
	c := corefile{Domain: "cluster.local", Bind: []string{"127.0.0.1", "192.0.2.1"},
		Allow: []string{"10.42.0.0/16"}, Upstreams: []string{"192.0.2.53"}}
	text, err := c.render()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{".:10053 {", "bind 127.0.0.1 192.0.2.1", "kubelith_sources 10.42.0.0/16",
		"kubelith_kubernetes cluster.local in-addr.arpa ip6.arpa {", "forward . 192.0.2.53 {"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	c.Upstreams = nil
	if text, _ := c.render(); strings.Contains(string(text), "forward") {
		t.Errorf("forward without resolvers:\n%s", text)
	}
}

func TestBindAddresses(t *testing.T) {
	for want, given := range map[string][]net.IP{
		"127.0.0.1 192.0.2.1":                 ips("192.0.2.1"),
		"127.0.0.1 ::1 192.0.2.1 2001:db8::1": ips("192.0.2.1", "2001:db8::1"),
		"127.0.0.1":                           ips("127.0.0.1"),
	} {
		if got := strings.Join(bindAddresses(given), " "); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestSources(t *testing.T) {
	host := []net.Addr{&net.IPNet{IP: net.ParseIP("192.0.2.1"), Mask: net.CIDRMask(24, 32)}}
	s := &sources{
		networks: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd42::/64")},
		list:     func() ([]net.Addr, error) { return host, nil },
	}
	now := time.Now()
	for source, want := range map[string]bool{
		"10.42.7.9": true, "fd42::7": true, "192.0.2.1": true, "127.0.0.1": true, "::1": true,
		"::ffff:10.42.0.1": true, "192.0.2.2": false, "10.43.0.1": false, "2001:db8::1": false, "nonsense": false,
	} {
		if got := s.allowed(source, now); got != want {
			t.Errorf("%s: got %v, want %v", source, got, want)
		}
	}
	host = append(host, &net.IPNet{IP: net.ParseIP("198.51.100.1"), Mask: net.CIDRMask(24, 32)})
	if s.allowed("198.51.100.1", now) {
		t.Error("the host's addresses are read for each query")
	}
	if !s.allowed("198.51.100.1", now.Add(localFor+time.Second)) {
		t.Error("a new address of the host is never seen")
	}
}

func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().Before(deadline) {
			continue
		}
		t.Fatal("it does not happen")
	}
}
