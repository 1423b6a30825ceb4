package preflight

import (
	"context"
	"time"
)

// settle is how long a port may take to become free, if a server is just ending.
const settle = 3 * time.Second

// CheckSettled is Check for a start: it checks again while only ports in use fail.
func CheckSettled(ctx context.Context, opts Options) []Result {
	for deadline := time.Now().Add(settle); ; {
		results := Check(ctx, opts)
		failed, busy := 0, 0
		for _, r := range results {
			if r.Status == Fail {
				failed++
				if r.IsPort() {
					busy++
				}
			}
		}
		if busy == 0 || failed > busy || time.Now().After(deadline) || ctx.Err() != nil {
			return results
		}
		time.Sleep(settle / 10)
	}
}
