// Package renewal is client-go's certificate manager, which requests and renews a certificate, with a way to renew it
// at once: upstream's renews when most of a certificate's life is over, and not when its CA is replaced.
package renewal

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/certificate"
)

// Manager keeps one certificate.
type Manager struct {
	config certificate.Config

	renew  sync.Mutex // held while Renew waits
	mu     sync.Mutex
	latest certificate.Manager
	before certificate.Manager // stopped; its certificate is used until latest has one; may be nil
}

// New returns a Manager; it requests nothing before Start.
func New(config certificate.Config) (*Manager, error) {
	m, err := certificate.NewManager(&config)
	if err != nil {
		return nil, err
	}
	return &Manager{config: config, latest: m}, nil
}

// Start begins to request and renew the certificate.
func (m *Manager) Start() { m.manager().Start() }

// Stop ends it; the certificate stays.
func (m *Manager) Stop() { m.manager().Stop() }

func (m *Manager) manager() certificate.Manager {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.latest
}

// Current returns the certificate; nil: there is none yet, or it has expired.
func (m *Manager) Current() *tls.Certificate {
	m.mu.Lock()
	defer m.mu.Unlock()
	if cert := m.latest.Current(); cert != nil || m.before == nil {
		return cert
	}
	return m.before.Current()
}

// Leaf returns the certificate without its key; nil as Current.
func (m *Manager) Leaf() *x509.Certificate {
	if cert := m.Current(); cert != nil {
		return cert.Leaf
	}
	return nil
}

// inUseWithin bounds the time between the storing of a certificate and its use.
const inUseWithin = 20 * time.Second

// Renew requests another certificate, with another key, and waits until it is in use. Until then, and after an error,
// the one before is used. When ctx ends first, the request goes on.
func (m *Manager) Renew(ctx context.Context) error {
	m.renew.Lock()
	defer m.renew.Unlock()
	config := m.config
	fresh := &freshStore{Store: m.config.CertificateStore, stored: make(chan struct{})}
	config.CertificateStore = fresh
	next, err := certificate.NewManager(&config)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.latest.Stop()
	if m.latest.Current() != nil {
		m.before = m.latest
	}
	m.latest = next
	m.mu.Unlock()
	next.Start()
	select {
	case <-fresh.stored:
		// The manager uses what it has stored a moment later, without a notification.
		inUse := func(context.Context) (bool, error) { return next.Current() != nil, nil }
		if err := wait.PollUntilContextTimeout(ctx, time.Millisecond, inUseWithin, true, inUse); err != nil {
			return fmt.Errorf("the certificate was signed, but is not in use: %w", err)
		}
		return nil
	case <-ctx.Done():
		return errors.New("the certificate was not signed in time: kubectl get csr shows why")
	}
}

// freshStore has no certificate before the first Update, so that the manager requests one at once.
type freshStore struct {
	certificate.Store
	once   sync.Once
	stored chan struct{}
}

// Current implements certificate.Store.
func (s *freshStore) Current() (*tls.Certificate, error) {
	select {
	case <-s.stored:
		return s.Store.Current()
	default:
		none := certificate.NoCertKeyError("another certificate is wanted")
		return nil, &none
	}
}

// Update implements certificate.Store.
func (s *freshStore) Update(cert, key []byte) (*tls.Certificate, error) {
	c, err := s.Store.Update(cert, key)
	if err == nil {
		s.once.Do(func() { close(s.stored) })
	}
	return c, err
}
