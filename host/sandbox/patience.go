package sandbox

import (
	"os"
	"strconv"
	"time"
)

// Patience returns how long to wait for what takes at most timeout on a real processor: KUBELITH_TEST_PATIENCE times as
// long, for a busy or an emulated machine.
func Patience(timeout time.Duration) time.Duration {
	if times, err := strconv.Atoi(os.Getenv("KUBELITH_TEST_PATIENCE")); err == nil && times > 1 {
		return timeout * time.Duration(times)
	}
	return timeout
}
