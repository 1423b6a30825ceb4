// Package record holds what happens to the objects of a cluster: the flight recorder's memory.
//
// A Record is one thing that happened to one object: an API request, an attempt to schedule it, a call to the container
// runtime. A Store keeps records by object, bounded in bytes and age. Sources add them where they happen: the
// apiserver's handler and admission chain, the scheduler's framework, and spans of upstream's kubelet and containerd
// (trace/spans). Package trace puts the records of an object and its relatives in order.
//
// Records hold metadata, reasons and messages; never the content of an object, so never that of a Secret.
package record

import "time"

// Ref names an object.
type Ref struct {
	// UID is the object's; empty for one that was never created.
	UID string `json:"uid,omitempty"`
	// Resource is the plural with its group, as kubectl takes it: "pods", "deployments.apps".
	Resource  string `json:"resource"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// Object is what the recorder knows of an object beside its records.
type Object struct {
	Ref
	// Owners are the UIDs of its owner references.
	Owners []string `json:"owners,omitempty"`
	// Claims are the names of the PersistentVolumeClaims that a pod uses.
	Claims []string `json:"claims,omitempty"`
	// Volume is the PersistentVolume of a claim.
	Volume string `json:"volume,omitempty"`
	// Trace is the trace ID, 32 hexadecimal digits, that the annotation tracing.k8s.io/traceparent or the header
	// traceparent of its creation named; empty: none did. Parent is the span ID there, 16 digits.
	Trace  string `json:"trace,omitempty"`
	Parent string `json:"parent,omitempty"`
	// InitContainers and Containers are a pod's, in the order of its specification.
	InitContainers []string `json:"initContainers,omitempty"`
	Containers     []string `json:"containers,omitempty"`
	// Replicas is how many pods a controller's specification requests; nil where that is not a number.
	Replicas *int32 `json:"replicas,omitempty"`
}

// Stage is a kind of record.
type Stage string

// The stages that sources record. Package trace adds the waits between them.
const (
	// Request is a request to the API that writes, or one that was refused. Name is the verb, with the subresource:
	// "create", "patch status". Its steps are authentication, authorization, flow-control, decode, one for each
	// admission plugin and webhook, etcd, and response.
	Request Stage = "request"
	// Condition is a moment: a condition of the object changed. Name is its type, Message its status and reason.
	Condition Stage = "condition"
	// Phase is a moment: the phase of a pod or claim changed. Name is the phase.
	Phase Stage = "phase"
	// Event is a moment: a client wrote an Event about the object. Name is its reason, Actor its reporter.
	Event Stage = "event"
	// Schedule is one attempt of the scheduler to place a pod, up to its decision. Name is the node, empty if none
	// fits. Its steps are the framework's extension points.
	Schedule Stage = "schedule"
	// Bind is what the scheduler does after its decision, until the pod is bound: permit, prebind and bind.
	Bind Stage = "bind"
	// Sync is the kubelet's work on a pod (its span syncPod). Name is why: "create", "update"; Began is a moment.
	Sync Stage = "sync"
	// Terminate is the kubelet's work on a pod that ends (its spans syncTerminatingPod and syncTerminatedPod).
	Terminate Stage = "terminate"
	// Volume is a call to a CSI driver, or the kubelet's operation on a volume whose driver is in a pod. Name is the
	// method or "MountDevice" or "SetUp", Message the volume.
	Volume Stage = "volume"
	// Sandbox is the CRI's RunPodSandbox: the pause container and the pod's network.
	Sandbox Stage = "sandbox"
	// CNI is the CNI ADD or DEL of a sandbox. Message is the address.
	CNI Stage = "cni"
	// Pull is the CRI's PullImage. Name is the image; Bytes what was pulled.
	Pull Stage = "pull"
	// Create and Start are the CRI's CreateContainer and StartContainer. Name is the container.
	Create Stage = "create"
	Start  Stage = "start"
	// Run is the life of a container that has ended. Name is the container, Message its exit code and reason.
	Run Stage = "run"
	// Hook is a lifecycle hook that runs a command in a container. Name is "postStart" or "preStop", and the container.
	Hook Stage = "hook"
	// Probe is a probe that runs a command in a container.
	Probe Stage = "probe"
	// Stop is the CRI's StopContainer, StopSandbox its StopPodSandbox. Name is the container.
	Stop        Stage = "stop"
	StopSandbox Stage = "stop-sandbox"
)

// Began is the Name of a Sync or Terminate that is a moment: the kubelet begins, and what it does is not recorded yet.
const Began = "began"

// Record is one thing that happened to an object.
type Record struct {
	// Seq is its place in the store that keeps it, from 1.
	Seq    uint64 `json:"seq"`
	Object Ref    `json:"object"`
	Stage  Stage  `json:"stage"`
	Name   string `json:"name,omitempty"`
	// Node is where it happened; empty: on the control plane.
	Node string `json:"node,omitempty"`
	// Start is in nanoseconds since 1970, on the server's clock and monotonic there (see Clock). Duration is 0 for a
	// moment.
	Start    int64         `json:"start"`
	Duration time.Duration `json:"duration,omitempty"`
	// Actor is the user of a request, or the component that did it. Agent is the user agent of a request.
	Actor string `json:"actor,omitempty"`
	Agent string `json:"agent,omitempty"`
	// Code is the HTTP status of a request, or the exit code of a container.
	Code int `json:"code,omitempty"`
	// Message has details; Error is why it failed, and is empty if it did not.
	Message string `json:"message,omitempty"`
	Error   string `json:"error,omitempty"`
	// Version is the resource version that a request found, or wrote where that is known.
	Version string `json:"version,omitempty"`
	// Spec: a request changed the object's specification (its generation), so controllers act on it.
	Spec bool `json:"spec,omitempty"`
	// Bytes is the size of what was moved.
	Bytes int64 `json:"bytes,omitempty"`
	// Peak is how much memory a container used at most, in bytes: of a Run. 0: unknown.
	Peak int64 `json:"peak,omitempty"`
	// Count is how often the same thing happened, from 1; Start and Duration are then those of the first time, and Last
	// is the start of the last one.
	Count int   `json:"count,omitempty"`
	Last  int64 `json:"last,omitempty"`
	// Steps are parts of it, in their order.
	Steps []Step `json:"steps,omitempty"`
	// Verdicts and Scores are those of a Schedule.
	Verdicts []Verdict `json:"verdicts,omitempty"`
	Scores   []Score   `json:"scores,omitempty"`
}

// End is the time at which it was over.
func (r *Record) End() int64 { return r.Start + int64(r.Duration) }

// Step is a part of a record.
type Step struct {
	// Name is what was done: "authentication", "admission", "webhook", "etcd", "filter".
	Name string `json:"name"`
	// Detail is by whom: the plugin, the webhook.
	Detail string `json:"detail,omitempty"`
	// Offset is since the record's start; -1 where only the duration is known.
	Offset   time.Duration `json:"offset"`
	Duration time.Duration `json:"duration"`
	// Error is why it failed or refused; empty: it did not.
	Error string `json:"error,omitempty"`
}

// Verdict is why a filter of the scheduler excluded nodes.
type Verdict struct {
	// Nodes has some of them; Count is how many there are.
	Nodes  []string `json:"nodes"`
	Count  int      `json:"count"`
	Plugin string   `json:"plugin"`
	Reason string   `json:"reason"`
}

// Score is what the score plugins gave a node.
type Score struct {
	Node  string `json:"node"`
	Total int64  `json:"total"`
	// Plugins has the weighted scores by plugin.
	Plugins map[string]int64 `json:"plugins"`
}

// Sink takes records. All methods are for concurrent use, and never block on anything but memory.
type Sink interface {
	// Add adds a record; its Seq is ignored.
	Add(Record)
	// Describe adds what is known of an object. Fields that are empty leave what was known before.
	Describe(Object)
}
