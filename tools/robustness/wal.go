package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
)

type entry = raftpb.Entry

// isLast finds the last write of a recorder, which may be written more than once.
func isLast(prefix string) func(*entry) bool {
	return func(e *entry) bool {
		last, err := requests([]*entry{e}, prefix+"last")
		return err == nil && len(last) > 0
	}
}

// logs reads the raft logs of the members, which go on writing them.
func logs(members []member) ([][]*entry, error) {
	var all [][]*entry
	for _, m := range members {
		var entries []*entry
		var err error
		for range 20 { // the last record may be half written
			if _, entries, err = report.ReadAllWALEntries(zap.NewNop(), filepath.Join(m.directory, "member", "wal")); err == nil {
				break
			}
			time.Sleep(200 * time.Millisecond)
		}
		if err != nil {
			return nil, fmt.Errorf("the log in %s: %w", m.directory, err)
		}
		all = append(all, entries)
	}
	return all, nil
}

// committed merges the logs up to the entry in which done finds the last write. All members have it, so what leads up
// to it without a gap is committed, and must be equal. Before a gap stands what a member had when the leader sent it
// a snapshot: perhaps entries of its own that were never committed. The first entries of a log may be gone, too: what
// no log has any more would be missing beside what the watches saw.
func committed(logs [][]*entry, done func(*entry) bool) ([]*entry, error) {
	byIndex := map[uint64]*entry{}
	var last uint64
	for _, entries := range logs {
		for _, e := range slices.Backward(entries) {
			if done(e) {
				last = max(last, e.GetIndex())
				break
			}
		}
	}
	for i, entries := range logs {
		next := last // the index that the entry before must have
		for _, e := range slices.Backward(entries) {
			if e.GetIndex() > last {
				continue
			}
			if e.GetIndex() != next {
				break
			}
			other, ok := byIndex[next]
			if ok && (other.GetTerm() != e.GetTerm() || other.GetType() != e.GetType() || !bytes.Equal(other.GetData(), e.GetData())) {
				return nil, fmt.Errorf("the logs of the members differ in entry %d", next)
			}
			byIndex[next] = e
			next--
		}
		if next == last {
			return nil, fmt.Errorf("the log of member %d ends before the last write, entry %d", i, last)
		}
	}
	var merged []*entry
	for index := last; byIndex[index] != nil; index-- {
		merged = append(merged, byIndex[index])
	}
	slices.Reverse(merged)
	return merged, nil
}

// requests returns what the entries change of the keys with the prefix.
func requests(entries []*entry, prefix string) ([]model.EtcdRequest, error) {
	var all []model.EtcdRequest
	for _, e := range entries {
		if e.GetType() != raftpb.EntryNormal || len(e.GetData()) == 0 {
			continue
		}
		var r etcdserverpb.InternalRaftRequest
		if err := proto.Unmarshal(e.GetData(), &r); err != nil {
			return nil, fmt.Errorf("entry %d: %w", e.GetIndex(), err)
		}
		switch {
		case r.Put != nil && strings.HasPrefix(string(r.Put.Key), prefix):
			all = append(all, write(model.EtcdOperation{Type: model.PutOperation, Put: put(r.Put)}))
		case r.Txn != nil: // the clients' have no conditions
			ops, err := operations(r.Txn.Success, prefix)
			if err != nil || ops != nil && len(r.Txn.Compare) > 0 {
				return nil, fmt.Errorf("entry %d is a transaction that no client sends: %s", e.GetIndex(), &r)
			}
			if ops != nil {
				all = append(all, write(ops...))
			}
		}
	}
	return all, nil
}

func write(ops ...model.EtcdOperation) model.EtcdRequest {
	return model.EtcdRequest{Type: model.Txn, Txn: &model.TxnRequest{OperationsOnSuccess: ops}}
}

func put(r *etcdserverpb.PutRequest) model.PutOptions {
	return model.PutOptions{Key: string(r.Key), Value: model.ToValueOrHash(string(r.Value))}
}

// operations returns nil if they are of keys without the prefix.
func operations(all []*etcdserverpb.RequestOp, prefix string) ([]model.EtcdOperation, error) {
	var ops []model.EtcdOperation
	for _, o := range all {
		var key []byte
		var op model.EtcdOperation
		switch {
		case o.GetRequestPut() != nil:
			key = o.GetRequestPut().Key
			op = model.EtcdOperation{Type: model.PutOperation, Put: put(o.GetRequestPut())}
		case o.GetRequestDeleteRange() != nil:
			key = o.GetRequestDeleteRange().Key
			op = model.EtcdOperation{Type: model.DeleteOperation, Delete: model.DeleteOptions{Key: string(key)}}
		case o.GetRequestRange() != nil:
			key = o.GetRequestRange().Key
			op = model.EtcdOperation{Type: model.RangeOperation, Range: model.RangeOptions{Start: string(key), End: string(o.GetRequestRange().RangeEnd)}}
		}
		if !strings.HasPrefix(string(key), prefix) {
			if ops != nil {
				return nil, fmt.Errorf("the key %q beside those of the clients", key)
			}
			return nil, nil
		}
		ops = append(ops, op)
	}
	return ops, nil
}
