package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"k8s.io/client-go/rest"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"kubelith.io/kubelith/plugins/sdk"
	"kubelith.io/kubelith/plugins/sdk/cluster"
)

// memory has the last measured memory usage of the nodes.
type memory struct {
	log    hclog.Logger
	server string
	client *http.Client

	mu    sync.Mutex
	nodes map[string]*usage
}

// usage of a node, in bytes.
type usage struct {
	used      int64
	requested int64 // by its pods when it was measured
	baseline  bool  // requested is known
}

// configure starts measuring.
func (m *memory) configure(c sdk.Config) error {
	settings := struct {
		Refresh string `json:"refresh"`
	}{"15s"}
	if err := c.Decode(&settings); err != nil {
		return err
	}
	refresh, err := time.ParseDuration(settings.Refresh)
	if err != nil || refresh < time.Second {
		return fmt.Errorf("refresh: %q is not a duration of at least 1s", settings.Refresh)
	}
	if err := m.connect(); err != nil {
		return err
	}
	m.log = c.Log
	go func() {
		for {
			if err := m.measure(context.Background()); err != nil {
				m.log.Warn("cannot update node metrics, using the last ones", "error", err.Error())
			}
			time.Sleep(refresh)
		}
	}()
	return nil
}

// connect reads the kubeconfig.
func (m *memory) connect() error {
	config, err := cluster.Config()
	if err != nil {
		return err
	}
	m.server = config.Host
	m.client, err = rest.HTTPClientFor(config)
	return err
}

// measure reads the usage of all nodes.
func (m *memory) measure(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, m.server+"/apis/metrics.k8s.io/v1beta1/nodes", nil)
	if err != nil {
		return err
	}
	response, err := m.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(response.Body, 500))
		return fmt.Errorf("%s: %s", response.Status, body)
	}
	var list metricsv1beta1.NodeMetricsList
	if err := json.NewDecoder(response.Body).Decode(&list); err != nil {
		return err
	}
	nodes := make(map[string]*usage, len(list.Items))
	for _, item := range list.Items {
		nodes[item.Name] = &usage{used: item.Usage.Memory().Value()}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nodes = nodes
	return nil
}

// metrics writes the usage that scheduling uses now.
func (m *memory) metrics(w io.Writer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	text := "# HELP freememory_used_bytes Memory in use when it was last measured.\n# TYPE freememory_used_bytes gauge\n"
	for name, u := range m.nodes {
		text += fmt.Sprintf("freememory_used_bytes{node=%q} %d\n", name, u.used)
	}
	_, err := io.WriteString(w, text)
	return err
}

// free returns the free memory of a node, in bytes. Pods that arrived since the measurement count with their requests,
// and those that left are subtracted; otherwise all pods of one refresh interval would see the same free memory.
func (m *memory) free(ctx context.Context, node *sdk.Node) (free int64, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.nodes[node.GetName()]
	if u == nil {
		return 0, false
	}
	requested := node.GetRequested().GetMemory()
	if !u.baseline && !sdk.WhatIf(ctx) {
		u.requested, u.baseline = requested, true
	}
	free = node.GetAllocatable().GetMemory() - u.used
	if u.baseline {
		free -= requested - u.requested
	}
	return free, true
}

// filter rejects a node with less free memory than the pod requests. It passes nodes without a measurement.
func (m *memory) filter(ctx context.Context, pod *sdk.Pod, node *sdk.Node) string {
	if free, known := m.free(ctx, node); known && free < pod.GetRequests().GetMemory() {
		return "Insufficient free memory"
	}
	return ""
}

// score returns the percentage of the node's memory that is in use with the pod on it; 0 without a measurement.
func (m *memory) score(ctx context.Context, pod *sdk.Pod, node *sdk.Node) int {
	free, known := m.free(ctx, node)
	total := node.GetAllocatable().GetMemory()
	if !known || total <= 0 {
		return 0
	}
	left := max(0, min(total, free-pod.GetRequests().GetMemory()))
	return int(100 - 100*left/total)
}
