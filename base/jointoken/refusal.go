package jointoken

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"kubelith.io/kubelith/base/names"
)

// reportTimeout bounds the request to a refused server.
const reportTimeout = 2 * time.Second

// refusal is the error of a machine that refuses a server. path says why, as in NewRefusal.
type refusal struct {
	error
	path string
}

// NewRefusal returns err for a machine that refuses a server which would admit it, or which has not seen a token yet.
// The server should log it as well: path is one of the API server that does not exist (names.RefusedCA and the others).
func NewRefusal(err error, path string) error { return refusal{err, path} }

// IsClock reports whether err refuses a server because its clock differs from this machine's.
func IsClock(err error) bool {
	var r refusal
	return errors.As(err, &r) && r.path == names.RefusedClock
}

// ReportRefusal requests the path of err, if it is of NewRefusal, without credentials and without verification: the
// server, or a machine in between, learns only that this machine has turned away, and why. The result of the request is
// ignored.
func ReportRefusal(ctx context.Context, server string, err error) {
	var r refusal
	if !errors.As(err, &r) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(server, "/")+r.path, nil)
	if err != nil {
		return
	}
	if response, err := anonymousClient().Do(request); err == nil {
		response.Body.Close()
	}
}
