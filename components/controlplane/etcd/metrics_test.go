package etcd

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// TestMetrics: a registry gets etcd's metrics from another one, each once, and no others.
func TestMetrics(t *testing.T) {
	all, served := prometheus.NewRegistry(), prometheus.NewRegistry()
	syncs := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "etcd_disk_wal_fsync_duration_seconds", Help: "h", Buckets: []float64{0.001, 0.002, 0.004}})
	peers := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "etcd_network_peer_sent_bytes_total", Help: "h"}, []string{"To"})
	leader := prometheus.NewGauge(prometheus.GaugeOpts{Name: "etcd_server_has_leader", Help: "h"})
	other := prometheus.NewGauge(prometheus.GaugeOpts{Name: "go_something", Help: "h"})
	ofClient := prometheus.NewGauge(prometheus.GaugeOpts{Name: "etcd_requests_total", Help: "h"})
	all.MustRegister(syncs, peers, leader, other, ofClient)
	served.MustRegister(metrics{all})
	if got := slowSyncs(all); got != 0 {
		t.Errorf("without a sync, syncs take %s", got)
	}
	for range 99 {
		syncs.Observe(0.0015)
	}
	syncs.Observe(1)
	peers.WithLabelValues("b").Add(5)
	peers.WithLabelValues("c").Add(6)
	leader.Set(1)
	families, err := served.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]*dto.MetricFamily{}
	for _, f := range families {
		got[f.GetName()] = f
	}
	if len(got) != 3 || got["etcd_server_has_leader"].GetMetric()[0].GetGauge().GetValue() != 1 {
		t.Errorf("served %v", got)
	}
	if sent := got["etcd_network_peer_sent_bytes_total"].GetMetric(); len(sent) != 2 || sent[1].GetLabel()[0].GetValue() != "c" || sent[1].GetCounter().GetValue() != 6 {
		t.Errorf("sent %v", sent)
	}
	if h := got["etcd_disk_wal_fsync_duration_seconds"].GetMetric()[0].GetHistogram(); h.GetSampleCount() != 100 {
		t.Errorf("syncs %v", h)
	}
	if got := slowSyncs(all); got != 2*time.Millisecond {
		t.Errorf("99 of 100 syncs take %s", got)
	}
	for range 10 {
		syncs.Observe(1)
	}
	if got := slowSyncs(all); got != 4*time.Millisecond { // the last bucket: or longer
		t.Errorf("with slow ones, syncs take %s", got)
	}
}

// TestOwnMetrics: a member hands its metrics on, and etcd still has those that are looked for.
func TestOwnMetrics(t *testing.T) {
	o, served := options(t.TempDir()), prometheus.NewRegistry()
	o.Metrics = served
	err := With(t.Context(), o, func(c *clientv3.Client) error {
		_, err := c.Put(t.Context(), "/a", "x")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	families, err := served.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, f := range families {
		all = append(all, f.GetName())
	}
	for _, want := range []string{"etcd_disk_wal_fsync_duration_seconds", "etcd_server_has_leader", "etcd_mvcc_db_total_size_in_bytes", "etcd_network_client_grpc_sent_bytes_total"} {
		if !strings.Contains("\n"+strings.Join(all, "\n")+"\n", "\n"+want+"\n") {
			t.Errorf("%s is missing in %q", want, all)
		}
	}
	if SlowSyncs() == 0 {
		t.Error("no sync was counted")
	}
}
