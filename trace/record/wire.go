package record

import "time"

// Path is where a server takes the records of agents: POST of a Batch in JSON, answered by a Reply.
const Path = "/kubelith/v1/records"

// Limits of a Batch. A server refuses a larger one.
const (
	// MaxBatch is how many records a batch has at most.
	MaxBatch = 1000
	// MaxBody is the size of a batch in bytes.
	MaxBody = 8 << 20
)

// Batch is what an agent sends: what happened on its node since the last batch that was answered.
type Batch struct {
	// Node is the agent's. A server takes a batch from that node only.
	Node string `json:"node"`
	// Sent is when it was sent, in nanoseconds since 1970 on the node's clock (see Clock).
	Sent int64 `json:"sent"`
	// Offset is by how much the node's clock is behind the server's, as far as the node knows: Store.Merge adds it to
	// the times of the records. Estimated: the node had an answer to estimate it from; else a server takes Sent as the
	// time at which it received the batch.
	Offset    time.Duration `json:"offset"`
	Estimated bool          `json:"estimated,omitempty"`
	Records   []Record      `json:"records,omitempty"`
}

// Reply answers a batch.
type Reply struct {
	// Now is the server's time on receipt, in nanoseconds since 1970 (see Clock).
	Now int64 `json:"now"`
	// Store is the ID of the server's store. A node that finds another one sends all its records again: the server has
	// restarted, or is another one.
	Store string `json:"store,omitempty"`
}

// Behind returns by how much the node's clock is behind that of the server, which received the batch at now.
func (b *Batch) Behind(now int64) time.Duration {
	if b.Estimated {
		return b.Offset
	}
	return time.Duration(now - b.Sent)
}

// At returns a Sink whose records happened on a node, unless they say otherwise. It is nil if to is.
func At(to Sink, node string) Sink {
	if to == nil {
		return nil
	}
	return placed{to, node}
}

type placed struct {
	Sink
	node string
}

// Add implements Sink.
func (p placed) Add(r Record) {
	if r.Node == "" {
		r.Node = p.node
	}
	p.Sink.Add(r)
}
