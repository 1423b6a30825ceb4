package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/components/worker/upgrader"
)

// upgradeTimeout bounds the transfer of a program from one server.
const upgradeTimeout = 10 * time.Minute

// fetchProgram writes the program with a checksum, from another server that has it.
func (p *plane) fetchProgram(ctx context.Context, sum string, to io.Writer) error {
	cs, err := kubernetes.NewForConfig(p.clients.Config(client.Servers))
	if err != nil {
		return err
	}
	slice, err := cs.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return err
	}
	cert, roots, err := p.identity()
	if err != nil {
		return err
	}
	from := &http.Client{Timeout: upgradeTimeout, Transport: &http.Transport{ // no proxy
		TLSClientConfig:   &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: roots, ServerName: "kubernetes", MinVersion: tls.VersionTLS12},
		DisableKeepAlives: true,
	}}
	last := errors.New("no server is known")
	for _, port := range slice.Ports {
		for _, endpoint := range slice.Endpoints {
			for _, address := range endpoint.Addresses {
				if port.Port == nil {
					continue
				}
				body, err := program(ctx, from, net.JoinHostPort(address, strconv.Itoa(int(*port.Port))), sum)
				if err != nil {
					last = err
					continue
				}
				_, err = io.Copy(to, body)
				return errors.Join(err, body.Close())
			}
		}
	}
	return last
}

// program asks the server at an address.
func program(ctx context.Context, from *http.Client, address, sum string) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+upgrader.Path+sum, nil)
	if err != nil {
		return nil, err
	}
	answer, err := from.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		answer.Body.Close()
		return nil, fmt.Errorf("%s: %s", address, answer.Status)
	}
	return answer.Body, nil
}
