package cni

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// TestWatchPodCIDRs plays a Node that registers, gets CIDRs, changes otherwise, and gets other CIDRs.
func TestWatchPodCIDRs(t *testing.T) {
	node := func(version string, cidrs ...string) corev1.Node {
		return corev1.Node{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{Name: "n1", ResourceVersion: version},
			Spec:       corev1.NodeSpec{PodCIDRs: cidrs},
		}
	}
	stop := make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.URL.Query().Get("fieldSelector"); got != "metadata.name=n1" {
			t.Errorf("asks for %q, which a node may not see", got)
		}
		w.Header().Set("Content-Type", "application/json")
		out := json.NewEncoder(w)
		switch {
		case r.URL.Query().Get("sendInitialEvents") == "true":
			w.WriteHeader(http.StatusUnprocessableEntity) // no streaming lists here: list, then watch
		case r.URL.Query().Get("watch") == "":
			_ = out.Encode(corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"},
				ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []corev1.Node{node("1")}})
		default:
			for _, n := range []corev1.Node{node("2", "10.42.0.0/24"), node("3", "10.42.0.0/24"), node("4", "10.42.7.0/24")} {
				_ = out.Encode(map[string]any{"type": "MODIFIED", "object": n})
			}
			w.(http.Flusher).Flush()
			<-stop
		}
	}))
	defer api.Close()
	defer close(stop)
	ctx, cancel := context.WithCancel(context.Background())
	cidrs := make(chan []string)
	done, err := watchPodCIDRs(ctx, &rest.Config{Host: api.URL}, "n1", cidrs)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"10.42.0.0/24", "10.42.7.0/24"} {
		select {
		case got := <-cidrs:
			if !slices.Equal(got, []string{want}) {
				t.Errorf("got %v, want %s", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s was not reported", want)
		}
	}
	cancel()
	<-done
}
