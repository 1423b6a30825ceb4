package node

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"
)

// renewEvery is how often certificates are looked at. They have at least 90 days left when they are renewed, so that many
// tries may fail; but those that were made while the clock was ahead are good for nothing once it is set, and are made anew.
const renewEvery = 10 * time.Minute

// renewCertificates keeps the certificates of a server valid that runs for longer than they do. Who serves with one, or shows
// one, reads the files again: the apiserver every minute (dynamiccertificates), its clients and the kubelet likewise.
func renewCertificates(ctx context.Context, every time.Duration, renew func() (changed []string, err error), log logrus.FieldLogger) {
	go func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			changed, err := renew()
			if err != nil {
				log.Errorf("certificates are not renewed, next try in %s: %v", every, err)
			}
			for _, name := range changed {
				log.Infof("renewed %s", name)
			}
		}
	}()
}
