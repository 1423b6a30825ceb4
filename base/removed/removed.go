// Package removed is the record of the nodes that were removed from the cluster, and the removal itself (Remove).
//
// Kubernetes cannot revoke a certificate. So each removal leaves a Secret in kube-system that names the node: from then
// on, certificates issued in that name before the removal are refused. A machine that joins again under the name has a
// newer certificate, and is accepted.
//
// The record is a Secret because of its write access: a user who can write Secrets in kube-system can let machines join
// anyway. Its time comes from the API server, whatever the clock of the client says, and it is immutable: it can be
// deleted, not changed.
//
// A Set follows the Secrets through an informer and answers from memory. With it components/controlplane/apiserver
// refuses requests, and components/cluster/approver certificates.
package removed

import (
	"crypto/x509"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"kubelith.io/kubelith/base/informers"
)

const (
	namespace = metav1.NamespaceSystem
	// secretType marks a record; nodeKey has the node's name.
	secretType = corev1.SecretType("kubelith.io/removed-node")
	nodeKey    = "node"
)

// Settle is how long after a removal newly issued certificates in the node's name are refused too: a request that was
// approved before may be signed a moment later. No machine joins under the name meanwhile.
const Settle = 5 * time.Second

// backdate is how long before its issue a certificate begins to be valid. Upstream's signer has no setting for it.
// Source: pkg/controller/certificates/signer.
const backdate = 5 * time.Minute

// Issued returns when upstream's signer signed a node's certificate.
func Issued(cert *x509.Certificate) time.Time { return cert.NotBefore.Add(backdate) }

// Set has the known removed nodes.
type Set struct {
	registration cache.ResourceEventHandlerRegistration
	informer     cache.SharedIndexInformer

	mu      sync.RWMutex
	records map[string]map[string]time.Time // by node and name of the Secret: when it was removed
}

// Follow returns the set that an informer for Secrets fills. noticed, if not nil, is called with the name of each node
// whose removal becomes known from now on.
func Follow(secrets cache.SharedIndexInformer, noticed func(node string)) (*Set, error) {
	s := &Set{informer: secrets, records: map[string]map[string]time.Time{}}
	var err error
	s.registration, err = secrets.AddEventHandler(cache.FilteringResourceEventHandler{
		FilterFunc: func(object any) bool { return recordOf(object) != nil },
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(object any) {
				node := s.add(recordOf(object))
				if noticed != nil {
					noticed(node)
				}
			},
			DeleteFunc: func(object any) { s.remove(recordOf(object)) },
		},
	})
	return s, err
}

// recordOf returns nil for a Secret that is not the record of a removal.
func recordOf(object any) *corev1.Secret {
	secret, ok := informers.As[*corev1.Secret](object)
	if !ok || secret.Type != secretType || secret.Namespace != namespace {
		return nil
	}
	return secret
}

func (s *Set) add(record *corev1.Secret) (node string) {
	node = string(record.Data[nodeKey])
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.records[node] == nil {
		s.records[node] = map[string]time.Time{}
	}
	s.records[node][record.Name] = record.CreationTimestamp.Time
	return node
}

func (s *Set) remove(record *corev1.Secret) {
	node := string(record.Data[nodeKey])
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.records[node], record.Name)
	if len(s.records[node]) == 0 {
		delete(s.records, node)
	}
}

// Stop stops following.
func (s *Set) Stop() { _ = s.informer.RemoveEventHandler(s.registration) } // fails only when it is gone already

// Synced is done when the set has all records that existed when it began to follow.
func (s *Set) Synced() cache.DoneChecker { return s.registration.HasSyncedChecker() }

// Refuses reports whether a certificate that the node got at that time is void.
func (s *Set) Refuses(node string, issued time.Time) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, at := range s.records[node] {
		if issued.Before(at.Add(Settle)) {
			return true
		}
	}
	return false
}

// OlderThan returns the names of the Secrets of removals before that time.
func (s *Set) OlderThan(limit time.Time) []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var names []string
	for _, records := range s.records {
		for name, at := range records {
			if at.Before(limit) {
				names = append(names, name)
			}
		}
	}
	return names
}
