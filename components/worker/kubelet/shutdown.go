package kubelet

import (
	"os"
	"time"

	"k8s.io/kubernetes/pkg/kubelet/nodeshutdown/systemd"
)

// maxShutdownGrace is how long pods may take to end when the machine shuts down.
const maxShutdownGrace = 30 * time.Second

// ShutdownGrace is how long the machine lets the kubelet delay a shutdown, at most half a minute: logind's limit
// (InhibitDelayMaxSec, 5 s unless set). Without logind it is zero. Kubelith requests no more than is allowed: upstream
// would write a file into logind's configuration and never remove it.
func ShutdownGrace() time.Duration {
	if _, err := os.Stat("/run/systemd/system"); err != nil { // as sd_booted(3)
		return 0
	}
	bus, err := systemd.NewDBusCon()
	if err != nil {
		return 0
	}
	defer bus.Close()
	delay, err := bus.CurrentInhibitDelay()
	if err != nil {
		return 0
	}
	return min(delay, maxShutdownGrace).Truncate(time.Second)
}

// criticalShare of the grace period is for critical pods, which end last.
func criticalShare(grace time.Duration) time.Duration { return grace / 3 }
