package node

import (
	"os"
	"time"
)

// lifeVariable is how long a test lets the certificates of a server be valid, as a duration. Without it, as in any
// installation, it is a year: a user who may set the environment of this process, which is root's, can read its keys.
const lifeVariable = "KUBELITH_TEST_CERTIFICATE_LIFE"

// testedLife returns 0 unless the process is under such a test.
func testedLife() time.Duration {
	life, err := time.ParseDuration(os.Getenv(lifeVariable))
	if err != nil {
		return 0
	}
	return max(life, 0)
}
