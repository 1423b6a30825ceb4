package join

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"
)

// Why this machine refuses a server that would let it in, or that has heard of no token yet. They are paths of the API server
// that do not exist: components/apiserver logs what they mean.
const (
	otherCA     = "/kubelith/refused/ca"
	otherClock  = "/kubelith/refused/clock"
	olderServer = "/kubelith/refused/version"
)

// tellTimeout bounds what is said to a server that was refused.
const tellTimeout = 2 * time.Second

// refusal is an error that the server's log should have as well.
type refusal struct {
	error
	path string
}

// IsClock reports whether Find has failed because the clocks of this machine and the server differ.
func IsClock(err error) bool {
	var r refusal
	return errors.As(err, &r) && r.path == otherClock
}

// tell asks for the path of a refusal, without credentials and without trust: all that the server, or who stands between, learns is
// that this machine has turned away, and why. Whether it is heard does not matter here.
func tell(ctx context.Context, server string, err error) {
	var r refusal
	if !errors.As(err, &r) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(server, "/")+r.path, nil)
	if err != nil {
		return
	}
	if response, err := stranger().Do(request); err == nil {
		response.Body.Close()
	}
}
