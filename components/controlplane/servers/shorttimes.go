package servers

import (
	"os"
	"time"
)

// awayVariable is how long a test lets a server be away before it is forgotten or another takes its place, as a
// duration. Without it, as in any installation, it takes longer: a user who may set the environment of this process,
// which is root's, can remove servers anyway.
const awayVariable = "KUBELITH_TEST_AWAY"

// tested returns the usual time unless the process is under such a test.
func tested(usual time.Duration) time.Duration {
	if short, err := time.ParseDuration(os.Getenv(awayVariable)); err == nil && short > 0 {
		return short
	}
	return usual
}
