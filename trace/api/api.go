// Package api serves timelines to those who may read their objects, and takes the records of agents.
//
// The paths are below /kubelith/v1/, behind the apiserver's authentication, flow control and authorization. Their roles
// (components/controlplane/apiserver/bootstrap_traces.go) let every authenticated user ask; what is answered follows
// from the rights to get each object.
package api

import (
	"time"

	"kubelith.io/kubelith/trace"
	"kubelith.io/kubelith/trace/record"
)

// The paths. Parameters are in the query.
const (
	// Prefix is that of all paths.
	Prefix = "/kubelith/v1/"
	// TracePath returns the Timeline of an object: resource, namespace, name; after: wait until there is a record after
	// this Seq, for Patience at most.
	TracePath = Prefix + "trace"
	// RecentPath returns []trace.Summary of what users set off, the newest first: after, as above; n.
	RecentPath = TracePath + "/recent"
	// SlowestPath returns Slowest: n.
	SlowestPath = TracePath + "/slowest"
	// StatsPath returns Stats.
	StatsPath = TracePath + "/stats"
	// RecordsPath takes the record.Batch of an agent, and returns a record.Reply.
	RecordsPath = record.Path
)

// Patience is how long a request waits for a record.
const Patience = 20 * time.Second

// Slowest are the slowest pod starts and API requests, the slowest first.
type Slowest struct {
	Starts   []trace.Summary `json:"starts"`
	Requests []trace.Summary `json:"requests"`
}

// Stats are percentiles by stage, and how full the recorder is.
type Stats struct {
	Stages []trace.Percentiles `json:"stages"`
	Usage  record.Usage        `json:"usage"`
}

// Recent is what users set off.
type Recent struct {
	Timelines []trace.Summary `json:"timelines"`
	Seq       uint64          `json:"seq"`
}
