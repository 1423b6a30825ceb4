package approver

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"net"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	capihelper "k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/controller/certificates"

	"kubelith.io/kubelith/base/names"
)

// Reasons to deny a machine that joins.
const (
	nameTaken = "NameTaken"
	badName   = "InvalidName"
	badToken  = "TokenRefused"
	tooMany   = "TooManyPending"
	sameIP    = "AddressTaken"
)

// joins reports whether the request comes from a machine that has shown one of our tokens. Other tokens (kubeadm's for
// example) have other groups, and their owners approve them.
func (s *Server) joins(csr *certificatesv1.CertificateSigningRequest) bool {
	return strings.HasPrefix(csr.Spec.Username, bootstrapapi.BootstrapUserPrefix) && slices.Contains(csr.Spec.Groups, names.JoiningAgents)
}

// judgeClient applies the rules for a node's client certificate.
func (s *Server) judgeClient(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, request *x509.CertificateRequest) (verdict, error) {
	// Exactly what upstream's signer signs: organization system:nodes, a node's name, no further names.
	if err := capihelper.ValidateKubeletClientCSR(request, usages(csr)); err != nil {
		return deny(invalid, "%v", err), nil
	}
	name := strings.TrimPrefix(request.Subject.CommonName, names.NodeUserPrefix)
	// As in base/config: the name becomes the value of a label.
	if len(validation.IsDNS1123Subdomain(name)) > 0 || len(name) > 63 {
		return deny(badName, "%q cannot be a node's name: choose another --node-name, at most 63 lower-case letters, digits, '-' and '.'", name), nil
	}
	taken := deny(nameTaken, "the name %s belongs to another machine: choose another --node-name, or run kubectl delete node %s first", name, name)
	node, _ := s.nodes.Get(name) // the lister of a cache: nil when it does not exist
	if s.isServer(name, node) {
		return taken, nil
	}
	if s.removed.Refuses(name, s.now()) {
		return verdict{}, certificates.IgnorableError("not yet: node %s was removed a moment ago", name)
	}
	if address, other := s.sharesAddress(name, csr.Annotations[names.NodeIPAnnotation]); other != "" {
		return deny(sameIP, "address %s already belongs to node %s: set this machine's own with --node-ip, "+
			"or run kubelith node remove %[2]s if that machine is gone", address, other), nil
	}
	machine := keyHash(request)
	id := strings.TrimPrefix(csr.Spec.Username, bootstrapapi.BootstrapUserPrefix)
	owner, made, err := s.reserve(ctx, name, machine, id)
	if errors.Is(err, errPending) {
		return deny(tooMany, "%d machines have joined with token %s and not registered a node yet: "+
			"delete the token if they are not yours, create another with kubelith token create, or wait an hour", maxPending, id), nil
	}
	if err != nil {
		return verdict{}, err
	}
	if !owner {
		return taken, nil
	}
	refusal, err := s.opts.Spend(ctx, id, machine)
	if err == nil && refusal == "" {
		return verdict{}, nil
	}
	if made { // nothing of a failed join remains
		err = errors.Join(err, s.release(ctx, name, machine))
	}
	return deny(badToken, "%s", refusal), err
}

// keyHash identifies a machine by the key that it keeps for joining. The apiserver has checked that the requester has
// the key.
func keyHash(request *x509.CertificateRequest) string {
	sum := sha256.Sum256(request.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// sharesAddress returns the address in list that another node has, and that node's name.
func (s *Server) sharesAddress(name, list string) (address, other string) {
	nodes, err := s.nodes.List(labels.Everything())
	if err != nil {
		return "", "" // a lister fails only when its index is broken
	}
	for _, text := range strings.Split(list, ",") {
		ip := net.ParseIP(text)
		if ip == nil {
			continue
		}
		for _, n := range nodes {
			if n.Name != name && namesOf(n)[ip.String()] {
				return ip.String(), n.Name
			}
		}
	}
	return "", ""
}
