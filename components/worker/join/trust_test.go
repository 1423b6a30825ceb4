package join

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// TestReplacedCA: a running agent trusts another CA from one moment to the next, and the former one no longer. It is
// renewed at once, and starts again with what it has, also with the token of then.
func TestReplacedCA(t *testing.T) {
	former, next := newAuthority(t), newAuthority(t)
	a := newAPI(t, former)
	o := a.options(t)
	c := joined(t, o)
	client, err := kubernetes.NewForConfig(c.Config("test"))
	if err != nil {
		t.Fatal(err)
	}
	get := func() error {
		_, err := client.CoreV1().ConfigMaps("ns").Get(t.Context(), "settings", metav1.GetOptions{})
		return err
	}
	if err := c.Trust([]byte("x")); err == nil {
		t.Error("it trusts what is no CA")
	}
	both := slices.Concat(former.pem(), next.pem())
	if err := c.Trust(both); err != nil {
		t.Fatal(err)
	}
	if err := get(); err != nil {
		t.Errorf("the former CA: %v", err)
	}
	stop := running(t, c)
	waitFor(t, "the certificate", func() bool { return c.Certificate() != nil })
	before := c.Certificate()
	if err := c.Renew(t.Context()); err != nil || c.Certificate().Equal(before) {
		t.Errorf("the certificate was not renewed: %v", err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}

	address := a.address()
	a.CloseClientConnections()
	a.Close()
	b := newAPIAt(t, next, address)
	b.TLS.ClientCAs.AddCert(former.cert) // it knows the node
	c = joined(t, o)
	if client, err = kubernetes.NewForConfig(c.Config("test")); err != nil {
		t.Fatal(err)
	}
	if err := get(); err != nil {
		t.Errorf("the new CA, after another start: %v", err)
	}
	if err := c.Trust(next.pem()); err != nil {
		t.Fatal(err)
	}
	if err := get(); err != nil {
		t.Errorf("the new CA alone: %v", err)
	}
	c.way.close()

	c = joined(t, o) // its token names the former CA
	c.way.close()
	o.Token = newAPI(t, newAuthority(t)).token.String()
	if _, err := Find(t.Context(), o); err == nil {
		t.Error("a token of another cluster is accepted")
	}

	b.CloseClientConnections()
	b.Close()
	newAPIAt(t, former, address)
	o.Token = ""
	if _, err := Find(t.Context(), o); err == nil {
		t.Error("a server of the former CA is trusted")
	}
}
