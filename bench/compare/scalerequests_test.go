package compare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/bench/results"
)

// counts is what the server has counted of its requests since its start.
type counts struct {
	buckets map[string]map[float64]float64 // by verb and upper bound, in seconds
	answers map[answer]float64
	db      float64 // etcd's, in bytes
}

// answer is a kind of answer to a request.
type answer struct{ code, verb, resource string }

// scrape reads the server's metrics.
func (r *run) scrape() counts {
	r.t.Helper()
	text, err := r.client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		r.t.Fatal(err)
	}
	c := counts{buckets: map[string]map[float64]float64{}, answers: map[answer]float64{}}
	for _, m := range families["apiserver_request_duration_seconds"].GetMetric() {
		verb := label(m, "verb")
		if c.buckets[verb] == nil {
			c.buckets[verb] = map[float64]float64{}
		}
		for _, b := range m.GetHistogram().GetBucket() {
			c.buckets[verb][b.GetUpperBound()] += float64(b.GetCumulativeCount())
		}
	}
	for _, m := range families["apiserver_request_total"].GetMetric() {
		c.answers[answer{label(m, "code"), label(m, "verb"), label(m, "resource")}] += m.GetCounter().GetValue()
	}
	for _, m := range families["apiserver_storage_size_bytes"].GetMetric() {
		c.db += m.GetGauge().GetValue()
	}
	return c
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// until is what was counted between c and end, which are some seconds apart.
func (c counts) until(end counts, seconds float64) []results.Sample {
	var all, failed float64
	detail := ""
	for a, n := range end.answers {
		n -= c.answers[a]
		all += n
		if status, err := strconv.Atoi(a.code); err == nil && n > 0 && (status == 429 || status >= 500) {
			failed += n
			detail += fmt.Sprintf("%s %s %s: %.0f; ", a.code, a.verb, a.resource, n)
		}
	}
	samples := []results.Sample{
		{Figure: results.RequestRate, Value: all / seconds},
		{Figure: results.RequestsFailed, Value: failed, Detail: detail},
		{Figure: results.DatabaseSize, Value: end.db / 1e6},
	}
	for _, verb := range results.Verbs {
		buckets := map[float64]float64{}
		for bound, n := range end.buckets[verb] {
			buckets[bound] = n - c.buckets[verb][bound]
		}
		if p99, ok := results.Quantile(buckets, 0.99); ok {
			samples = append(samples, results.Sample{Figure: results.RequestP99(verb), Value: p99 * 1e3})
		}
	}
	return samples
}

// startAsking sends requests one after the other until the returned function is called, which returns their 99th
// percentiles.
func startAsking(t *testing.T, client kubernetes.Interface) func() []results.Sample {
	t.Helper()
	a := &asker{client: client, times: map[string][]float64{}}
	api := client.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	made, err := api.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: asked}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.ask(ctx, made.ResourceVersion) }()
	return func() (samples []results.Sample) {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("a request failed: %v", err)
		}
		if err := api.Delete(t.Context(), asked, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		for figure, v := range a.times {
			samples = append(samples, results.Sample{Figure: figure, Value: results.Percentile(v, 99)})
		}
		return samples
	}
}

const (
	// asked is the ConfigMap that the client requests.
	asked = "asked"
	// pause is between two rounds of requests: the asking itself must not be what is measured.
	pause = 200 * time.Millisecond
)

// asker is a client that is not in a hurry.
type asker struct {
	client kubernetes.Interface
	times  map[string][]float64 // in milliseconds, by metric
}

// ask goes on until ctx ends or a request fails. A request that has begun is not cancelled.
func (a *asker) ask(ctx context.Context, version string) error {
	api := a.client.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	for i := 0; ctx.Err() == nil; i++ {
		err := a.timed(results.GetP99, func() error { _, err := api.Get(context.Background(), asked, metav1.GetOptions{}); return err })
		if err != nil {
			return err
		}
		if version, err = a.update(version, i); err != nil {
			return err
		}
		if i%10 == 0 {
			if err := a.timed(results.ListP99, func() error {
				_, err := a.client.CoreV1().Pods(metav1.NamespaceAll).List(context.Background(), metav1.ListOptions{Limit: 500})
				return err
			}); err != nil {
				return err
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return nil
}

// update changes the ConfigMap, and waits until a watch has seen it.
func (a *asker) update(version string, i int) (string, error) {
	api := a.client.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	w, err := api.Watch(context.Background(), metav1.ListOptions{ResourceVersion: version, FieldSelector: "metadata.name=" + asked})
	if err != nil {
		return "", err
	}
	defer w.Stop()
	began := time.Now()
	changed := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: asked}, Data: map[string]string{"i": strconv.Itoa(i)}}
	if err := a.timed(results.UpdateP99, func() (err error) {
		changed, err = api.Update(context.Background(), changed, metav1.UpdateOptions{})
		return err
	}); err != nil {
		return "", err
	}
	for e := range w.ResultChan() {
		if seen, ok := e.Object.(*corev1.ConfigMap); ok && seen.ResourceVersion == changed.ResourceVersion {
			a.add(results.WatchP99, time.Since(began))
			return changed.ResourceVersion, nil
		}
	}
	return "", errors.New("a watch ended before it saw an update")
}

func (a *asker) timed(figure string, request func() error) error {
	began := time.Now()
	err := request()
	a.add(figure, time.Since(began))
	return err
}

func (a *asker) add(figure string, took time.Duration) {
	a.times[figure] = append(a.times[figure], float64(took.Microseconds())/1e3)
}
