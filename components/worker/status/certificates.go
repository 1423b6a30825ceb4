package status

import (
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/base/pki"
)

const (
	// CertificateExpires is the reason of an Event: a certificate of this machine ends soon, and has not been renewed.
	CertificateExpires = "CertificateExpires"
	// certificatesEvery is how often certificates are checked, and remindEvery how often the same one is reported.
	certificatesEvery, remindEvery = 10 * time.Minute, 24 * time.Hour
)

// expiry reports certificates that end soon.
type expiry struct {
	checked  time.Time
	reported map[string]time.Time // by file and subject
}

// check returns what to report of these certificates.
func (e *expiry) check(now time.Time, all []pki.Certificate) (texts []string) {
	if e.reported == nil {
		e.reported = map[string]time.Time{}
	}
	for _, c := range all {
		id := c.File + " " + c.Subject
		if now.Before(c.Due()) {
			delete(e.reported, id)
			continue
		}
		if last, ok := e.reported[id]; ok && now.Sub(last) < remindEvery {
			continue
		}
		e.reported[id] = now
		texts = append(texts, expiring(c, now))
	}
	return texts
}

// expiring reports when a certificate expires, and what to do.
func expiring(c pki.Certificate, now time.Time) string {
	expires := fmt.Sprintf("expires at %s", c.NotAfter.UTC().Format(time.RFC3339))
	if !now.Before(c.NotAfter) {
		expires = fmt.Sprintf("expired at %s", c.NotAfter.UTC().Format(time.RFC3339))
	}
	remedy := "it was not renewed: see the log for the reason, and kubelith certificate list"
	if c.CA {
		remedy = "CAs are not renewed: docs/certificates.md says what to do"
	}
	return fmt.Sprintf("certificate %s (%s) %s: %s", c.Name, c.File, expires, remedy)
}

// checkCertificates logs and reports those that expire soon.
func (s *Server) checkCertificates(now time.Time) {
	if s.opts.Certificates == nil || now.Sub(s.expiry.checked) < certificatesEvery {
		return
	}
	s.expiry.checked = now
	all, err := s.opts.Certificates()
	problem := ""
	if err != nil {
		problem = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	if s.unread.News("", problem) {
		s.opts.Log.Warnf("cannot read all certificates: %s", problem)
	}
	for _, text := range s.expiry.check(now, all) {
		s.opts.Log.Warn(text)
		s.opts.Observer.tell(news{corev1.EventTypeWarning, CertificateExpires, text})
	}
}

// CertificateMetrics exports when the certificates of this machine expire. They are read for each scrape.
type CertificateMetrics func() ([]pki.Certificate, error)

var _ prometheus.Collector = CertificateMetrics(nil)

func (CertificateMetrics) desc() *prometheus.Desc {
	return prometheus.NewDesc("kubelith_certificate_expiration_timestamp_seconds",
		"When the certificate of this machine expires, in seconds since 1970.", []string{"certificate", "subject", "ca"}, nil)
}

// Describe implements prometheus.Collector.
func (m CertificateMetrics) Describe(out chan<- *prometheus.Desc) { out <- m.desc() }

// Collect implements prometheus.Collector.
func (m CertificateMetrics) Collect(out chan<- prometheus.Metric) {
	all, _ := m() // checkCertificates reports the error
	type labels struct{ name, subject, ca string }
	ends := map[labels]time.Time{} // two processes of one plugin have the same labels while one replaces the other
	for _, c := range all {
		l := labels{c.Name, c.Subject, fmt.Sprint(c.CA)}
		if before, ok := ends[l]; !ok || c.NotAfter.Before(before) {
			ends[l] = c.NotAfter
		}
	}
	for l, end := range ends {
		out <- prometheus.MustNewConstMetric(m.desc(), prometheus.GaugeValue, float64(end.Unix()), l.name, l.subject, l.ca)
	}
}
