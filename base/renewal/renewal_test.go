package renewal

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/certificate"
)

// signer is an API that signs each request, with one CA after another.
type signer struct {
	*fake.Clientset
	ca     *x509.Certificate
	key    *ecdsa.PrivateKey
	serial atomic.Int64
	refuse atomic.Bool
}

func newSigner(t *testing.T) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	s := &signer{Clientset: fake.NewClientset(), ca: ca, key: key}
	s.PrependReactor("create", "certificatesigningrequests", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if s.refuse.Load() {
			return true, nil, apierrors.NewServiceUnavailable("not now")
		}
		csr := a.(clienttesting.CreateAction).GetObject().(*certificatesv1.CertificateSigningRequest)
		csr.Name, csr.UID = "csr", "uid"
		block, _ := pem.Decode(csr.Spec.Request)
		request, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			return true, nil, err
		}
		leaf := &x509.Certificate{
			SerialNumber: big.NewInt(s.serial.Add(1)), Subject: request.Subject, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		}
		der, err := x509.CreateCertificate(rand.Reader, leaf, s.ca, request.PublicKey, s.key)
		csr.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved}}
		_ = s.Tracker().Delete(certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests"), "", "csr")
		if err == nil {
			err = s.Tracker().Create(certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests"), csr, "", metav1.CreateOptions{})
		}
		return true, csr, err
	})
	return s
}

// TestRenew: a certificate is renewed at once, though it is valid for long; until the other one is there it stays in
// use, and so it does while no server signs.
func TestRenew(t *testing.T) {
	s := newSigner(t)
	store, err := certificate.NewFileStore("client", t.TempDir(), t.TempDir(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	m, err := New(certificate.Config{
		ClientsetFn:      func(*tls.Certificate) (kubernetes.Interface, error) { return s, nil },
		Template:         &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:n", Organization: []string{"system:nodes"}}},
		SignerName:       certificatesv1.KubeAPIServerClientKubeletSignerName,
		GetUsages:        certificate.DefaultKubeletClientGetUsages,
		CertificateStore: store,
		Ctx:              &ctx,
	})
	if err != nil {
		t.Fatal(err)
	}
	if m.Leaf() != nil {
		t.Error("there is a certificate before it was requested")
	}
	m.Start()
	defer m.Stop()
	for m.Leaf() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	serial := func() int64 { return m.Leaf().SerialNumber.Int64() }
	if serial() != 1 {
		t.Errorf("serial %d", serial())
	}
	if err := m.Renew(ctx); err != nil || serial() != 2 {
		t.Fatalf("%v, serial %d", err, serial())
	}
	if stored, err := store.Current(); err != nil || stored.Leaf.SerialNumber.Int64() != 2 {
		t.Errorf("%v, %v", stored, err)
	}
	s.refuse.Store(true)
	short, end := context.WithTimeout(ctx, 100*time.Millisecond)
	defer end()
	if err := m.Renew(short); err == nil || serial() != 2 {
		t.Errorf("%v, serial %d", err, serial())
	}
	s.refuse.Store(false)
	if err := m.Renew(ctx); err != nil || serial() <= 2 {
		t.Errorf("%v, serial %d", err, serial())
	}
}
