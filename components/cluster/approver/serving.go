package approver

import (
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"
	certutil "k8s.io/client-go/util/cert"
	capihelper "k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/controller/certificates"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nodeaddr"
)

// Reasons to deny a node its serving certificate.
const (
	notItself = "NotItself"
	notItsOwn = "NotItsOwn"
)

// patience is how long a request may take to become valid: a kubelet sends it as soon as it has addresses, which may be
// before its Node has them.
const patience = 10 * time.Second

// isNode reports whether the requester is a node. An operator approves the requests of users.
func isNode(csr *certificatesv1.CertificateSigningRequest) bool {
	return strings.HasPrefix(csr.Spec.Username, names.NodeUserPrefix)
}

// judgeServing applies the rules for a kubelet's serving certificate.
func (s *Server) judgeServing(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, request *x509.CertificateRequest) (verdict, error) {
	// Exactly what upstream's signer signs: organization system:nodes, DNS names and addresses, and at least one.
	if err := capihelper.ValidateKubeletServingCSR(request, usages(csr)); err != nil {
		return deny(invalid, "%v", err), nil
	}
	if csr.Spec.Username != request.Subject.CommonName || !slices.Contains(csr.Spec.Groups, user.NodesGroup) {
		return deny(notItself, "%s may request a certificate for itself only, not for %s", csr.Spec.Username, request.Subject.CommonName), nil
	}
	name := strings.TrimPrefix(csr.Spec.Username, names.NodeUserPrefix)
	// Rules that no waiting meets.
	why, err := s.reserved(name, request)
	if err != nil {
		return verdict{}, err
	}
	if why != "" {
		return deny(notItsOwn, "%s", why), nil
	}
	why, err = s.foreign(ctx, name, request)
	if err != nil {
		return verdict{}, err
	}
	switch {
	case why == "":
		return verdict{}, nil
	case s.now().Sub(csr.CreationTimestamp.Time) < patience:
		return verdict{}, certificates.IgnorableError("not yet: %s", why)
	}
	return deny(notItsOwn, "%s", why), nil
}

// foreign returns which of the requested names is not the node's, or also belongs to another node.
func (s *Server) foreign(ctx context.Context, name string, request *x509.CertificateRequest) (string, error) {
	// Read from the API, not the cache: the node has just written its addresses.
	node, err := s.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Sprintf("node %s does not exist", name), nil
	}
	if err != nil {
		return "", fmt.Errorf("read the node %s: %w", name, err)
	}
	others, err := s.nodes.List(labels.Everything())
	if err != nil {
		return "", err
	}
	others = slices.DeleteFunc(slices.Clone(others), func(n *corev1.Node) bool { return n.Name == name })

	own := namesOf(node)
	for _, requested := range sans(request) {
		if !own[requested] {
			return fmt.Sprintf("%s is not an address or name of the node %s, which has %s", requested, name, strings.Join(slices.Sorted(maps.Keys(own)), ", ")), nil
		}
		for _, other := range others {
			if namesOf(other)[requested] {
				return fmt.Sprintf("%s is also an address or name of node %s: run kubectl delete node %s if that machine is gone", requested, other.Name, other.Name), nil
			}
		}
	}
	return "", nil
}

// reserved returns which of the requested names no node can have, whatever its Node lists: nodes write that themselves.
func (s *Server) reserved(name string, request *x509.CertificateRequest) (string, error) {
	api, err := s.apiNames()
	if err != nil {
		return "", err
	}
	for _, ip := range request.IPAddresses {
		if why := s.reservedIP(ip, api); why != "" {
			return why, nil
		}
	}
	for _, dns := range request.DNSNames {
		if why := s.reservedName(strings.ToLower(dns), name, api); why != "" {
			return why, nil
		}
	}
	return "", nil
}

func (s *Server) reservedIP(ip net.IP, api *x509.Certificate) string {
	addr, ok := netip.AddrFromSlice(ip)
	addr = addr.Unmap()
	if !ok || !addr.IsGlobalUnicast() {
		return fmt.Sprintf("%s is not an address at which other machines can reach a node", ip)
	}
	for _, n := range s.opts.Networks {
		if prefix, err := netip.ParsePrefix(n); err == nil && prefix.Contains(addr) {
			return fmt.Sprintf("%s is in %s, the network of pods or Services", ip, n)
		}
	}
	if slices.ContainsFunc(api.IPAddresses, ip.Equal) {
		return fmt.Sprintf("%s is an address of the API server", ip)
	}
	return ""
}

// reservedName checks a DNS name; own is the node's.
func (s *Server) reservedName(dns, own string, api *x509.Certificate) string {
	for _, domain := range []string{"svc", "svc." + s.opts.ClusterDomain, s.opts.ClusterDomain, "localhost"} {
		if dns == domain || strings.HasSuffix(dns, "."+domain) {
			return fmt.Sprintf("%s is the name of a Service or of every machine", dns)
		}
	}
	for _, taken := range api.DNSNames {
		if strings.ToLower(taken) == dns {
			return fmt.Sprintf("%s is a name of the API server", dns)
		}
	}
	if strings.Contains(dns, "*") {
		return fmt.Sprintf("%s is not the name of one machine", dns)
	}
	// A wildcard in --tls-san may cover nodes, by their own names.
	if dns != own && api.VerifyHostname(dns) == nil {
		return fmt.Sprintf("%s matches a name in the API server's certificate", dns)
	}
	return ""
}

// sans returns the names and addresses that a certificate would have, in the form of namesOf.
func sans(request *x509.CertificateRequest) []string {
	var all []string
	for _, ip := range request.IPAddresses {
		all = append(all, ip.String())
	}
	for _, dns := range request.DNSNames {
		all = append(all, strings.ToLower(dns))
	}
	return all
}

// namesOf returns the names and addresses of a node, each in one form.
func namesOf(node *corev1.Node) map[string]bool {
	names := map[string]bool{node.Name: true}
	for _, a := range node.Status.Addresses {
		if ip := net.ParseIP(a.Address); ip != nil {
			names[ip.String()] = true
		} else if a.Address != "" {
			names[strings.ToLower(a.Address)] = true
		}
	}
	return names
}

// apiNames returns the certificate of this server's API, with the names in addition that servers have published. It
// reads the file each time: the certificate is renewed, and gets new names.
func (s *Server) apiNames() (*x509.Certificate, error) {
	certs, err := certutil.CertsFromFile(s.opts.ServerCert)
	if err != nil {
		return nil, fmt.Errorf("read the API server's certificate: %w", err)
	}
	all := *certs[0]
	nodes, _ := s.nodes.List(labels.Everything()) // from memory: it does not fail
	for _, name := range nodeaddr.APINames(nodes) {
		if ip := net.ParseIP(name); ip != nil {
			all.IPAddresses = append(all.IPAddresses, ip)
		} else {
			all.DNSNames = append(all.DNSNames, name)
		}
	}
	return &all, nil
}
