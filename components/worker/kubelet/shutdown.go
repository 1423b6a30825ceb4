package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/nodeshutdown/systemd"

	"kubelith.io/kubelith/base/reconcile"
)

// maxShutdownGrace is how long pods may take to end when the machine shuts down.
const maxShutdownGrace = 30 * time.Second

// ShutdownGrace is how long the machine lets the kubelet delay a shutdown, at most half a minute: logind's limit
// (InhibitDelayMaxSec, 5 s unless set). Without logind it is zero. Kubelith requests no more than is allowed: upstream
// would write a file into logind's configuration and never remove it.
func ShutdownGrace() time.Duration {
	if !booted() {
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

// booted reports whether systemd manages the machine, as sd_booted(3).
func booted() bool {
	_, err := os.Stat("/run/systemd/system")
	return err == nil
}

const (
	logindRetry  = time.Second            // between two attempts to reach logind, as upstream's
	statusPoll   = 200 * time.Millisecond // between two checks of the pods while the machine waits
	statusAnswer = 10 * time.Second       // for one check: an agent's server may be down already
)

// logind is upstream's connection to systemd-logind, or a test's.
type logind interface {
	InhibitShutdown() (systemd.InhibitLock, error)
	ReleaseInhibitLock(systemd.InhibitLock) error
	MonitorShutdown(klog.Logger) (<-chan bool, error)
	Close() error
}

// endsPods reports whether the kubelet terminates pods in order when the machine shuts down.
func (s *Server) endsPods() bool {
	return booted() && (s.upstream.ShutdownGracePeriod.Duration > 0 || len(s.upstream.ShutdownGracePeriodByPodPriority) > 0)
}

// holdShutdowns holds a delay lock of logind's until ctx ends, beside upstream's own. Upstream releases its lock when
// the time of the last pods is over, which is the moment when a pod that ignores SIGTERM is killed: its status is not
// written yet, and the API server or this process may be gone before it is. logind waits for both, up to
// InhibitDelayMaxSec.
// Source: pkg/kubelet/nodeshutdown, killPods and processShutdownEvent.
func (s *Server) holdShutdowns(ctx context.Context, cs kubernetes.Interface, connect func() (logind, error)) {
	var said string
	for ctx.Err() == nil {
		bus, err := connect()
		if err == nil {
			err = s.holdShutdown(ctx, cs, bus)
			_ = bus.Close()
		}
		if err != nil && err.Error() != said {
			said = err.Error()
			s.opts.Log.Warnf("cannot delay the machine's shutdown until the statuses of pods are written, retrying: %v", err)
		}
		reconcile.Sleep(ctx, logindRetry)
	}
}

// holdShutdown returns nil when ctx ends, and an error when logind refuses the lock or the connection ends.
func (s *Server) holdShutdown(ctx context.Context, cs kubernetes.Interface, bus logind) error {
	shutdowns, err := bus.MonitorShutdown(klog.Background())
	if err != nil {
		return err
	}
	lock, err := bus.InhibitShutdown()
	if err != nil {
		return err
	}
	held := true
	release := func() {
		if held {
			_ = bus.ReleaseInhibitLock(lock)
		}
		held = false
	}
	defer release()

	var written <-chan error // of the shutdown in progress
	var stop context.CancelFunc = func() {}
	defer func() { stop() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-written:
			if err != nil {
				s.opts.Log.Warnf("the machine shuts down before the statuses of its pods are written: %v", err)
			}
			release()
		case down, ok := <-shutdowns:
			if !ok {
				return errors.New("the connection to D-Bus ended")
			}
			stop()
			written = nil
			if down {
				written, stop = s.startAwaiting(ctx, cs)
			} else if !held { // cancelled: the next one is delayed as well
				if lock, err = bus.InhibitShutdown(); err != nil {
					return err
				}
				held = true
			}
		}
	}
}

// startAwaiting runs awaitTerminated until the returned function is called, which waits for its end.
func (s *Server) startAwaiting(ctx context.Context, cs kubernetes.Interface) (<-chan error, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	result, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		result <- s.awaitTerminated(ctx, cs)
	}()
	return result, func() { cancel(); <-ended }
}

// awaitTerminated returns when each pod that the node has now is in a terminal phase or gone, in the API. The kubelet
// writes that phase once the containers have ended. Replacements, which a DaemonSet's controller makes at once, are not
// waited for. It fails when the API does not answer at first: no status can be written then.
func (s *Server) awaitTerminated(ctx context.Context, cs kubernetes.Interface) error {
	active, err := s.activePods(ctx, cs)
	if err != nil {
		return fmt.Errorf("cannot list them: %w", err)
	}
	for left := active; len(left) > 0; {
		if !reconcile.Sleep(ctx, statusPoll) {
			return nil
		}
		if now, err := s.activePods(ctx, cs); err == nil {
			left = slices.DeleteFunc(now, func(uid types.UID) bool { return !slices.Contains(active, uid) })
		}
	}
	return nil
}

// activePods returns the node's pods that are in no terminal phase.
func (s *Server) activePods(ctx context.Context, cs kubernetes.Interface) ([]types.UID, error) {
	ctx, cancel := context.WithTimeout(ctx, statusAnswer)
	defer cancel()
	list, err := cs.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", s.opts.NodeName).String()})
	if err != nil {
		return nil, err
	}
	var active []types.UID
	for _, pod := range list.Items {
		if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			active = append(active, pod.UID)
		}
	}
	return active, nil
}
