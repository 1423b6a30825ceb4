package approver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/controller/certificates"

	"kubelith.io/kubelith/components/removed"
)

// A reservation is a ConfigMap that says which machine has a node's name.
//
//	(free) --a machine asks--> reserved --its Node is deleted-------------------> (free)
//	                              |
//	                              +------no Node and no request for abandoned---> (free)
//
// A machine whose Node was deleted still has a certificate, and registers again when its agent starts. The name is not reserved then;
// but while there is a Node nobody else gets it, and the machine itself is known by what the Node says of it.
const (
	namespace         = metav1.NamespaceSystem
	reservationPrefix = removed.ReservationPrefix
	reservationLabel  = "kubelith.io/reservation"
	machineKey        = "machine"                // keyHash, or what MachineLabel has of it
	tokenKey          = removed.ReservationToken // id of the token with which the machine has joined
)

// maxPending is how many machines may have joined with one token without a Node: that is done in seconds, so that many more can join
// at once, and who has a token cannot reserve every name.
const maxPending = 100

// MachineLabel is where a Node has the beginning of its machine's keyHash, as long as a label may be. Besides administrators only
// the node itself can write it.
const MachineLabel = "kubelith.io/machine"

// isOf reports whether the Node says that it is this machine, which is named by its keyHash or by as much as a label has.
func isOf(node *corev1.Node, machine string) bool {
	return len(machine) >= validation.LabelValueMaxLength && node.Labels[MachineLabel] == machine[:validation.LabelValueMaxLength]
}

// has reports whether the name is reserved for this machine.
func has(reservation *corev1.ConfigMap, machine string) bool {
	owner := reservation.Data[machineKey]
	return len(owner) >= validation.LabelValueMaxLength && strings.HasPrefix(machine, owner)
}

// abandoned is how long a name stays reserved for a machine that was given a certificate and never came.
const abandoned = time.Hour

// errPending says that too many machines have shown a token and not come.
var errPending = errors.New("too many machines have joined with the token and have no node")

// reserve gives the machine, which has shown the token with this id, the name, unless another one has it. made tells that it had not
// been the machine's before.
func (s *Server) reserve(ctx context.Context, name, machine, token string) (owner, made bool, err error) {
	configMaps := s.client.CoreV1().ConfigMaps(namespace)
	// Asked for, not taken from the cache: it may be a moment old.
	reservation, err := configMaps.Get(ctx, reservationPrefix+name, metav1.GetOptions{})
	if err == nil {
		return has(reservation, machine), false, nil
	}
	if !apierrors.IsNotFound(err) {
		return false, false, fmt.Errorf("read the reservation of the name %s: %w", name, err)
	}
	node, err := s.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err == nil && !isOf(node, machine) {
		return false, false, nil // a node that never joined with a token, or another machine's
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return false, false, fmt.Errorf("read the node %s: %w", name, err)
	}
	if s.pending(token) >= maxPending {
		return false, false, errPending
	}
	_, err = configMaps.Create(ctx, newReservation(name, machine, token), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // two machines at once: look again whose it is
		return false, false, certificates.IgnorableError("the name %s was reserved meanwhile", name)
	}
	if err != nil {
		return false, false, fmt.Errorf("reserve the name %s: %w", name, err)
	}
	return true, true, nil
}

// newReservation is for a machine that has shown the token with this id, or none.
func newReservation(name, machine, token string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: reservationPrefix + name, Labels: map[string]string{reservationLabel: "node"}},
		Data:       map[string]string{machineKey: machine, tokenKey: token},
	}
}

// pending counts the names that are reserved for machines which have shown the token and have no Node yet. They are free again after
// a while (freeAbandoned).
func (s *Server) pending(token string) int {
	reservations, err := s.configMaps.List(labels.SelectorFromSet(labels.Set{reservationLabel: "node"}))
	if err != nil {
		return 0 // a lister fails only when its index is broken
	}
	n := 0
	for _, r := range reservations {
		if r.Data[tokenKey] != token {
			continue
		}
		if _, err := s.nodes.Get(nodeOf(r)); err != nil {
			n++
		}
	}
	return n
}

// release frees a name that the machine has.
func (s *Server) release(ctx context.Context, name, machine string) error {
	reservation, err := s.client.CoreV1().ConfigMaps(namespace).Get(ctx, reservationPrefix+name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && !has(reservation, machine) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the reservation of the name %s: %w", name, err)
	}
	return s.free(ctx, reservation)
}

// free deletes a reservation as it was read: one that was made anew since stays.
func (s *Server) free(ctx context.Context, reservation *corev1.ConfigMap) error {
	err := s.client.CoreV1().ConfigMaps(namespace).Delete(ctx, reservation.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(reservation.UID))})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("free the name %s: %w", nodeOf(reservation), err)
	}
	return nil
}

func nodeOf(reservation *corev1.ConfigMap) string {
	return strings.TrimPrefix(reservation.Name, reservationPrefix)
}

// noteGone remembers a Node that was deleted.
func (s *Server) noteGone(obj any) bool {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	node, ok := obj.(*corev1.Node)
	if !ok {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone[node.Name] = node
	return true
}

// freeGone frees the names of Nodes that were deleted. What fails is tried again at the next call.
func (s *Server) freeGone(ctx context.Context) {
	s.mu.Lock()
	gone := maps.Clone(s.gone)
	s.mu.Unlock()
	for name, node := range gone {
		if err := s.freeNode(ctx, node); err != nil {
			s.opts.Log.Warnf("%v; next try in %s", err, tidyEvery)
			continue
		}
		s.mu.Lock()
		if s.gone[name] == node {
			delete(s.gone, name)
		}
		s.mu.Unlock()
	}
}

func (s *Server) freeNode(ctx context.Context, node *corev1.Node) error {
	name := node.Name
	_, err := s.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		return nil // its machine has registered it again
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("read the node %s: %w", name, err)
	}
	reservation, err := s.client.CoreV1().ConfigMaps(namespace).Get(ctx, reservationPrefix+name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the reservation of the name %s: %w", name, err)
	}
	if s.ofNext(reservation, node) {
		return nil
	}
	if err := s.free(ctx, reservation); err != nil {
		return err
	}
	s.opts.Log.Infof("node %s was deleted: another machine may have its name", name)
	return nil
}

// ofNext tells whether a name is reserved for the machine that came after the one whose Node was deleted. That one may have reserved it
// later than its Node was made: when it had registered again, and then joined again.
func (s *Server) ofNext(reservation *corev1.ConfigMap, gone *corev1.Node) bool {
	if machine := gone.Labels[MachineLabel]; machine != "" {
		return !strings.HasPrefix(reservation.Data[machineKey], machine)
	}
	return reservation.CreationTimestamp.After(gone.CreationTimestamp.Time)
}

// freeAbandoned frees the names of machines that never came.
func (s *Server) freeAbandoned(ctx context.Context) {
	reservations, err := s.configMaps.List(labels.SelectorFromSet(labels.Set{reservationLabel: "node"}))
	if err != nil {
		return // a lister fails only when its index is broken
	}
	var asked map[string]bool
	for _, r := range reservations {
		name := nodeOf(r)
		if s.now().Sub(r.CreationTimestamp.Time) < abandoned {
			continue
		}
		if _, err := s.nodes.Get(name); err == nil {
			continue
		}
		if asked == nil {
			asked = s.asked()
		}
		if asked[name] {
			continue
		}
		if err := s.free(ctx, r); err != nil {
			s.opts.Log.Warnf("%v; next try in %s", err, tidyEvery)
			continue
		}
		s.opts.Log.Infof("the machine that joined as %s never came: another one may have the name", name)
	}
}
