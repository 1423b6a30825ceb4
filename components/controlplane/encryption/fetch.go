package encryption

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"filippo.io/age"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/base/pki"
)

// fetchTimeout bounds the request for a key to one server.
const fetchTimeout = 5 * time.Second

// fetch gets a key from another server: the first that has it.
func (s *Server) fetch(ctx context.Context, key string) (pki.EncryptionKey, error) {
	slice, err := s.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return pki.EncryptionKey{}, err
	}
	cert, ca, err := s.opts.Identity()
	if err != nil {
		return pki.EncryptionKey{}, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	client := &http.Client{Timeout: fetchTimeout, Transport: &http.Transport{ // no proxy
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
				got, err := ask(ctx, client, net.JoinHostPort(address, strconv.Itoa(int(*port.Port))), key)
				if err == nil {
					return got, nil
				}
				last = err
			}
		}
	}
	return pki.EncryptionKey{}, fmt.Errorf("get the new key %s from another server: %w", key, last)
}

// ask asks the server at an address.
func ask(ctx context.Context, client *http.Client, address, key string) (got pki.EncryptionKey, err error) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return got, err
	}
	body, err := json.Marshal(request{Key: key, Recipient: identity.Recipient().String()})
	if err != nil {
		return got, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+KeyPath, bytes.NewReader(body))
	if err != nil {
		return got, err
	}
	req.Header.Set("Content-Type", "application/json")
	response, err := client.Do(req)
	if err != nil {
		var why *url.Error
		if errors.As(err, &why) {
			err = why.Err
		}
		return got, fmt.Errorf("%s does not answer: %w", address, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxMessage))
	if err != nil {
		return got, err
	}
	if response.StatusCode != http.StatusOK {
		var no metav1.Status
		if json.Unmarshal(text, &no) == nil && no.Message != "" {
			return got, fmt.Errorf("%s: %s", address, no.Message)
		}
		return got, fmt.Errorf("%s: HTTP %d", address, response.StatusCode)
	}
	var a sealed
	if err := json.Unmarshal(text, &a); err != nil {
		return got, err
	}
	plain, err := age.Decrypt(bytes.NewReader(a.Sealed), identity)
	if err != nil {
		return got, err
	}
	if err := json.NewDecoder(io.LimitReader(plain, maxMessage)).Decode(&got); err != nil {
		return got, err
	}
	if got.Name != key || got.Secret == "" {
		return got, fmt.Errorf("%s has sent another key", address)
	}
	return got, nil
}
