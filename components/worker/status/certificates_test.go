package status

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"kubelith.io/kubelith/base/pki"
)

var day0 = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func leaf(name string, days int) pki.Certificate {
	return pki.Certificate{Name: name, Subject: name, File: "/d/" + name + ".crt", NotBefore: day0, NotAfter: day0.AddDate(0, 0, days)}
}

// TestExpiry: what ends soon is reported when that is found, and once a day after that, until it is renewed.
func TestExpiry(t *testing.T) {
	log, hook := logtest.NewNullLogger()
	ca := leaf("cluster-ca", 3650)
	ca.CA = true
	all, unreadable := []pki.Certificate{leaf("apiserver", 365), leaf("admin", 365), ca}, error(nil)
	o := NewObserver()
	s := New(Options{Observer: o, Log: log, Certificates: func() ([]pki.Certificate, error) { return all, unreadable }})
	for i, step := range []struct {
		day    float64
		change func()
		want   []string // what is reported
	}{
		{day: 1},
		{day: 330},
		{day: 340, want: []string{"certificate apiserver (/d/apiserver.crt) expires at 2031-01-01T00:00:00Z: it was not renewed", "certificate admin"}},
		{day: 340.5},
		{day: 341.5, change: func() { all[0] = leaf("apiserver", 3650) }, want: []string{"certificate admin"}},
		{day: 366, want: []string{"certificate admin (/d/admin.crt) expired at 2031-01-01T00:00:00Z"}},
		{day: 3300, change: func() { all = all[2:] }, want: []string{"certificate cluster-ca (/d/cluster-ca.crt) expires at 2039-12-30T00:00:00Z: CAs are not renewed"}},
		{day: 3300.1, change: func() { all, unreadable = nil, errors.New("a is damaged\nb is damaged") }},
	} {
		if step.change != nil {
			step.change()
		}
		s.checkCertificates(day0.Add(time.Duration(step.day * float64(24*time.Hour))))
		news := o.take()
		for j := range max(len(news), len(step.want)) {
			if len(news) != len(step.want) || !strings.HasPrefix(news[j].text, step.want[j]) || news[j].kind != "Warning" || news[j].reason != CertificateExpires {
				t.Errorf("step %d: %v, want %q", i, news, step.want)
				break
			}
		}
	}
	if last := hook.LastEntry(); last == nil || last.Message != "cannot read all certificates: a is damaged; b is damaged" {
		t.Errorf("logged %v", last)
	}
}

// TestCertificateMetrics: of two certificates with the same labels, the one that ends first counts.
func TestCertificateMetrics(t *testing.T) {
	ca := leaf("cluster-ca", 10)
	ca.CA = true
	m := CertificateMetrics(func() ([]pki.Certificate, error) {
		return []pki.Certificate{leaf("plugin-a", 2), leaf("plugin-a", 1), ca}, errors.New("another one is damaged")
	})
	want := `
# HELP kubelith_certificate_expiration_timestamp_seconds When the certificate of this machine expires, in seconds since 1970.
# TYPE kubelith_certificate_expiration_timestamp_seconds gauge
kubelith_certificate_expiration_timestamp_seconds{ca="false",certificate="plugin-a",subject="plugin-a"} 1.8935424e+09
kubelith_certificate_expiration_timestamp_seconds{ca="true",certificate="cluster-ca",subject="cluster-ca"} 1.89432e+09
`
	if err := testutil.CollectAndCompare(m, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
