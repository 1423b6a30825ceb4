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
	"k8s.io/kubernetes/pkg/controller/certificates"

	sharedinformers "kubelith.io/kubelith/base/informers"
	"kubelith.io/kubelith/base/names"
)

// A reservation is a ConfigMap that records which machine has a node's name.
//
//	(free) --a machine asks--> reserved --its Node is deleted-------------------> (free)
//	                              |
//	                              +------no Node and no request for abandoned---> (free)
//
// A machine whose Node was deleted still has a certificate, and registers again when its agent starts. The name is not
// reserved then; but no other machine gets it while there is a Node, and the Node identifies the machine.
const (
	namespace        = metav1.NamespaceSystem
	reservationLabel = "kubelith.io/reservation"
)

// maxPending is how many machines may have joined with one token and have no Node yet. A machine is in that state for
// seconds, so many more can join at once, but the holder of a token cannot reserve every name.
const maxPending = 100

// isOf reports whether the Node names this machine, identified by its keyHash or by the part of it that fits into a
// label.
func isOf(node *corev1.Node, machine string) bool {
	return len(machine) >= validation.LabelValueMaxLength && node.Labels[names.MachineLabel] == machine[:validation.LabelValueMaxLength]
}

// has reports whether the name is reserved for this machine.
func has(reservation *corev1.ConfigMap, machine string) bool {
	owner := reservation.Data[names.ReservationMachine]
	return len(owner) >= validation.LabelValueMaxLength && strings.HasPrefix(machine, owner)
}

// abandoned is how long a name stays reserved for a machine that got a certificate and never registered.
const abandoned = time.Hour

// errPending means that too many machines have shown a token and not registered.
var errPending = errors.New("too many machines have joined with the token and have no node")

// reserve gives the name to the machine, which has shown the token with this id, unless another one has it. made
// reports that the machine did not have it before.
func (s *Server) reserve(ctx context.Context, name, machine, token string) (owner, made bool, err error) {
	configMaps := s.client.CoreV1().ConfigMaps(namespace)
	// Read from the API, because the cache may be a moment old.
	reservation, err := configMaps.Get(ctx, names.ReservationPrefix+name, metav1.GetOptions{})
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
	if apierrors.IsAlreadyExists(err) { // two machines at once: check again which one has it
		return false, false, certificates.IgnorableError("the name %s was reserved in the meantime", name)
	}
	if err != nil {
		return false, false, fmt.Errorf("reserve the name %s: %w", name, err)
	}
	return true, true, nil
}

// newReservation returns a reservation for a machine that has shown the token with this id, or none.
func newReservation(name, machine, token string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: names.ReservationPrefix + name, Labels: map[string]string{reservationLabel: "node"}},
		Data:       map[string]string{names.ReservationMachine: machine, names.ReservationToken: token},
	}
}

// pending counts the names reserved for machines that have shown the token and have no Node yet. They become free again
// after a while (freeAbandoned).
func (s *Server) pending(token string) int {
	reservations, err := s.configMaps.List(labels.SelectorFromSet(labels.Set{reservationLabel: "node"}))
	if err != nil {
		return 0 // a lister fails only when its index is broken
	}
	n := 0
	for _, r := range reservations {
		if r.Data[names.ReservationToken] != token {
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
	reservation, err := s.client.CoreV1().ConfigMaps(namespace).Get(ctx, names.ReservationPrefix+name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && !has(reservation, machine) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the reservation of the name %s: %w", name, err)
	}
	return s.free(ctx, reservation)
}

// free deletes a reservation as it was read: one that was created again since stays.
func (s *Server) free(ctx context.Context, reservation *corev1.ConfigMap) error {
	this := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(reservation.UID))}
	err := s.client.CoreV1().ConfigMaps(namespace).Delete(ctx, reservation.Name, this)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("free the name %s: %w", nodeOf(reservation), err)
	}
	return nil
}

func nodeOf(reservation *corev1.ConfigMap) string {
	return strings.TrimPrefix(reservation.Name, names.ReservationPrefix)
}

// recordDeleted records a deleted Node.
func (s *Server) recordDeleted(obj any) bool {
	node, ok := sharedinformers.As[*corev1.Node](obj)
	if !ok {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone[node.Name] = node
	return true
}

// freeGone frees the names of deleted Nodes. Failures are retried in the next call.
func (s *Server) freeGone(ctx context.Context) {
	s.mu.Lock()
	gone := maps.Clone(s.gone)
	s.mu.Unlock()
	for name, node := range gone {
		if err := s.freeNode(ctx, node); err != nil {
			s.opts.Log.Warnf("%v; retrying in %s", err, tidyEvery)
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
	reservation, err := s.client.CoreV1().ConfigMaps(namespace).Get(ctx, names.ReservationPrefix+name, metav1.GetOptions{})
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
	s.opts.Log.Infof("node %s was deleted: its name is free for another machine", name)
	return nil
}

// ofNext reports whether a name is reserved for the machine that came after the one whose Node was deleted. That
// machine may have reserved it after its Node was created: it registered again first, and then joined again.
func (s *Server) ofNext(reservation *corev1.ConfigMap, gone *corev1.Node) bool {
	if machine := gone.Labels[names.MachineLabel]; machine != "" {
		return !strings.HasPrefix(reservation.Data[names.ReservationMachine], machine)
	}
	return reservation.CreationTimestamp.After(gone.CreationTimestamp.Time)
}

// freeAbandoned frees the names of machines that never registered.
func (s *Server) freeAbandoned(ctx context.Context) {
	reservations, err := s.configMaps.List(labels.SelectorFromSet(labels.Set{reservationLabel: "node"}))
	if err != nil {
		return // a lister fails only when its index is broken
	}
	var requested map[string]bool
	for _, r := range reservations {
		name := nodeOf(r)
		if s.now().Sub(r.CreationTimestamp.Time) < abandoned {
			continue
		}
		if _, err := s.nodes.Get(name); err == nil {
			continue
		}
		if requested == nil {
			requested = s.requestedNames()
		}
		if requested[name] {
			continue
		}
		if err := s.free(ctx, r); err != nil {
			s.opts.Log.Warnf("%v; retrying in %s", err, tidyEvery)
			continue
		}
		s.opts.Log.Infof("the machine that joined as %s never registered its node: the name is free for another machine", name)
	}
}
