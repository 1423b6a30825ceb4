package metrics

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/fake"
	"sigs.k8s.io/metrics-server/pkg/storage"

	"kubelith.io/kubelith/base/names"
)

// theirs is the APIService of a metrics-server that a user has installed.
func theirs() *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: names.MetricsAPIService},
		Spec:       apiregistrationv1.APIServiceSpec{Service: &apiregistrationv1.ServiceReference{Namespace: "kube-system", Name: "metrics-server"}},
	}
}

// ours is the APIService that Kubelith creates.
func ours() *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: names.MetricsAPIService}}
}

// counter counts the requests to kubelets, and returns batch.
type counter struct {
	asked chan string
	batch *storage.MetricsBatch
}

func (c counter) GetMetrics(_ context.Context, n *corev1.Node) (*storage.MetricsBatch, error) {
	c.asked <- n.Name
	return c.batch, nil
}

// TestRounds: kubelets are scraped only when the APIService is ours.
func TestRounds(t *testing.T) {
	for name, c := range map[string]struct {
		object runtime.Object // the APIService that is there
		fails  bool
		asks   bool
	}{
		"not created yet":       {nil, false, true},
		"ours":                  {ours(), false, true},
		"not ours":              {theirs(), false, false},
		"the API does not work": {nil, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			cs := fake.NewSimpleClientset()
			if c.object != nil {
				cs = fake.NewSimpleClientset(c.object)
			}
			got := make(chan struct{}, 1)
			cs.PrependReactor("get", "apiservices", func(clienttesting.Action) (bool, runtime.Object, error) {
				got <- struct{}{}
				return c.fails, nil, errors.New("the test's own error")
			})
			log := logrus.New()
			log.SetOutput(t.Output())
			s := New(Options{Log: log})
			indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
			indexer.Add(testNode(10250, loopback))
			s.nodes = corelisters.NewNodeLister(indexer)
			kubelets := counter{make(chan string, 1), &storage.MetricsBatch{}}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				s.rounds(ctx, cs.ApiregistrationV1().APIServices(), kubelets)
			}()
			<-got
			if c.asks {
				select {
				case <-kubelets.asked:
				case <-time.After(10 * time.Second):
					t.Error("the kubelet was not asked")
				}
			}
			cancel()
			<-ended
			if len(kubelets.asked) > 0 {
				t.Error("the kubelet was asked")
			}
		})
	}
}

// TestRunBeforeInstall: the component without its API is a mistake in the wiring.
func TestRunBeforeInstall(t *testing.T) {
	if err := New(Options{}).Run(t.Context(), func() { t.Error("ready") }); err == nil {
		t.Error("it runs")
	}
}

func TestPodLister(t *testing.T) {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for name, phase := range map[string]corev1.PodPhase{"a/runs": corev1.PodRunning, "a/waits": corev1.PodPending, "b/runs": corev1.PodRunning, "b/ended": corev1.PodSucceeded} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: name[:1], Name: name[2:], Labels: map[string]string{"in": name[:1]}}}
		p.Status.Phase = phase
		indexer.Add(p)
	}
	l := podLister{corelisters.NewPodLister(indexer)}
	names := func(all []runtime.Object, err error) []string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]bool{}
		for _, o := range all {
			m := o.(*metav1.PartialObjectMetadata) // metrics-server takes nothing else
			found[m.Namespace+"/"+m.Name] = m.Labels["in"] == m.Namespace
		}
		return slices.Sorted(maps.Keys(found))
	}
	everything, inB := labels.Everything(), labels.SelectorFromSet(labels.Set{"in": "b"})
	for _, c := range []struct{ got, want []string }{
		{names(l.List(everything)), []string{"a/runs", "b/runs"}},
		{names(l.List(inB)), []string{"b/runs"}},
		{names(l.ByNamespace("a").List(everything)), []string{"a/runs"}},
		{names(l.ByNamespace("a").List(inB)), nil},
		{names(l.ByNamespace("").List(everything)), []string{"a/runs", "b/runs"}},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("got %v, want %v", c.got, c.want)
		}
	}
	got, err := l.ByNamespace("b").Get("runs")
	if err != nil || got.(*metav1.PartialObjectMetadata).Namespace != "b" {
		t.Errorf("%v, %v", got, err)
	}
	for _, name := range []string{"ended", "missing"} {
		if _, err := l.ByNamespace("b").Get(name); !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := l.Get("runs"); !apierrors.IsNotFound(err) {
		t.Errorf("without a namespace: %v", err)
	}
}
