package nodeaddr

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"kubelith.io/kubelith/base/pki"
)

// TestHandshake: only the kubelet with the node's certificate, for this address, is the node.
func TestHandshake(t *testing.T) {
	dir := t.TempDir()
	bundle := func(name string, ip net.IP) *pki.Bundle {
		b, err := pki.Ensure(pki.Options{Dir: filepath.Join(dir, name), NodeName: name, NodeIPs: []net.IP{ip}, ServiceIPs: []net.IP{net.IPv4(10, 43, 0, 1)}, ClusterDomain: "cluster.local"})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	ours, other, foreign := bundle("n1", net.IPv4(127, 0, 0, 1)), bundle("n2", net.IPv4(192, 0, 2, 1)), bundle("n3", net.IPv4(127, 0, 0, 1))
	serve := func(pair pki.Pair) netip.AddrPort {
		certificate, err := tls.LoadX509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = c.(*tls.Conn).Handshake()
				c.Close()
			}
		}()
		return netip.MustParseAddrPort(l.Addr().String())
	}
	at := serve(ours.KubeletServer)
	shake := Handshake(ours.KubeletTrust, &net.Dialer{})
	if err := shake(t.Context(), "n1", at); err != nil {
		t.Error(err)
	}
	var unknown x509.UnknownAuthorityError
	if err := shake(t.Context(), "n2", at); err == nil || err.Error() != "the certificate is for system:node:n1" {
		t.Errorf("as another node: %v", err)
	}
	if err := shake(t.Context(), "n3", serve(foreign.KubeletServer)); !errors.As(err, &unknown) {
		t.Errorf("a certificate of another cluster: %v", err)
	}
	if err := Handshake(other.KubeletTrust, &net.Dialer{})(t.Context(), "n2", serve(other.KubeletServer)); err == nil || !strings.Contains(err.Error(), "192.0.2.1, not 127.0.0.1") {
		t.Errorf("a certificate for another address: %v", err)
	}
	if err := Handshake(filepath.Join(dir, "none"), &net.Dialer{})(t.Context(), "n1", at); err == nil || !strings.Contains(err.Error(), "read the kubelets' CA") {
		t.Errorf("without a CA: %v", err)
	}
}
