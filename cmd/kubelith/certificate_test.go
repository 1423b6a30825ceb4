package kubelith

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/base/pki"
)

// TestPrintCertificates: an expired certificate is named so, and JSON has what the table leaves out.
func TestPrintCertificates(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	all := []pki.Certificate{
		{Name: "admin", Subject: "kubelith-admin", Groups: []string{"kubelith:admins"}, Issuer: "ca", NotAfter: now.Add(90 * 24 * time.Hour), Use: "a use"},
		{Name: "apiserver", Subject: "kube-apiserver", Names: []string{"node1"}, Issuer: "ca", NotAfter: now.Add(-time.Minute), Use: "another"},
	}
	var out bytes.Buffer
	if err := printCertificates(&out, all, false, now); err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	for line := range strings.Lines(out.String()) {
		rows = append(rows, strings.Fields(line))
	}
	if len(rows) != 3 || rows[1][1] != "kubelith-admin,kubelith:admins" || rows[1][4] != "90d" || rows[2][4] != "expired" {
		t.Errorf("%s", out.String())
	}
	out.Reset()
	if err := printCertificates(&out, all, true, now); err != nil {
		t.Fatal(err)
	}
	var list []map[string]any
	if err := json.Unmarshal(out.Bytes(), &list); err != nil || len(list) != 2 || list[1]["secondsLeft"] != -60.0 || list[1]["name"] != "apiserver" || list[1]["names"] == nil {
		t.Errorf("%s: %v", out.String(), err)
	}
}
