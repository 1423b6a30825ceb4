package apiserver

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
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/removed"
)

// asNodeOverTLS is a client with a node's certificate, issued at a time as upstream's signer does.
func asNodeOverTLS(t *testing.T, name string, issued time.Time) kubernetes.Interface {
	t.Helper()
	ca, err := tls.LoadX509KeyPair(shared.pki.ClusterCA.Cert, shared.pki.ClusterCA.Key)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(issued.UnixNano()),
		Subject:      pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}},
		NotBefore:    issued.Add(-5 * time.Minute), NotAfter: issued.Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca.Leaf, key.Public(), ca.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return clientFor(t, &rest.Config{Host: shared.url, TLSClientConfig: rest.TLSClientConfig{
		CAFile:   shared.pki.ClusterCA.Cert,
		CertData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		KeyData:  pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}),
	}})
}

// TestRemovedNode: from the moment when a node is removed its certificates of before are refused, and what it watches
// ends; those of later, and those of other nodes, are as good as ever.
func TestRemovedNode(t *testing.T) {
	admin := clientFor(t, serve(t).Config("somebody", "system:masters"))
	node, namesake := asNodeOverTLS(t, "stolen", time.Now()), asNodeOverTLS(t, "stolen2", time.Now())
	if _, err := admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "stolen"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	follow := func(cs kubernetes.Interface) <-chan struct{} {
		t.Helper()
		w, err := cs.CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Stop)
		ended := make(chan struct{})
		go func() {
			for range w.ResultChan() {
			}
			close(ended)
		}()
		return ended
	}
	list := func(cs kubernetes.Interface) error {
		_, err := cs.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		return err
	}
	its, others := follow(node), follow(namesake)
	if err := list(node); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if _, err := removed.Remove(t.Context(), admin, "stolen", false); err != nil {
		t.Fatal(err)
	}
	select {
	case <-its:
	case <-time.After(30 * time.Second):
		t.Error("its watch was not ended")
	}
	for what, err := range map[string]error{
		"lists nodes":            list(node),
		"creates its Node again": second(node.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "stolen"}}, metav1.CreateOptions{})),
		"watches":                second(node.CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{})),
		"asks who it is":         second(node.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})),
		"asks for health":        node.Discovery().RESTClient().Get().AbsPath("/livez").Do(t.Context()).Error(),
	} {
		if !apierrors.IsUnauthorized(err) {
			t.Errorf("it %s: %v", what, err)
		}
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("it took %s", took)
	}
	if err := list(asNodeOverTLS(t, "stolen", time.Now().Add(removed.Settle+time.Second))); err != nil {
		t.Errorf("after it has joined again: %v", err)
	}
	if err := list(namesake); err != nil {
		t.Errorf("another node: %v", err)
	}
	select {
	case <-others:
		t.Error("the watch of another node has ended")
	default:
	}
	shared.server.removals.mu.Lock()
	if open := shared.server.removals.open["stolen"]; len(open) > 0 {
		t.Errorf("still noted as open: %d", len(open))
	}
	shared.server.removals.mu.Unlock()

	secrets := admin.CoreV1().Secrets("kube-system")
	records, err := secrets.List(t.Context(), metav1.ListOptions{FieldSelector: "type=kubelith.io/removed-node"})
	if err != nil || len(records.Items) != 1 {
		t.Fatalf("records: %v, %v", records, err)
	}
	if records.Items[0].Data["node"] = []byte("other"); !apierrors.IsInvalid(second(secrets.Update(t.Context(), &records.Items[0], metav1.UpdateOptions{}))) {
		t.Error("the record can be changed")
	}
}

func second[T any](_ T, err error) error { return err }

// A watch that begins while its node is removed ends too.
func TestRemovedMeanwhile(t *testing.T) {
	serve(t)
	admin := clientFor(t, shared.client.Config("somebody", "system:masters"))
	if _, err := removed.Remove(t.Context(), admin, "meanwhile", true); err != nil {
		t.Fatal(err)
	}
	r := shared.server.removals
	ctx, done := r.begin(t.Context(), "meanwhile", time.Now().Add(-time.Hour))
	defer done()
	if ctx.Err() != context.Canceled {
		t.Errorf("not cancelled: %v", ctx.Err())
	}
}

// TestTokenReviewWithoutToken: what is no token at all is reviewed like a wrong one. (Upstream takes a token that
// begins with a blank for none.)
func TestTokenReviewWithoutToken(t *testing.T) {
	admin := clientFor(t, serve(t).Config("somebody", "system:masters"))
	for _, token := range []string{" ", " x", "x"} {
		review, err := admin.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
		if err != nil || review.Status.Authenticated || review.Status.User.Username != "" {
			t.Errorf("%q: %v, %v", token, review.Status, err)
		}
	}
}
