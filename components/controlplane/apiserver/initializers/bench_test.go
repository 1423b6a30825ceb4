package initializers

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"kubelith.io/kubelith/base/lifecycle"
)

// What each request, each event for each watch, and each list costs while nothing is configured. docs/older-ways.md has
// the results.

func BenchmarkIdleRequest(b *testing.B) {
	i := New(logrus.New(), new(lifecycle.Goroutines))
	i.configurations.setReady()
	h := i.handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/api/v1/namespaces/default/pods/a", nil)
	for b.Loop() {
		h.ServeHTTP(w, r)
	}
}

func BenchmarkEventOfWatch(b *testing.B) {
	v := visible{fields.Everything()}
	set := fields.Set{"metadata.name": "a", "metadata.namespace": "default", "spec.nodeName": "n", "status.phase": "Running"}
	for b.Loop() {
		if !v.Matches(set) {
			b.Fatal("hidden")
		}
	}
}

func BenchmarkListOf1000(b *testing.B) {
	list := &corev1.PodList{}
	for n := range 1000 {
		list.Items = append(list.Items, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(n), Annotations: map[string]string{"a": "b"}}})
	}
	for b.Loop() {
		if anyHidden(list) {
			b.Fatal("hidden")
		}
	}
}
