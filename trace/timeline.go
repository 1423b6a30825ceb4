// Package trace puts what the flight recorder holds (trace/record) in order: the whole way of an object, from the
// request that set it off until it settled, with the stages that its time went to.
package trace

import (
	"time"

	"kubelith.io/kubelith/trace/record"
)

// The stages that are waits: from one record to the next that it sets off.
const (
	// Reconcile is from a write until the request that a controller makes because of it. Name is the controller.
	Reconcile record.Stage = "reconcile"
	// Queue is from the creation of a pod, or the last attempt, until the scheduler's next attempt.
	Queue record.Stage = "queue"
	// Deliver is from the binding until the kubelet's first sync.
	Deliver record.Stage = "deliver"
	// Setup is the kubelet's work before the sandbox: cgroups, directories, volumes, pull secrets.
	Setup record.Stage = "setup"
	// Prepare is the kubelet's work before and between calls for containers: image check, configuration, mounts, logs.
	Prepare record.Stage = "prepare"
	// Settle is from the start of the last container until the kubelet reports the pod: probes, and its status manager.
	Settle record.Stage = "settle"
	// Grace is from the request to delete a pod, or a hook, until its containers have ended.
	Grace record.Stage = "grace"
)

// Timeline is the course of an object and of what it set off.
type Timeline struct {
	// Object is the requested one.
	Object record.Ref `json:"object"`
	// SetOff is the request with which it began, as a sentence: `create by kubelith-admin (kubectl)`. Verb is "create",
	// "update" or "delete".
	SetOff string `json:"setOff"`
	Verb   string `json:"verb"`
	// Begin is the arrival of that request. End is when the object settled, or the last thing that is known.
	Begin time.Time `json:"begin"`
	End   time.Time `json:"end"`
	// Settled: it has reached the requested state, or is gone. Outcome reports this, or what it waits for: "Ready",
	// "deleted", "waiting: web-1: 0/1 nodes are available".
	Settled bool   `json:"settled"`
	Outcome string `json:"outcome"`
	// Before is how an object was before it was deleted: an Outcome. Failures are its stages that failed then, the last
	// ones. Both are empty unless Verb is "delete".
	Before   string `json:"before,omitempty"`
	Failures []Span `json:"failures,omitempty"`
	// Ended is the last run of each of the pod's containers that has ended, whenever that was; empty unless Object is a
	// pod.
	Ended []Span `json:"ended,omitempty"`
	// Pending: it has settled, but records of the end may still be on their way from an agent.
	Pending bool `json:"pending,omitempty"`
	// Spans are the stages in causal order; a parent comes before its children.
	Spans []Span `json:"spans"`
	// Critical is the critical path in the order of time: what the end waited for. Covered is the share of the time
	// that its segments explain, 0 to 1.
	Critical []Segment `json:"critical"`
	Covered  float64   `json:"covered"`
	// Stages are the totals of the critical path by stage, the longest first.
	Stages []Total `json:"stages"`
	// Notices are what a reader must know: a clock that was set, records that were dropped, objects that are hidden.
	Notices []string `json:"notices,omitempty"`
	// Seq is the last record that it knows, for a request that waits for more.
	Seq uint64 `json:"seq"`
}

// Span is a stage of an object.
type Span struct {
	ID int `json:"id"`
	// Parent is the ID of the span that this one is a part of; 0: none.
	Parent int          `json:"parent,omitempty"`
	Object record.Ref   `json:"object"`
	Stage  record.Stage `json:"stage"`
	// Name is what the stage is about: the verb, the container, the plugin.
	Name string `json:"name,omitempty"`
	// Node is where; empty: on the control plane.
	Node  string    `json:"node,omitempty"`
	Begin time.Time `json:"begin"`
	End   time.Time `json:"end"`
	// Moment: it took no time that is known.
	Moment bool `json:"moment,omitempty"`
	// Wait: nothing of it was recorded itself; it is the time until what it names began.
	Wait bool `json:"wait,omitempty"`
	// Critical: it is a part of the critical path.
	Critical bool `json:"critical,omitempty"`
	// By is who did it: the user and the program of a request, or a component.
	By string `json:"by,omitempty"`
	// Message has details, Error why it failed.
	Message string `json:"message,omitempty"`
	Error   string `json:"error,omitempty"`
	// Count is how often it happened; Bytes what was moved; Peak how much memory a container used at most, in bytes.
	Count    int              `json:"count,omitempty"`
	Bytes    int64            `json:"bytes,omitempty"`
	Peak     int64            `json:"peak,omitempty"`
	Verdicts []record.Verdict `json:"verdicts,omitempty"`
	Scores   []record.Score   `json:"scores,omitempty"`
}

// Duration is how long the stage took.
func (s *Span) Duration() time.Duration { return s.End.Sub(s.Begin) }

// Segment is a part of the critical path: a span, or a part of it.
type Segment struct {
	Span  int       `json:"span"`
	Begin time.Time `json:"begin"`
	End   time.Time `json:"end"`
}

// Total is what a stage took of the critical path.
type Total struct {
	Stage record.Stage  `json:"stage"`
	Took  time.Duration `json:"took"`  // in nanoseconds
	Share float64       `json:"share"` // 0 to 1
}

// Summary is one line of a list of timelines.
type Summary struct {
	Object  record.Ref    `json:"object"`
	What    string        `json:"what"` // "pod start", or the request
	By      string        `json:"by,omitempty"`
	Begin   time.Time     `json:"begin"`
	Took    time.Duration `json:"took"` // in nanoseconds
	Slowest Total         `json:"slowest"`
	Settled bool          `json:"settled"`
}

// Percentiles are those of a stage over all objects that the caller may read.
type Percentiles struct {
	Stage record.Stage  `json:"stage"`
	Count int           `json:"count"`
	P50   time.Duration `json:"p50"` // in nanoseconds, like the others
	P90   time.Duration `json:"p90"`
	P99   time.Duration `json:"p99"`
	Max   time.Duration `json:"max"`
}
