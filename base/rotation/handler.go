package rotation

import (
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"kubelith.io/kubelith/base/sealed"
)

// maxRequest bounds a request, in bytes.
const maxRequest = 64 << 10

// Handler serves Path and KeyPath of the Kind, and passes on other requests. Requests have been authorized: the API
// server's authorizer decides who may do either.
func (s *Server[S, R]) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == s.kind.Path && r.Method == http.MethodGet:
			view, err := s.kind.View(r.Context())
			sealed.Answer(w, view, err)
		case r.URL.Path == s.kind.Path && r.Method == http.MethodPost:
			view, err := s.begin(r)
			sealed.Answer(w, view, err)
		case r.URL.Path == s.kind.KeyPath && r.Method == http.MethodPost:
			sealed.Give(w, r, s.opts.Servers(), s.kind.Find)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// begin starts a rotation; one that is under way goes on, as it is wanted now.
func (s *Server[S, R]) begin(r *http.Request) (view any, err error) {
	ctx := r.Context()
	body, err := io.ReadAll(io.LimitReader(r.Body, maxRequest))
	if err != nil {
		return nil, err
	}
	begin, err := s.kind.Begin(body)
	if err != nil {
		return nil, err
	}
	for {
		record, err := s.Read(ctx)
		if err != nil {
			return nil, err
		}
		next, err := begin(record)
		if err != nil {
			return nil, err
		}
		if next == record.State {
			break
		}
		err = s.advance(ctx, record, next)
		if err == nil {
			s.opts.Log.Info(next)
			s.wake.Send()
			break
		}
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) { // a report came in between, or another rotation
			return nil, err
		}
	}
	return s.kind.View(ctx)
}
