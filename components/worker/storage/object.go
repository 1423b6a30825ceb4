package storage

import (
	"context"
	"fmt"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/plugins/storage"
)

// driverPatience is how long a node looks for a CSIDriver before it reports it missing.
const driverPatience = 30 * time.Second

// looks returns the times between two requests: the leading server creates the object when it starts, within a moment
// or much later.
func looks() wait.DelayFunc {
	return wait.Backoff{Duration: 25 * time.Millisecond, Factor: 2, Cap: time.Second, Steps: 10}.DelayFunc()
}

// awaitDriver waits until the CSIDriver exists, for as long as the leading server may take to create it when it starts.
func (h *host) awaitDriver(ctx context.Context, d storage.Declaration, now storage.Facts) error {
	var have *storagev1.CSIDriver
	patience, cancel := context.WithTimeout(ctx, driverPatience)
	defer cancel()
	err := looks().Until(patience, true, true, func(ctx context.Context) (_ bool, err error) {
		have, err = h.clients.Client.StorageV1().CSIDrivers().Get(ctx, d.Name(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
	key := now.NodeKey(d, h.NodeName)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case wait.Interrupted(err) && h.Agent:
		return fmt.Errorf("CSIDriver %s does not exist, and agents do not create it: configure the plugin on the server too, or create the CSIDriver", d.Name())
	case wait.Interrupted(err):
		return fmt.Errorf("CSIDriver %s does not exist yet: the leading server creates it for its own plugin", d.Name())
	case err != nil:
		return fmt.Errorf("read CSIDriver %s: %w", d.Name(), err)
	case !h.Agent && !storage.IsOurs(have):
		return &storage.ForeignError{Driver: d.Name()}
	case !h.Agent || !d.NodeLocal:
		return nil
	case key == "":
		return fmt.Errorf("it declares node_local: on an agent the value of a segment of accessible_topology in NodeGetInfo must be the node's name, %s", h.NodeName)
	case have.Annotations[names.NodeLocalAnnotation] != key:
		return fmt.Errorf("CSIDriver %s does not let agents create its volumes: run kubectl annotate csidriver %s %s=%s",
			d.Name(), d.Name(), names.NodeLocalAnnotation, key)
	}
	return nil
}
