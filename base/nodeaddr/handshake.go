package nodeaddr

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"time"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
)

// handshakeTimeout bounds one handshake.
const handshakeTimeout = 2 * time.Second

// Handshake returns a function that connects to a kubelet and verifies that its certificate has the name of the node
// and the address, and that a CA in the file ca has signed it. It sends nothing.
func Handshake(ca string, dialer *net.Dialer) func(ctx context.Context, node string, at netip.AddrPort) error {
	return func(ctx context.Context, node string, at netip.AddrPort) error {
		pool, err := pki.Pool(ca)
		if err != nil {
			return fmt.Errorf("read the kubelets' CA: %w", err)
		}
		ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
		defer cancel()
		d := tls.Dialer{NetDialer: dialer, Config: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, ServerName: at.Addr().String()}}
		conn, err := d.DialContext(ctx, "tcp", at.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		if name := conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName; name != names.NodeUserPrefix+node {
			return fmt.Errorf("the certificate is for %s", name)
		}
		return nil
	}
}
