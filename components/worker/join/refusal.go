package join

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"
)

// Reasons why this machine refuses a server that would admit it, or that has not seen a token yet. They are paths of
// the API server that do not exist: components/controlplane/apiserver logs their meaning.
const (
	otherCA     = "/kubelith/refused/ca"
	otherClock  = "/kubelith/refused/clock"
	olderServer = "/kubelith/refused/version"
)

// reportTimeout bounds the request to a refused server.
const reportTimeout = 2 * time.Second

// refusal is an error that the server should log as well.
type refusal struct {
	error
	path string
}

// IsClock reports whether Find has failed because the clocks of this machine and the server differ.
func IsClock(err error) bool {
	var r refusal
	return errors.As(err, &r) && r.path == otherClock
}

// reportRefusal requests the path of a refusal, without credentials and without verification: the server, or a machine
// in between, learns only that this machine has turned away, and why. The result of the request is ignored.
func reportRefusal(ctx context.Context, server string, err error) {
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
