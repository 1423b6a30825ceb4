package peers

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/components/worker/policy/rules"
)

func pod(name, label, ip string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: map[string]string{"app": label}},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{
			Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 80}}, Env: []corev1.EnvVar{{Name: "PASSWORD", Value: "secret"}},
		}}},
		Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: ip}}},
	}
}

// TestFollow: an agent has what the server has, over changes and a lost connection.
func TestFollow(t *testing.T) {
	cs := fake.NewClientset(pod("a", "x", "10.42.0.2"), pod("b", "x", "10.42.0.3"))
	factory := informers.NewSharedInformerFactory(cs, 0)
	server := httptest.NewServer(Handler(func() informers.SharedInformerFactory { return factory }, http.NotFoundHandler()))
	defer server.Close()
	factory.Core().V1().Pods().Informer()
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())

	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	have, syncs := map[types.UID]Pod{}, 0
	known := map[types.UID]bool{}
	follow := func(ctx context.Context) error {
		return Follow(ctx, client.Discovery().RESTClient(), known, func(p *Pod) {
			mu.Lock()
			defer mu.Unlock()
			have[p.UID] = *p
		}, func(uid types.UID) {
			mu.Lock()
			defer mu.Unlock()
			delete(have, uid)
		}, func() {
			mu.Lock()
			defer mu.Unlock()
			syncs++
		})
	}
	eventually := func(what string, f func() bool) {
		t.Helper()
		for range 3000 {
			mu.Lock()
			ok := f()
			mu.Unlock()
			if ok {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("%s: %+v", what, have)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- follow(ctx) }()
	eventually("the first two", func() bool { return syncs == 1 && len(have) == 2 })
	want := rules.Pod{
		Namespace: "ns", Name: "a", UID: "a", Labels: map[string]string{"app": "x"}, IPs: []netip.Addr{netip.MustParseAddr("10.42.0.2")},
		Ports: []rules.NamedPort{{Name: "web", Protocol: corev1.ProtocolTCP, Port: 80}},
	}
	if a := have["a"]; a.Node != "n" || a.Labels["app"] != "x" || !slices.Equal(a.IPs, want.IPs) || !slices.Equal(a.Ports, want.Ports) {
		t.Errorf("it has %+v", a)
	}
	pods := cs.CoreV1().Pods("ns")
	if _, err := pods.Update(t.Context(), pod("a", "y", "10.42.0.2"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually("another label", func() bool { return have["a"].Labels["app"] == "y" })
	ending := pod("b", "x", "10.42.0.3")
	ending.Status.Phase = corev1.PodSucceeded
	if _, err := pods.Update(t.Context(), ending, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually("one has ended", func() bool { return len(have) == 1 })

	// No user can break the connection of all agents by the size of a pod.
	large := pod("large", "x", "10.42.0.5")
	for i := range 20000 {
		large.Labels[fmt.Sprintf("%063d", i)] = strings.Repeat("v", 63)
	}
	if _, err := pods.Create(t.Context(), large, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually("a large one", func() bool { return len(have["large"].Labels) == 20001 })
	if err := pods.Delete(t.Context(), "large", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually("it is gone", func() bool { return len(have) == 1 && syncs == 1 })

	cancel()
	if err := <-ended; err == nil {
		t.Error("the connection ended without an error")
	}
	if err := pods.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Create(t.Context(), pod("c", "x", "10.42.0.4"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	go func() { ended <- follow(t.Context()) }()
	eventually("after another connection", func() bool { return len(have) == 1 && have["c"].Name == "c" })
	server.CloseClientConnections()
	if err := <-ended; err == nil {
		t.Error("the connection was closed without an error")
	}
}
