package results

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

func TestAdmissionTable(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "r.jsonl"), "b")
	if err != nil {
		t.Fatal(err)
	}
	for way, call := range map[string]float64{AsPlugin: 120, AsWebhook: 400} {
		if err := s.Add("admission", 1, way, Sample{Figure: Call1P50, Value: call}, Sample{Figure: IdlePlugin, Value: 9}); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	AdmissionTable(&b, s)
	for _, want := range []string{
		"| call, median (µs) | 120 | 400 | 0.30 | below 150 µs: yes; ratio 0.2: no |",
		"| anonymous memory of the idle process (MB) | 9.00 | 9.00 | 1.00 | below 15: yes |",
		"Medians of 1 rounds.",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("missing %q in\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "p99") {
		t.Errorf("a metric that was not measured is in\n%s", b.String())
	}
}
