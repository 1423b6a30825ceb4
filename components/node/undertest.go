package node

import (
	"os"
	"time"

	"kubelith.io/kubelith/components/controlplane/election"
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

// sharedEtcdVariable names the socket of the etcd on which a test runs several servers: that of the first one. Without
// it, as in any installation, each server has its own etcd. A user who may set the environment of this process, which
// is root's, can stop its etcd anyway.
const sharedEtcdVariable = "KUBELITH_TEST_ETCD"

// etcdOfTest is the socket of the etcd that servers under test share, which may be this server's own, and the timing of
// their election.
type etcdOfTest struct {
	socket string
	timing election.Timing
}

// sharedEtcd returns the zero value unless the process is under such a test.
func sharedEtcd() etcdOfTest {
	socket := os.Getenv(sharedEtcdVariable)
	if socket == "" {
		return etcdOfTest{}
	}
	return etcdOfTest{socket, election.Timing{Lease: 10 * time.Second, Renew: 7 * time.Second, Retry: 500 * time.Millisecond}}
}
