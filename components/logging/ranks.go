package logging

import (
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// said is what an entry is told by.
type said struct{ component, message, err string }

// rank gives a line of upstream the level that it deserves here. It is told by its component, the beginning of its message
// and, where that is not enough, what stands in its error, so that no fault gets a level that is too low.
type rank struct {
	component string // several are separated by spaces; empty: any, for information alone
	message   string // prefix; one that begins with "*" stands after something that differs
	err       string // part of the error; empty: any
	level     logrus.Level
	// passing says that the line is of no interest only if it is over soon, as in a start: who says the same for longer than
	// passingFor is believed.
	passing bool
}

const passingFor = time.Minute

// upstreamRanks are the lines that a healthy start or stop has at a level that they do not deserve.
var upstreamRanks = []rank{
	// etcd listens on a unix socket for one client, which uses neither its users nor its gateway.
	{component: "etcd", message: "Running http and grpc server on single port", level: logrus.DebugLevel},
	{component: "etcd", message: "simple token is not cryptographically signed", level: logrus.DebugLevel},
	// A database that was made a moment ago has no version until the first entry is applied.
	{component: "etcd", message: "Failed to detect schema version", err: "missing term information", level: logrus.DebugLevel},
	{component: "etcd", message: "failed to update storage version", err: "missing term information", level: logrus.DebugLevel},
	// The first reads wait for the member to elect itself.
	{component: "etcd", message: "waiting for ReadIndex response took too long, retrying", level: logrus.DebugLevel, passing: true},
	// It elects itself before its first entry is applied, which it does again at its next tick. A member's id comes first.
	{component: "etcd", message: "*cannot campaign at term ", level: logrus.DebugLevel, passing: true},
	{component: "etcd", message: "ignored out-of-date read index response", level: logrus.DebugLevel, passing: true},
	// The steps of requests that took long. That they did is told by "apply request took too long".
	{component: "etcd apiserver", message: "trace", level: logrus.DebugLevel},
	{component: "etcd", message: "request stats", level: logrus.DebugLevel},

	// One of each for every controller.
	{message: "Waiting for caches to sync", level: logrus.DebugLevel},
	{message: "Caches are synced", level: logrus.DebugLevel},

	// What a handler still does whose client has gone or whose time is over, which "Timeout or abort while handling" tells.
	{component: "apiserver", message: "Post-timeout activity", level: logrus.DebugLevel},
	{component: "apiserver", message: "Unhandled Error", err: "FinishRequest: post-timeout activity", level: logrus.DebugLevel},
	{component: "apiserver", message: "Unhandled Error", err: "http: Handler timeout", level: logrus.DebugLevel},
	// API versions that this release of Kubernetes no longer has.
	{component: "apiserver", message: "Skipping API ", level: logrus.DebugLevel},
	// Admission by files, which is not configured.
	{component: "apiserver", message: "The manifest file is empty, ignoring.", level: logrus.DebugLevel},
	// The address of the Service kubernetes is put in at each start.
	{component: "apiserver", message: "Resetting endpoints for master service", level: logrus.InfoLevel},
	// At the first start nothing is there yet, and these try again.
	{component: "apiserver controller-manager", message: "Error while syncing ConfigMap", err: `namespaces "kube-system" not found`, level: logrus.DebugLevel, passing: true},
	{component: "apiserver controller-manager kubernetes", message: "Failed to ensure lease exists, will retry", err: `namespaces "kube-system" not found`, level: logrus.DebugLevel, passing: true},
	// Whose token is wrong is told so; a token to join with has a line of ours.
	{component: "apiserver", message: "Unable to authenticate the request", level: logrus.InfoLevel},

	// Flexvolumes are deprecated, and nobody has any.
	{component: "kubelet controller-manager kubernetes", message: "Flexvolume plugin directory at ", level: logrus.DebugLevel},
	// Told by component=check: CAP_SYS_RESOURCE is missing.
	{component: "kubelet", message: "Failed to set rlimit on max file handles", err: "operation not permitted", level: logrus.InfoLevel},
	// gRPC tells of each attempt to connect; who dials says it when none succeeds. containerd takes a while to listen on a busy host.
	{component: "apiserver cni images kubelet kubernetes", message: "[core] [Channel #", level: logrus.DebugLevel, passing: true},
	// There is no checkpoint before the first one is written.
	{component: "kubelet", message: "Failed to read data from checkpoint", err: "checkpoint is not found", level: logrus.DebugLevel},
	// The kubelet is ahead of the runtime and of its Node, which it has not registered yet.
	{component: "kubelet", message: "Skipping pod synchronization", err: "container runtime status check may not have completed yet", level: logrus.DebugLevel, passing: true},
	{component: "kubelet", message: "Skipping pod synchronization", err: "pleg has yet to be successful", level: logrus.DebugLevel, passing: true},
	{component: "kubelet", message: "Error getting the current node from lister", err: "not found", level: logrus.DebugLevel, passing: true},
	{component: "kubelet", message: "Unable to register mirror pod because node is not registered yet", level: logrus.DebugLevel, passing: true},
	{component: "kubelet", message: "Failed to get node when trying to set owner ref to the node lease", err: "not found", level: logrus.DebugLevel, passing: true},
	{component: "kubelet", message: "Eviction manager: failed to get summary stats", err: "failed to get node info", level: logrus.DebugLevel, passing: true},
	{component: "kubelet", message: "Error updating node status, will retry", err: "not found", level: logrus.DebugLevel, passing: true},
	// containerd has no file system for images that cAdvisor could tell from that of the containers.
	{component: "kubelet", message: "eviction manager: failed to check if we have separate container filesystem", err: "no imagefs label for configured runtime", level: logrus.DebugLevel},
	// The server answers before it has read who may do what.
	{component: "kubelet proxy dns network storage kubernetes", message: "Failed to watch", err: "is forbidden: User \"system:node:", level: logrus.InfoLevel, passing: true},

	{component: "kubelet kubernetes", message: `Failed to initialize CSINode: error updating CSINode annotation: timed out waiting for the condition; caused by: nodes "`, level: logrus.DebugLevel, passing: true},

	// Two workers give a node its network at once, and the second one hears that it has one.
	{component: "controller-manager", message: "Failed to update node PodCIDR after multiple attempts", err: "node updates may not change podCIDR except from", level: logrus.DebugLevel, passing: true},
	{component: "controller-manager", message: "CIDR assignment for node failed. Releasing allocated CIDR", err: "node updates may not change podCIDR except from", level: logrus.DebugLevel, passing: true},
	{component: "controller-manager", message: "Error processing node work item", err: "node updates may not change podCIDR except from", level: logrus.DebugLevel, passing: true},

	// There is no table of rules before the first one is written.
	{component: "proxy", message: "Failed to list existing sets", err: "no such file or directory", level: logrus.DebugLevel, passing: true},
	// A stop while a start goes on.
	{component: "proxy kubernetes", message: "Unable to sync caches", level: logrus.InfoLevel, passing: true},

	// Two of the provisioner's workers wrote at once; the second one tries again.
	{component: "storage", message: "Unhandled Error", err: "the object has been modified; please apply your changes to the latest version", level: logrus.DebugLevel, passing: true},
	{component: "storage", message: "Retrying capacity.QueueKey", level: logrus.DebugLevel, passing: true},
}

// ranks remembers since when lines are said that should be over soon.
type ranks struct {
	mu   sync.Mutex
	seen map[int]span // by the index in upstreamRanks
}

type span struct{ first, last time.Time }

// level is the one that a line deserves: that which it has, or a lower one.
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
	if !said || !strings.Contains(s.err, r.err) {
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

// over reports whether a line of this rank is still one that is over soon.
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
