package jointoken

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestWaitSigned(t *testing.T) {
	cs := fake.NewClientset()
	err := WaitSigned(t.Context(), cs, "abc123", 0, 10*time.Millisecond)
	if want := fmt.Sprintf("token abc123 was created but not signed within %s", 10*time.Millisecond); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
	err = WaitSigned(t.Context(), cs, "abc123", 10*time.Millisecond, time.Hour)
	if want := "token abc123 expired after 10ms, before"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
	signed := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"}, Data: map[string]string{"jws-kubeconfig-abc123": "x"}}
	if _, err := cs.CoreV1().ConfigMaps("kube-public").Create(t.Context(), signed, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := WaitSigned(t.Context(), cs, "abc123", time.Hour, 20*time.Second); err != nil {
		t.Error(err)
	}
	if _, err := CAHash(t.Context(), fake.NewClientset()); err == nil || !strings.Contains(err.Error(), "wait until kubelith server is ready") {
		t.Errorf("a server that has not published anything: %v", err)
	}
}
