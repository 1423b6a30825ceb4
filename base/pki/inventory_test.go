package pki

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestInventory: every certificate of a server is listed, with who has it and until when; a damaged one hides no other.
func TestInventory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	if all, err := Inventory(dir); err != nil || all != nil {
		t.Errorf("without a directory: %v, %v", all, err)
	}
	ensure(t, options(dir, day0))
	files, err := filepath.Glob(filepath.Join(dir, "*.crt"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := Inventory(dir)
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]Certificate{}
	for _, c := range all {
		byName[c.Name] = c
		want := day0.Add(leafLife)
		if c.CA {
			want = day0.Add(caLife)
		}
		if !c.NotAfter.Equal(want) || c.Use == "" || c.Issuer == "" {
			t.Errorf("%+v", c)
		}
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".crt")
		if _, ok := byName[name]; !ok && !strings.HasSuffix(name, "-trust") { // the same CAs
			t.Errorf("%s is not listed", name)
		}
	}
	if c := byName["apiserver"]; c.CA || c.Subject != "kube-apiserver" || c.Issuer != "kubelith-cluster-ca" || !slices.Contains(c.Names, "192.0.2.99") {
		t.Errorf("apiserver: %+v", c)
	}
	if c := byName["admin"]; c.Subject != "kubelith-admin" || len(c.Groups) != 1 {
		t.Errorf("admin: %+v", c)
	}
	if c := byName["peer-ca"]; !c.CA || c.Issuer != c.Subject {
		t.Errorf("peer-ca: %+v", c)
	}

	if err := os.WriteFile(filepath.Join(dir, "admin.crt"), []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	rest, err := Inventory(dir)
	if err == nil || !strings.Contains(err.Error(), "admin.crt is damaged") || len(rest) != len(all)-1 {
		t.Errorf("with a damaged one: %d of %d, %v", len(rest), len(all), err)
	}
}

// TestDue: a leaf is due after its renewal should have happened, a CA long before its end.
func TestDue(t *testing.T) {
	leaf := Certificate{NotBefore: day0, NotAfter: day0.Add(leafLife)}
	if left := leaf.NotAfter.Sub(leaf.Due()); left >= renewBefore || left < 7*24*time.Hour {
		t.Errorf("a leaf is due with %s left", left)
	}
	ca := Certificate{CA: true, NotBefore: day0, NotAfter: day0.Add(caLife)}
	if left := ca.NotAfter.Sub(ca.Due()); left != 365*24*time.Hour {
		t.Errorf("a CA is due with %s left", left)
	}
}
