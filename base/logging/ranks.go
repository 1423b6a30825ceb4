package logging

import (
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"kubelith.io/kubelith/base/names"
)

// said identifies an entry.
type said struct{ component, message, err string }

// rank gives a line of upstream the level that it deserves here. It matches the component, the beginning of the message
// and, where that is not enough, a part of the error, so that no fault gets a level that is too low.
type rank struct {
	component string // separated by spaces; empty: any, for info lines only
	message   string // prefix; one that begins with "*" follows something that varies
	err       string // part of the error, or of the message when that ends with the error; empty: any
	level     logrus.Level
	// passing means that the line is harmless only if it stops soon, as in a start: a line that repeats for longer than
	// passingFor keeps its level.
	passing bool
}

const passingFor = time.Minute

// upstreamRanks are the lines that a healthy start or stop logs at a wrong level.
var upstreamRanks = []rank{
	// etcd listens on a unix socket for one client, which uses neither its users nor its gateway.
	{component: "etcd", message: "Running http and grpc server on single port", level: logrus.DebugLevel},
	{component: "etcd", message: "simple token is not cryptographically signed", level: logrus.DebugLevel},
	// A new database has no version until the first entry is applied.
	{component: "etcd", message: "Failed to detect schema version", err: "missing term information", level: logrus.DebugLevel},
	{component: "etcd", message: "failed to update storage version", err: "missing term information", level: logrus.DebugLevel},
	// The first reads wait for the member to elect itself.
	{component: "etcd", message: "waiting for ReadIndex response took too long, retrying", level: logrus.DebugLevel, passing: true},
	// It campaigns before its first entry is applied, and again at its next tick. A member's id comes first.
	{component: "etcd", message: "*cannot campaign at term ", level: logrus.DebugLevel, passing: true},
	{component: "etcd", message: "ignored out-of-date read index response", level: logrus.DebugLevel, passing: true},
	// A server that joins, starts or stops ends the streams of the others. component=servers reports one that does not
	// answer.
	{component: "etcd", message: "lost TCP streaming connection with remote peer", level: logrus.InfoLevel, passing: true},
	{component: "etcd", message: "closed TCP streaming connection with remote peer", level: logrus.InfoLevel, passing: true},
	{component: "etcd", message: "peer became inactive", level: logrus.InfoLevel, passing: true},
	{component: "etcd", message: "failed to publish local member to cluster through raft",
		err: "possibly due to connection lost", level: logrus.InfoLevel, passing: true},
	// component=servers tries again until the newcomer has all data.
	{component: "etcd", message: "rejecting promote learner: learner is not ready", level: logrus.DebugLevel},
	// A lone member starts again in place when the second server joins.
	{component: "etcd", message: "stopping insecure grpc server due to error",
		err: "use of closed network connection", level: logrus.DebugLevel},
	{component: "etcd", message: "stopped insecure grpc server due to error",
		err: "use of closed network connection", level: logrus.DebugLevel},
	{component: "apiserver kubernetes", message: "[core] [Server #", err: "transport is closing", level: logrus.DebugLevel, passing: true},
	// The steps of slow requests. "apply request took too long" reports the requests.
	{component: "etcd apiserver", message: "trace", level: logrus.DebugLevel},
	{component: "etcd", message: "request stats", level: logrus.DebugLevel},

	// One of each for every controller.
	{message: "Waiting for caches to sync", level: logrus.DebugLevel},
	{message: "Caches are synced", level: logrus.DebugLevel},

	// What a handler still does after its client has gone or its time is over; "Timeout or abort while handling"
	// reports that.
	{component: "apiserver", message: "Post-timeout activity", level: logrus.DebugLevel},
	{component: "apiserver", message: "Unhandled Error", err: "FinishRequest: post-timeout activity", level: logrus.DebugLevel},
	{component: "apiserver", message: "Unhandled Error", err: "http: Handler timeout", level: logrus.DebugLevel},
	// Two servers wrote their addresses at once; the second one tries again.
	{component: "apiserver", message: "Unhandled Error",
		err: "unable to sync kubernetes service: Operation cannot be fulfilled", level: logrus.DebugLevel, passing: true},
	// It builds the storage of service accounts twice, and throws one away whose cache has begun to read.
	{component: "apiserver", message: "failed to sync with latest state: context canceled", level: logrus.DebugLevel},
	{component: "apiserver", message: "retrying of unary invoker failed",
		err: "the client connection is closing", level: logrus.DebugLevel, passing: true},
	// API versions that this release of Kubernetes no longer has.
	{component: "apiserver", message: "Skipping API ", level: logrus.DebugLevel},
	// Admission by files, which is not configured.
	{component: "apiserver", message: "The manifest file is empty, ignoring.", level: logrus.DebugLevel},
	// Each start sets the address of the Service kubernetes.
	{component: "apiserver", message: "Resetting endpoints for master service", level: logrus.InfoLevel},
	// Its metrics are the process's, and stay registered after a term or a run of the controllers.
	{component: "controller-manager", message: "unable to register metrics",
		err: "duplicate metrics collector registration attempted", level: logrus.DebugLevel},
	// At the first start nothing exists yet, and these try again.
	{component: "apiserver controller-manager", message: "Error while syncing ConfigMap",
		err: `namespaces "kube-system" not found`, level: logrus.DebugLevel, passing: true},
	{component: "apiserver controller-manager kubernetes", message: "Failed to ensure lease exists, will retry",
		err: `namespaces "kube-system" not found`, level: logrus.DebugLevel, passing: true},
	// The client gets an error for its wrong token; for a join token we log our own line.
	{component: "apiserver", message: "Unable to authenticate the request", level: logrus.InfoLevel},

	// We enable this one ourselves (docs/adr/041-events-of-containerd.md). With one of the operator's, the line stays a
	// warning.
	{component: "apiserver controller-manager scheduler kubelet kubernetes",
		message: "component has alpha features enabled in emulated version, this is unsupported: features=[EventedPLEG]",
		level:   logrus.DebugLevel},
	// A deleted pod's cgroup is gone when its last status is written.
	{component: "kubelet", message: "failed to read memory cgroup ", err: "no such file or directory", level: logrus.DebugLevel},

	// A container that ends at once is gone before cAdvisor watches or measures it. Without inotify watches it logs
	// "no space left on device", which stays a warning.
	{component: "kubelet", message: "Error while processing event (", err: ": no such file or directory", level: logrus.DebugLevel},
	{component: "kubelet", message: "Failed to watch directory ", err: ": no such file or directory", level: logrus.DebugLevel},
	{component: "kubelet", message: "Failed to process watch event {EventType:0 ",
		err: "code = NotFound desc = task ", level: logrus.DebugLevel},
	{component: "kubelet", message: "readString: Failed to read ", err: ": no such device", level: logrus.DebugLevel},
	{component: "kubelet", message: "Partial failure issuing cadvisor.ContainerInfoV2",
		err: "unable to find data in memory cache", level: logrus.DebugLevel},
	{component: "kubelet", message: "Failed to create existing container: ", err: "code = NotFound desc = task ", level: logrus.DebugLevel},
	{component: "containerd", message: "collecting metrics for ", err: "ttrpc: closed", level: logrus.DebugLevel},
	{component: "containerd", message: "collecting metrics for ", err: "cgroups: cgroup deleted", level: logrus.DebugLevel},

	// A busy kernel has overwritten a line of its log before the kubelet's watch for OOM kills read it.
	{component: "kubelet kubernetes", message: "short read from kmsg; skipping", level: logrus.InfoLevel},

	// Flexvolumes are deprecated and unused.
	{component: "kubelet controller-manager kubernetes", message: "Flexvolume plugin directory at ", level: logrus.DebugLevel},
	// component=check reports it: CAP_SYS_RESOURCE is missing.
	{component: "kubelet", message: "Failed to set rlimit on max file handles", err: "operation not permitted", level: logrus.InfoLevel},
	// gRPC logs each attempt to connect; the caller reports when none succeeds. containerd takes a while to listen on a
	// busy host.
	{component: "apiserver cni images kubelet kubernetes", message: "[core] [Channel #", level: logrus.DebugLevel, passing: true},
	// There is no checkpoint before the first one is written.
	{component: "kubelet", message: "Failed to read data from checkpoint", err: "checkpoint is not found", level: logrus.DebugLevel},
	// The kubelet is ahead of the runtime and of its Node, which it has not registered yet.
	{component: "kubelet", message: "Skipping pod synchronization",
		err: "container runtime status check may not have completed yet", level: logrus.DebugLevel, passing: true},
	{component: "kubelet", message: "Skipping pod synchronization",
		err: "pleg has yet to be successful", level: logrus.DebugLevel, passing: true},
	{component: "kubelet", message: "Error getting the current node from lister", err: "not found", level: logrus.DebugLevel, passing: true},
	{component: "kubelet", message: "Unable to register mirror pod because node is not registered yet",
		level: logrus.DebugLevel, passing: true},
	{component: "kubelet", message: "Failed to get node when trying to set owner ref to the node lease",
		err: "not found", level: logrus.DebugLevel, passing: true},
	{component: "kubelet", message: "Eviction manager: failed to get summary stats",
		err: "failed to get node info", level: logrus.DebugLevel, passing: true},
	{component: "kubelet", message: "Error getting summary for resourceMetric prometheus endpoint",
		err: "failed to get node info", level: logrus.DebugLevel, passing: true},
	{component: "kubelet", message: "Error updating node status, will retry", err: "not found", level: logrus.DebugLevel, passing: true},
	// containerd has no separate file system for images that cAdvisor could tell from the containers' one.
	{component: "kubelet", message: "eviction manager: failed to check if we have separate container filesystem",
		err: "no imagefs label for configured runtime", level: logrus.DebugLevel},
	// The server answers before it has read the RBAC rules.
	{component: "kubelet proxy dns network storage kubernetes", message: "Failed to watch",
		err: `is forbidden: User "` + names.NodeUserPrefix, level: logrus.InfoLevel, passing: true},

	// The node authorizer learns of a pod's node a moment after the kubelet.
	{component: "kubelet", message: "Failed to get status for pod",
		err: "no relationship found between node ", level: logrus.InfoLevel, passing: true},
	// A stop cancels what is under way.
	{component: "apiserver controller-manager scheduler kubelet proxy dns network storage kubernetes", message: "Failed to watch",
		err: ": context canceled", level: logrus.DebugLevel},
	{component: "kubelet", message: "failed to receive streaming container event", err: "context canceled", level: logrus.DebugLevel},
	{component: "kubelet", message: "ListPodSandbox with filter from runtime service failed",
		err: "context canceled", level: logrus.DebugLevel},
	{component: "kubelet", message: "GenericPLEG: Unable to retrieve pods", err: "context canceled", level: logrus.DebugLevel},

	{component: "kubelet kubernetes",
		message: `Failed to initialize CSINode: error updating CSINode annotation: timed out waiting for the condition; caused by: nodes "`,
		level:   logrus.DebugLevel, passing: true},

	// Two workers give a node its network at once, and the second one sees that it already has one.
	{component: "controller-manager", message: "Failed to update node PodCIDR after multiple attempts",
		err: "node updates may not change podCIDR except from", level: logrus.DebugLevel, passing: true},
	{component: "controller-manager", message: "CIDR assignment for node failed. Releasing allocated CIDR",
		err: "node updates may not change podCIDR except from", level: logrus.DebugLevel, passing: true},
	{component: "controller-manager", message: "Error processing node work item",
		err: "node updates may not change podCIDR except from", level: logrus.DebugLevel, passing: true},

	// There is no rule table before the first one is written.
	{component: "proxy", message: "Failed to list existing sets", err: "no such file or directory", level: logrus.DebugLevel, passing: true},
	// A stop during a start.
	{component: "proxy kubernetes", message: "Unable to sync caches", level: logrus.InfoLevel, passing: true},

	// Two of the provisioner's workers wrote at once; the second one tries again.
	{component: "storage storage-controllers", message: "Unhandled Error",
		err: "the object has been modified; please apply your changes to the latest version", level: logrus.DebugLevel, passing: true},
	{component: "storage storage-controllers", message: "Retrying capacity.QueueKey", level: logrus.DebugLevel, passing: true},
}

// ranks remembers since when it has seen the lines that should stop soon.
type ranks struct {
	mu   sync.Mutex
	seen map[int]span // by the index in upstreamRanks
}

type span struct{ first, last time.Time }

// level returns the level that a line deserves: its own, or a lower one.
func (r *ranks) level(s said, has logrus.Level, now time.Time) logrus.Level {
	for i, rank := range upstreamRanks {
		if rank.component == "" && has < logrus.InfoLevel {
			continue
		}
		if rank.level > has && rank.of(s) && (!rank.passing || r.over(i, now)) {
			return rank.level
		}
	}
	return has
}

func (r rank) of(s said) bool {
	said := strings.HasPrefix(s.message, r.message)
	if part, ok := strings.CutPrefix(r.message, "*"); ok {
		said = strings.Contains(s.message, part)
	}
	err := s.err
	if err == "" { // formatted by upstream: the message has it
		err = s.message
	}
	if !said || !strings.Contains(err, r.err) {
		return false
	}
	if r.component == "" {
		return true
	}
	for name := range strings.FieldsSeq(r.component) {
		if name == s.component {
			return true
		}
	}
	return false
}

// over reports whether a line of this rank still counts as one that stops soon.
func (r *ranks) over(rank int, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen = map[int]span{}
	}
	s := r.seen[rank]
	if now.Sub(s.last) > passingFor {
		s.first = now
	}
	s.last = now
	r.seen[rank] = s
	return now.Sub(s.first) <= passingFor
}
