package approver

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	capihelper "k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/controller/certificates"

	"kubelith.io/kubelith/base/names"
)

// notANode is the reason to deny a renewal to a machine that is no longer a node.
const notANode = "NotANode"

// judgeRenewal applies the rules for the next client certificate of a node.
func (s *Server) judgeRenewal(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, request *x509.CertificateRequest) (verdict, error) {
	if err := capihelper.ValidateKubeletClientCSR(request, usages(csr)); err != nil {
		return deny(invalid, "%v", err), nil
	}
	if csr.Spec.Username != request.Subject.CommonName || !slices.Contains(csr.Spec.Groups, user.NodesGroup) {
		return deny(notItself, "%s may request a certificate for itself only, not for %s", csr.Spec.Username, request.Subject.CommonName), nil
	}
	name := strings.TrimPrefix(csr.Spec.Username, names.NodeUserPrefix)
	if s.removed.Refuses(name, csr.CreationTimestamp.Time) {
		return deny(notANode, "the node %s was removed: join again with a token", name), nil
	}
	// Read from the API, because the cache may be a moment old.
	node, err := s.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return deny(notANode, "node %s does not exist: its machine must join again with a token", name), nil
	}
	if err != nil {
		return verdict{}, fmt.Errorf("read the node %s: %w", name, err)
	}
	owner, err := s.ownerOf(ctx, node)
	if err != nil {
		return verdict{}, err
	}
	if !isOf(node, owner) {
		return deny(notANode, "label %s of node %s does not identify the machine that joined under this name: "+
			"that machine must join again with a token", names.MachineLabel, name), nil
	}
	return verdict{}, nil
}

// ownerOf returns the machine that has the name of a Node. If the name is not reserved, the Node was deleted, and its
// agent registered it again with its old certificate: ownerOf reserves it again for that machine, which only the Node
// names.
func (s *Server) ownerOf(ctx context.Context, node *corev1.Node) (machine string, err error) {
	configMaps := s.client.CoreV1().ConfigMaps(namespace)
	reservation, err := configMaps.Get(ctx, names.ReservationPrefix+node.Name, metav1.GetOptions{})
	if err == nil {
		return reservation.Data[names.ReservationMachine], nil
	}
	if !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("read the reservation of the name %s: %w", node.Name, err)
	}
	machine = node.Labels[names.MachineLabel]
	if !isOf(node, machine) { // a server, or a node that never joined with a token
		return "", nil
	}
	if _, err := configMaps.Create(ctx, newReservation(node.Name, machine, ""), metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
		return "", certificates.IgnorableError("the name %s was reserved in the meantime", node.Name)
	} else if err != nil {
		return "", fmt.Errorf("reserve the name %s: %w", node.Name, err)
	}
	return machine, nil
}
