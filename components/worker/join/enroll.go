package join

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/certificate"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"

	"kubelith.io/kubelith/base/names"
)

// signTimeout is how long the server may take to issue the node's certificate. It decides and signs within a second,
// except on a slow disk, where each of the writes takes half a minute.
const signTimeout = 5 * time.Minute

func commonName(node string) string   { return names.NodeUserPrefix + node }
func nodeNameOf(common string) string { return strings.TrimPrefix(common, names.NodeUserPrefix) }

// subject is a node's identity for the API.
func subject(node string) pkix.Name {
	return pkix.Name{CommonName: commonName(node), Organization: []string{user.NodesGroup}}
}

// Join makes this machine a node of the cluster unless it is one, and stores what a later start needs. When it fails,
// it removes what it created, except the machine's key when the server may have reserved the name for it: otherwise the
// next try would look like another machine. addresses are those that the node will have; the server refuses those of
// other nodes.
func (c *Cluster) Join(ctx context.Context, addresses []string) (_ *Connection, err error) {
	if c.token == nil {
		if err := c.store.replace(c.store.settings(), c.settings); err != nil {
			return nil, err
		}
		return newConnection(c), nil
	}
	made := &journal{}
	defer func() {
		if err != nil {
			made.undo()
		}
	}()
	key, keyPEM, err := c.identity(made)
	if err != nil {
		return nil, err
	}
	certPEM, err := c.enroll(ctx, key, addresses, func() { made.keep(c.store.identity()) })
	if err != nil {
		return nil, err
	}
	cert, err := c.store.save(made, membershipPEM{cas: c.way.trusted(), settings: c.settings, cert: certPEM, key: keyPEM})
	if err != nil {
		return nil, err
	}
	c.way.use(cert)
	c.token = nil
	return newConnection(c), nil
}

// identity returns the key by which the server recognises this machine. It is generated once.
func (c *Cluster) identity(made *journal) (crypto.Signer, []byte, error) {
	path := c.store.identity()
	text, err := os.ReadFile(path)
	if err == nil {
		parsed, err := keyutil.ParsePrivateKeyPEM(text)
		key, ok := parsed.(crypto.Signer)
		if err != nil || !ok {
			return nil, nil, fmt.Errorf("%s is damaged: restore it, or run kubelith reset --data and join under another --node-name", path)
		}
		return key, text, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("read this machine's key: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate this machine's key: %w", err)
	}
	if text, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		return nil, nil, fmt.Errorf("generate this machine's key: %w", err)
	}
	return key, text, made.write(path, text)
}

// enroll requests the node's certificate and waits for it. It calls reserved unless the server has denied the request:
// the key may have the name.
func (c *Cluster) enroll(ctx context.Context, key crypto.Signer, addresses []string, reserved func()) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject(c.opts.NodeName)}, key)
	if err != nil {
		return nil, fmt.Errorf("create the certificate request: %w", err)
	}
	request := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	client, err := c.bootstrapClient()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, signTimeout)
	defer cancel()
	sent, err := client.CertificatesV1().CertificateSigningRequests().Create(ctx, &certificatesv1.CertificateSigningRequest{
		// The server generates its name: with a fixed one, a second try would find the first request, denied.
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-", Annotations: map[string]string{names.NodeIPAnnotation: strings.Join(addresses, ",")}},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: request, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Usages: certificate.DefaultKubeletClientGetUsages(key),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("request the node's certificate: %w", err)
	}
	name, uid := sent.Name, sent.UID
	cert, err := csr.WaitForCertificate(ctx, client, name, uid)
	if err == nil {
		reserved()
		return cert, nil
	}
	if why := denied(context.WithoutCancel(ctx), client, name); why != "" {
		return nil, fmt.Errorf("the server refuses this node: %s", why)
	}
	reserved()
	if ctx.Err() != nil && context.Cause(ctx) == context.DeadlineExceeded {
		return nil, fmt.Errorf("the server did not sign the node's certificate within %s: see its log and kubectl get csr %s there", signTimeout, name)
	}
	return nil, fmt.Errorf("wait for the node's certificate: %w", err)
}

// denied returns the reason why the request was denied; empty when it was not, or can no longer be read.
func denied(ctx context.Context, client kubernetes.Interface, name string) string {
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	request, err := client.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	for _, condition := range request.Status.Conditions {
		if condition.Type == certificatesv1.CertificateDenied || condition.Type == certificatesv1.CertificateFailed {
			return condition.Message
		}
	}
	return ""
}
