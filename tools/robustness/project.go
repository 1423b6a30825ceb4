package main

import (
	"fmt"
	"maps"
	"slices"

	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
)

// history is what the validators are given.
type history struct {
	reports   []report.ClientReport
	persisted []model.EtcdRequest
}

// String counts it.
func (h history) String() string {
	operations, failed, watches, events := 0, 0, 0, 0
	for _, r := range h.reports {
		operations += len(r.KeyValue)
		for _, o := range r.KeyValue {
			if o.Output.(model.MaybeEtcdResponse).Error != "" {
				failed++
			}
		}
		watches += len(r.Watch)
		events += r.WatchEventCount()
	}
	return fmt.Sprintf("%d operations, %d of them without an answer; %d requests in the logs; %d events of %d watches",
		operations, failed, len(h.persisted), events, watches)
}

// history returns what the clients did and what the members' logs have of it, as of an etcd without anybody else.
func (r *recorder) history(members []member) (history, error) {
	reports := r.clients.Reports()
	all, err := logs(members)
	if err != nil {
		return history{}, err
	}
	entries, err := committed(all, isLast(r.prefix))
	if err != nil {
		return history{}, err
	}
	persisted, err := requests(entries, r.prefix)
	if err != nil {
		return history{}, err
	}
	return project(reports, persisted)
}

// projection translates the revisions of an etcd with other clients to those of one in which only our keys exist. The
// others never touch them, so a cluster is linearizable, and its watches are complete, only if the projection is.
type projection struct {
	writes []int64 // the revisions in which our keys changed, ascending
}

// at is the revision that our keys have at one of the whole etcd: 1 before anything was written.
func (p projection) at(revision int64) int64 {
	if revision <= 0 { // none, or etcd's own mark for "not known"
		return revision
	}
	n, found := slices.BinarySearch(p.writes, revision)
	if found {
		n++
	}
	return int64(n) + 1
}

// project returns the history with all revisions translated, and fails if a write in the logs was seen by no watch, or
// the reverse.
func project(reports []report.ClientReport, persisted []model.EtcdRequest) (history, error) {
	seen := map[int64]bool{}
	for _, r := range reports {
		for _, w := range r.Watch {
			for _, answer := range w.Responses {
				for _, e := range answer.Events {
					seen[e.Revision] = true
				}
			}
		}
	}
	p := projection{slices.Sorted(maps.Keys(seen))}
	var h history
	for _, r := range reports {
		out := report.ClientReport{ClientID: r.ClientID}
		for _, o := range r.KeyValue {
			o.Input = p.request(o.Input.(model.EtcdRequest))
			answer := p.answer(o.Output.(model.MaybeEtcdResponse))
			o.Output, o.Metadata = answer, answer
			out.KeyValue = append(out.KeyValue, o)
		}
		for _, w := range r.Watch {
			out.Watch = append(out.Watch, p.watch(w))
		}
		h.reports = append(h.reports, out)
	}
	h.persisted = persisted
	replay := model.NewReplay(h.persisted)
	last := int64(len(p.writes)) + 1
	if _, err := replay.StateForRevision(last); err != nil {
		return history{}, fmt.Errorf("watches saw more than the %d requests in the logs write: %w", len(h.persisted), err)
	}
	if _, err := replay.StateForRevision(last + 1); err == nil {
		return history{}, fmt.Errorf("no watch saw all that the logs have: revision %d is in the logs alone", last+1)
	}
	return h, nil
}

func (p projection) request(r model.EtcdRequest) model.EtcdRequest {
	if r.Range != nil { // writes have no revision: the clients set no conditions
		in := *r.Range
		in.Revision = p.at(in.Revision)
		r.Range = &in
	}
	return r
}

func (p projection) answer(a model.MaybeEtcdResponse) model.MaybeEtcdResponse {
	a.Revision = p.at(a.Revision)
	if a.Range != nil {
		out := p.found(*a.Range)
		a.Range = &out
	}
	if a.Txn != nil {
		out := *a.Txn
		out.Results = slices.Clone(out.Results)
		for i := range out.Results {
			out.Results[i].RangeResponse = p.found(out.Results[i].RangeResponse)
		}
		a.Txn = &out
	}
	return a
}

func (p projection) found(r model.RangeResponse) model.RangeResponse {
	r.KVs = slices.Clone(r.KVs)
	for i := range r.KVs {
		r.KVs[i].ModRevision = p.at(r.KVs[i].ModRevision)
	}
	return r
}

func (p projection) watch(w model.WatchOperation) model.WatchOperation {
	w.Request.Revision = p.at(w.Request.Revision-1) + 1
	answers := make([]model.WatchResponse, 0, len(w.Responses))
	for _, a := range w.Responses {
		a.Revision = p.at(a.Revision)
		a.Events = slices.Clone(a.Events)
		for i := range a.Events {
			e := &a.Events[i]
			e.Revision = p.at(e.Revision)
			if e.PrevValue != nil {
				before := *e.PrevValue
				before.ModRevision = p.at(before.ModRevision)
				e.PrevValue = &before
			}
		}
		answers = append(answers, a)
	}
	w.Responses = answers
	return w
}
