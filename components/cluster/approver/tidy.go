package approver

import (
	"context"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	capihelper "k8s.io/kubernetes/pkg/apis/certificates"

	"kubelith.io/kubelith/base/names"
)

const (
	// tidyEvery is the time between two searches for objects to remove.
	tidyEvery = 15 * time.Second
	// deniedFor is how long the request of a denied machine stays, so that the machine can read the reason. Upstream's
	// cleaner would keep it for one to two hours.
	deniedFor = time.Minute
	// recordedFor is the minimum time for which the removal of a node is remembered: certificates lived that long, by
	// upstream's default, where an operator has since shortened their life.
	recordedFor = 365 * 24 * time.Hour
)

// tidy removes what is no longer needed, and corrects Nodes, until ctx ends. deleted signals that a Node is gone,
// incorrect that the labels or the addresses of one are wrong.
func (s *Server) tidy(ctx context.Context, deleted, incorrect <-chan struct{}) {
	tick := time.NewTicker(tidyEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-deleted:
			s.freeGone(ctx)
		case <-incorrect:
			s.label(ctx)
			s.address(ctx)
		case <-tick.C:
			s.label(ctx)
			s.address(ctx)
			s.freeGone(ctx)
			s.freeAbandoned(ctx)
			s.removeDenied(ctx)
			s.deleteOldRecords(ctx)
		}
	}
}

// deleteOldRecords deletes the records of nodes whose certificates have all expired since they were removed.
func (s *Server) deleteOldRecords(ctx context.Context) {
	limit := s.now().Add(-max(s.opts.CertificateLife, recordedFor) - time.Hour)
	for _, name := range s.removed.OlderThan(limit) {
		if err := s.client.CoreV1().Secrets(namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			s.opts.Log.Warnf("cannot delete record %s of a node that was removed long ago, retrying in %s: %v", name, tidyEvery, err)
		}
	}
}

// removeDenied removes the requests of denied machines, and of nodes that get no further certificate.
func (s *Server) removeDenied(ctx context.Context) {
	all, err := s.requests.List(labels.Everything())
	if err != nil {
		return // a lister fails only when its index is broken
	}
	for _, csr := range all {
		since, denied := deniedSince(csr)
		if !denied || s.now().Sub(since) < deniedFor || csr.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName || !s.joins(csr) && !isNode(csr) {
			continue
		}
		this := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(csr.UID))}
		err := s.client.CertificatesV1().CertificateSigningRequests().Delete(ctx, csr.Name, this)
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			s.opts.Log.Warnf("cannot delete the denied request %s, retrying in %s: %v", csr.Name, tidyEvery, err)
		}
	}
}

func deniedSince(csr *certificatesv1.CertificateSigningRequest) (time.Time, bool) {
	for _, c := range csr.Status.Conditions {
		if c.Type == certificatesv1.CertificateDenied {
			return c.LastUpdateTime.Time, true
		}
	}
	return time.Time{}, false
}

// requestedNames returns the names of the requests that exist and are not denied. Upstream's cleaner removes approved
// requests after one to two hours, and pending ones after a day.
func (s *Server) requestedNames() map[string]bool {
	requested := map[string]bool{}
	all, err := s.requests.List(labels.Everything())
	if err != nil {
		return requested
	}
	for _, csr := range all {
		if _, denied := deniedSince(csr); denied || csr.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
			continue
		}
		if request, err := capihelper.ParseCSR(csr.Spec.Request); err == nil {
			requested[strings.TrimPrefix(request.Subject.CommonName, names.NodeUserPrefix)] = true
		}
	}
	return requested
}
