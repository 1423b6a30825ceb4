package trace

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/trace/record"
)

// Source is where records come from: a record.Store.
type Source interface {
	// Lookup returns the newest object of a name, Get that of a UID; ok is false if there is none.
	Lookup(resource, namespace, name string) (h record.History, ok bool)
	Get(uid string) (h record.History, ok bool)
	// Owned returns the objects that this one owns, the first one first.
	Owned(uid string) []record.History
}

// patience is how long a controller may take until its first pod, where the object does not specify how many it wants.
const patience = 5 * time.Second

const (
	pods   = "pods"
	claims = "persistentvolumeclaims"
)

// Assemble returns the timeline of an object: of what the last request that created it, changed its specification or
// deleted it set off, in itself and in what it owns. may reports whether the caller may read an object; what he may not
// read is left out, and counted in a notice. now is the time of the store, in nanoseconds.
func Assemble(from Source, root record.History, may func(record.Ref) bool, now int64) *Timeline {
	a := &assembly{from: from, may: may, seen: map[string]bool{}, t: &Timeline{Object: root.Object.Ref}}
	a.gather(root, nil)
	a.begin()
	for _, m := range a.members {
		m.find(a.start)
	}
	a.settle(now)
	a.late(now)
	a.build()
	a.criticalPath()
	a.total()
	if a.t.Verb == "delete" {
		a.before(root, now)
	}
	a.t.Ended = lastRuns(root)
	if a.hidden > 0 {
		a.notice("%d objects are not shown: you may not read them", a.hidden)
	}
	return a.t
}

// maxFailures is how many of an object's failures before its deletion a timeline has.
const maxFailures = 5

// before finds how an object was before its deletion.
func (a *assembly) before(root record.History, now int64) {
	at := slices.IndexFunc(root.Records, func(r record.Record) bool { return setsOff(&r) && verbOf(&r) == "delete" })
	if at <= 0 {
		return
	}
	past := until{a.from, root.Records[at].Start}
	root.Records = root.Records[:at]
	a.t.Before = Assemble(past, root, a.may, now).Outcome
	for i := range root.Records {
		if r := &root.Records[i]; r.Error != "" && r.Code != http.StatusConflict {
			a.t.Failures = append(a.t.Failures, span(root.Object.Ref, r))
		}
	}
	a.t.Failures = a.t.Failures[max(0, len(a.t.Failures)-maxFailures):]
}

// lastRuns returns the last run of each container of a pod that has ended, by the names of the containers.
func lastRuns(h record.History) []Span {
	var runs []Span
	for i := range slices.Backward(h.Records) {
		r := &h.Records[i]
		if r.Stage == record.Run && !slices.ContainsFunc(runs, func(s Span) bool { return s.Name == r.Name }) {
			runs = append(runs, span(h.Object.Ref, r))
		}
	}
	slices.SortFunc(runs, func(a, b Span) int { return cmp.Compare(a.Name, b.Name) })
	return runs
}

// until is a source as it was at a time.
type until struct {
	Source
	time int64
}

func (u until) cut(h record.History) record.History {
	h.Records = slices.DeleteFunc(slices.Clone(h.Records), func(r record.Record) bool { return r.Start >= u.time })
	return h
}

// Lookup implements Source.
func (u until) Lookup(resource, namespace, name string) (record.History, bool) {
	h, ok := u.Source.Lookup(resource, namespace, name)
	return u.cut(h), ok
}

// Get implements Source.
func (u until) Get(uid string) (record.History, bool) {
	h, ok := u.Source.Get(uid)
	return u.cut(h), ok
}

// Owned implements Source.
func (u until) Owned(uid string) []record.History {
	all := u.Source.Owned(uid)
	for i := range all {
		all[i] = u.cut(all[i])
	}
	return all
}

// assembly is a timeline in the making.
type assembly struct {
	from    Source
	may     func(record.Ref) bool
	seen    map[string]bool
	hidden  int
	whose   []*member // of each span
	members []*member // the requested object first, owners before what they own
	start   int64
	end     int64
	t       *Timeline
}

// member is an object of the timeline.
type member struct {
	record.History
	owner *member // nil for the requested object
	// setOff is the request that began its part, nil if none is known; deleting the first one that deletes it.
	setOff, deleting *record.Record
	synced           int64 // when the kubelet began to work on it, or to end it; 0: not yet
	ready            int64 // when the API held that it had reached its state; 0: not yet
	gone             int64 // when it was deleted; 0: it is there
	ended            bool  // all containers of the pod have ended for good
	leaving          bool  // it was being deleted before the timeline began
	failed           string
	// waiting is why it is not ready: what failed last and has not succeeded since or, without that, what was reported
	// of it.
	waiting, said string
	main          []*record.Record // its stages that follow each other, by their start
}

func (a *assembly) notice(format string, args ...any) {
	a.t.Notices = append(a.t.Notices, fmt.Sprintf(format, args...))
}

// gather adds an object, what it owns, and the claims that a pod uses.
func (a *assembly) gather(h record.History, owner *member) {
	key := cmp.Or(h.Object.UID, h.Object.Resource+"/"+h.Object.Namespace+"/"+h.Object.Name)
	if a.seen[key] {
		return
	}
	a.seen[key] = true
	if owner != nil && !a.may(h.Object.Ref) {
		a.hidden++
		return
	}
	for i := range h.Records {
		a.t.Seq = max(a.t.Seq, h.Records[i].Seq)
	}
	m := &member{History: h, owner: owner}
	a.members = append(a.members, m)
	for _, claim := range h.Object.Claims {
		if c, ok := a.from.Lookup(claims, h.Object.Namespace, claim); ok {
			a.gather(c, m)
		}
	}
	if h.Object.Volume != "" {
		if v, ok := a.from.Lookup("persistentvolumes", "", h.Object.Volume); ok {
			a.gather(v, m)
		}
	}
	if h.Object.UID != "" {
		for _, child := range a.from.Owned(h.Object.UID) {
			a.gather(child, m)
		}
	}
}

// setsOff reports whether others act on a request: it created the object, changed its specification, or deleted it.
func setsOff(r *record.Record) bool {
	verb, sub, _ := strings.Cut(r.Name, " ")
	return r.Stage == record.Request && r.Code < 400 && sub != "status" && (r.Spec || sub == "" && (verb == "create" || verb == "delete"))
}

// begin finds the request with which the timeline begins.
func (a *assembly) begin() {
	root := a.members[0]
	for i := range root.Records {
		r := &root.Records[i]
		if setsOff(r) || r.Stage == record.Request && r.Code >= http.StatusBadRequest && root.setOff == nil {
			// A pod is bound, and the kubelet deletes it at its end: only what came first deletes it.
			if root.setOff != nil && verbOf(root.setOff) == "delete" && verbOf(r) == "delete" {
				continue
			}
			root.setOff = r
		}
	}
	if root.setOff == nil {
		if len(root.Records) > 0 {
			a.start = root.Records[0].Start
		}
		a.notice("the request that set this off is not in the record")
		return
	}
	a.start, a.t.Verb = root.setOff.Start, verbOf(root.setOff)
	a.t.SetOff = a.t.Verb + " by " + by(root.setOff)
}

func verbOf(r *record.Record) string {
	verb, _, _ := strings.Cut(r.Name, " ")
	return verb
}

// by names who made a request: the user, and the user's program where that is more specific.
func by(r *record.Record) string {
	actor := strings.TrimPrefix(r.Actor, "system:serviceaccount:kube-system:")
	program, _, _ := strings.Cut(r.Agent, "/")
	if program == "" || strings.HasPrefix(actor, "system:") || actor != r.Actor {
		return actor
	}
	return actor + " (" + program + ")"
}

// find reads the state of an object from its records since start.
func (m *member) find(start int64) {
	for i := range m.Records {
		r := &m.Records[i]
		if r.End() < start && cmp.Or(r.Last, r.Start) < start {
			// What was ready before is ready, until a record reports otherwise.
			if r.Stage == record.Condition && r.Name == "Ready" {
				m.ready = readyAt(r)
			}
			if r.Stage == record.Phase && r.Name == "Deleted" {
				m.gone = r.Start
			}
			m.leaving = m.leaving || r.Stage == record.Request && verbOf(r) == "delete" && setsOff(r)
			continue
		}
		switch r.Stage {
		case record.Request:
			if m.owner != nil && setsOff(r) && (m.setOff == nil || verbOf(m.setOff) != "delete") {
				m.setOff = r
			}
			if verbOf(r) == "delete" && m.deleting == nil && setsOff(r) {
				m.deleting = r
			}
			if r.Code >= 400 && r.Code != http.StatusConflict {
				m.waiting = r.Error
			}
		case record.Sync, record.Terminate:
			if m.synced == 0 {
				m.synced = r.Start
			}
			m.said = cmp.Or(r.Error, m.said)
			continue
		case record.Condition:
			m.condition(r)
			continue
		case record.Phase:
			m.phase(r)
			continue
		case record.Event:
			if r.Error != "" {
				m.said = r.Name + ": " + r.Error
			}
			continue
		case record.Probe:
			continue
		case record.Schedule:
			m.waiting = r.Error
		case record.Run:
			if r.Start < start {
				continue // a container that ran before
			}
		default:
			m.waiting = ""
			if r.Error != "" {
				m.waiting = strings.TrimSpace(string(r.Stage)+" "+r.Name) + ": " + r.Error
			}
		}
		m.main = append(m.main, r)
	}
	m.waiting = cmp.Or(m.waiting, m.said)
	done := cmp.Or(m.gone, m.ready)
	m.main = slices.DeleteFunc(m.main, func(r *record.Record) bool {
		return r.Stage == record.Run && (done != 0 && r.Start > done || m.known(r)) // what runs on is no stage of the start
	})
	m.keepRequests(done)
	slices.SortStableFunc(m.main, func(a, b *record.Record) int { return cmp.Compare(a.Start, b.Start) })
}

// known reports whether the runtime has recorded the life of a container that a pod's status has in whole seconds.
func (m *member) known(run *record.Record) bool {
	const runtime = "containerd"
	return run.Actor != runtime && slices.ContainsFunc(m.Records, func(o record.Record) bool {
		return o.Stage == record.Run && o.Actor == runtime && o.Name == run.Name && time.Duration(o.Start-run.Start).Abs() < 2*time.Second
	})
}

func readyAt(r *record.Record) int64 {
	if strings.HasPrefix(r.Message, "True") {
		return r.Start
	}
	return 0
}

// condition notes a condition that reports whether an object has reached its state.
func (m *member) condition(r *record.Record) {
	if !strings.HasPrefix(r.Message, "True") {
		return
	}
	switch r.Name {
	case "Ready", "Complete", "SuccessCriteriaMet":
		if m.ready == 0 {
			m.ready = r.Start
		}
	case "Failed":
		m.ready, m.failed = r.Start, "failed"
		if _, reason, ok := strings.Cut(r.Message, ": "); ok {
			m.failed += ": " + reason
		}
	}
}

func (m *member) phase(r *record.Record) {
	switch r.Name {
	case "Deleted":
		m.gone = r.Start
	case "Bound":
		m.ready = cmp.Or(m.ready, r.Start)
	case "Succeeded", "Failed":
		if m.deleting != nil {
			return // because of that
		}
		m.ready, m.ended = r.Start, true
		if r.Name == "Failed" {
			m.failed = "failed"
		}
	}
}

// keepRequests leaves out requests that are no stage: status that changed nothing of note, annotations. It keeps those
// that set something off, failed, bound the pod, or wrote what it settled with.
func (m *member) keepRequests(done int64) {
	settled := -1 // the request that wrote it: the last one that began before, on this object
	for i, r := range m.main {
		if r.Stage == record.Request && done != 0 && r.Start <= done && done-r.End() < int64(time.Second) {
			settled = i
		}
	}
	kept := m.main[:0]
	for i, r := range m.main {
		refused := r.Code >= 400 && r.Code != http.StatusConflict // which is tried again at once
		if r.Stage != record.Request || setsOff(r) || refused || i == settled {
			kept = append(kept, r)
		}
	}
	m.main = kept
}

// settle finds when the timeline ends.
func (a *assembly) settle(now int64) {
	root := a.members[0]
	if a.t.Verb == "delete" {
		a.settleGone(now)
		return
	}
	if root.setOff != nil && root.setOff.Code >= 400 {
		a.end, a.t.Settled, a.t.Outcome = root.setOff.End(), true, "refused: "+root.setOff.Error
		return
	}
	if root.Object.Resource == pods || root.Object.Resource == claims || root.Object.Resource == "jobs.batch" {
		a.settleOne(root, now)
		return
	}
	a.settlePods(root, now)
}

// settlePods finds when a workload had the pods that it wants, for the first time.
func (a *assembly) settlePods(root *member, now int64) {
	var times []int64 // when a pod became ready, and negative when it was deleted
	var blocked *member
	live, ending, newest := 0, int64(0), a.newest()
	for _, m := range a.members {
		switch {
		case m.Object.Resource != pods:
		case m.Object.UID == "": // could not be created
			blocked = cmp.Or(blocked, m)
		case m.gone != 0 && m.gone < a.start, m.leaving:
		case m.deleting != nil && strings.HasPrefix(m.deleting.Actor, "system:serviceaccount:kube-system:"):
			if m.gone == 0 {
				blocked, ending = cmp.Or(blocked, m), now
			}
			ending = max(ending, m.gone)
		case newest == nil || m.owner == newest:
			live++
			if m.ready == 0 {
				blocked = cmp.Or(blocked, m)
				continue
			}
			times = append(times, m.ready)
			if m.deleting != nil {
				times = append(times, -m.deleting.Start)
			}
		}
	}
	want := live
	switch {
	case root.Object.Replicas != nil:
		want = int(*root.Object.Replicas)
	case live == 0 && startsPods(root.Object.Resource) && now-a.start < int64(patience):
		want = 1 // its controller has not handled it
	}
	slices.SortFunc(times, func(x, y int64) int { return cmp.Compare(max(x, -x), max(y, -y)) })
	ready, done := 0, want == 0
	for _, t := range times {
		if t < 0 {
			ready--
			continue
		}
		if ready++; ready == want {
			a.end, done = max(a.end, t), true
			break
		}
	}
	if done && ending != now {
		a.end = max(a.end, ending)
		a.t.Settled, a.t.Outcome = true, "done"
		if want > 0 {
			a.t.Outcome = fmt.Sprintf("%d of %d pods are ready", want, want)
		}
		a.extend(root)
		return
	}
	a.end, a.t.Outcome = now, fmt.Sprintf("%d of %d pods are ready", ready, want)
	if blocked != nil && blocked.waiting != "" {
		a.t.Outcome += "; " + blocked.Object.Name + ": " + blocked.waiting
	}
}

// newest returns the ReplicaSet that a Deployment created last since the beginning: it has the pods that count, and
// those of the others are of an older template. Nil: it created none.
func (a *assembly) newest() *member {
	created := func(r *record.Record) bool { return verbOf(r) == "create" }
	var newest *member
	for _, m := range a.members {
		if m.Object.Resource != "replicasets.apps" || m.owner != a.members[0] || m.setOff == nil || !slices.ContainsFunc(m.main, created) {
			continue
		}
		if newest == nil || m.setOff.Start > newest.setOff.Start {
			newest = m
		}
	}
	return newest
}

// lateness is how long a settled timeline waits for what an agent has recorded and not sent yet.
const lateness = 3 * time.Second

// late takes a timeline for unsettled while records of its end may be on their way from an agent.
func (a *assembly) late(now int64) {
	if !a.t.Settled || now-a.end > int64(lateness) {
		return
	}
	for _, m := range a.members {
		if m.Object.Resource == pods && m.lacks(a.end) {
			a.t.Settled, a.t.Pending = false, true
			return
		}
	}
}

// lacks reports whether a pod was ready or gone by end, and what its node must have done before is not in the record.
func (m *member) lacks(end int64) bool {
	did := func(stage record.Stage, name string) bool {
		return slices.ContainsFunc(m.Records, func(r record.Record) bool {
			return r.Stage == stage && (name == "" || r.Name == name) && r.Start <= end
		})
	}
	if !did(record.Bind, "") {
		return false // no node, or one from before the record
	}
	if m.gone != 0 && m.gone <= end {
		return did(record.Sandbox, "") && !did(record.StopSandbox, "")
	}
	return m.ready != 0 && m.ready <= end && slices.ContainsFunc(m.Object.Containers, func(c string) bool { return !did(record.Start, c) })
}

// extend ends the timeline no earlier than the request that began it.
func (a *assembly) extend(root *member) {
	a.end = max(a.end, a.start)
	if root.setOff != nil {
		a.end = max(a.end, root.setOff.End())
	}
}

func (a *assembly) settleGone(now int64) {
	for _, m := range a.members {
		a.end = max(a.end, m.gone)
	}
	root := a.members[0]
	if root.gone != 0 {
		for _, m := range a.members[1:] {
			if m.Object.Resource == pods && m.gone == 0 {
				a.end, a.t.Outcome = now, "deleted; pods are still ending"
				return
			}
		}
		a.t.Settled, a.t.Outcome = true, "deleted"
		a.extend(root)
		return
	}
	a.end, a.t.Outcome = now, "ending"
	if root.waiting != "" {
		a.t.Outcome += ": " + root.waiting
	}
}

func (a *assembly) settleOne(root *member, now int64) {
	switch {
	case root.gone != 0:
		a.end, a.t.Settled, a.t.Outcome = root.gone, true, "deleted"
	case root.failed != "":
		a.end, a.t.Settled, a.t.Outcome = root.ready, true, root.failed
	case root.ready != 0:
		a.end, a.t.Settled, a.t.Outcome = root.ready, true, map[string]string{claims: "bound", "jobs.batch": "complete"}[root.Object.Resource]
		if root.ended {
			a.t.Outcome = "succeeded"
		}
		a.t.Outcome = cmp.Or(a.t.Outcome, "ready")
	default:
		a.end, a.t.Outcome = now, "not ready"
		if root.waiting != "" {
			a.t.Outcome = "waiting: " + root.waiting
		}
	}
	a.extend(root)
}

// build creates the spans of all objects, with the waits between them.
func (a *assembly) build() {
	for _, m := range a.members {
		a.spansOf(m)
	}
	a.t.Begin, a.t.End = at(a.start), at(a.end)
}

func at(ns int64) time.Time { return time.Unix(0, ns).UTC() }

// spansOf adds an object's stages by their start, and a wait for each time in which none of them ran.
func (a *assembly) spansOf(m *member) {
	covered := a.cause(m)
	first := true
	for i, r := range m.main {
		if r.Start > a.end {
			break
		}
		if isPart(m.main, i) {
			continue // a part of another one
		}
		if covered != 0 && r.Start > covered {
			a.wait(m, r, covered, first)
		}
		first = false
		id := a.add(m, r, 0)
		for _, part := range m.main {
			if within(part, r) {
				a.add(m, part, id)
			}
		}
		covered = max(covered, r.End())
	}
	done := cmp.Or(m.gone, m.ready)
	if done > a.end {
		done = min(m.ready, a.end)
	}
	if covered != 0 && done > covered && len(m.main) > 0 {
		a.addWait(m, Settle, "", covered, done)
	} else if !a.t.Settled && covered != 0 && a.end > covered && m.Object.Resource == pods && m.gone == 0 && (m.ready == 0 || m.deleting != nil) {
		a.wait(m, nil, covered, first)
	}
}

// cause returns the end of the request of the owner that set this object's first request off; 0: none is known.
func (a *assembly) cause(m *member) int64 {
	if m.owner == nil || m.setOff == nil {
		return 0
	}
	var end int64
	for o := m.owner; o != nil && end == 0; o = o.owner {
		for _, r := range o.main {
			if setsOff(r) && r.Start < m.setOff.Start {
				end = r.End()
			}
		}
	}
	return end
}

// isPart reports whether a record is a part of a call that takes longer: the CNI's of the sandbox's.
func isPart(all []*record.Record, i int) bool {
	return slices.ContainsFunc(all, func(o *record.Record) bool { return within(all[i], o) })
}

func within(part, whole *record.Record) bool {
	return part.Stage == record.CNI && (whole.Stage == record.Sandbox || whole.Stage == record.StopSandbox) &&
		part.Start >= whole.Start && part.Start <= whole.End()
}

// wait adds the waits of an object before a stage; next is nil for one that still lasts.
func (a *assembly) wait(m *member, next *record.Record, from int64, first bool) {
	to := a.end
	if next != nil {
		to = next.Start
	}
	ending := m.deleting != nil && m.deleting.Start <= from
	switch {
	case next != nil && next.Stage == record.Request:
		stage, name := Settle, ""
		if first || m.Object.Resource != pods || setsOff(next) && !strings.HasPrefix(next.Actor, names.NodeUserPrefix) {
			stage, name = Reconcile, by(next)
		}
		a.addWait(m, stage, name, from, to)
	case next != nil && next.Stage == record.Schedule:
		a.addWait(m, Queue, "", from, to)
	case m.Object.Resource != pods:
		name := ""
		if next != nil {
			name = next.Name
		}
		a.addWait(m, Reconcile, name, from, to)
	case next == nil && ending: // the kubelet's work on it is recorded when it is over
		a.addWait(m, Grace, "", from, to)
	case next == nil && !slices.ContainsFunc(m.main, func(r *record.Record) bool { return r.Stage == record.Bind && r.Error == "" }):
		a.addWait(m, Queue, "", from, to)
	case m.synced > from || m.synced == 0: // the kubelet has not begun
		began := to
		if m.synced != 0 {
			began = min(m.synced, to)
		}
		a.addWait(m, Deliver, "", from, began)
		if began < to {
			a.addWait(m, setup(next), nameOf(next), began, to)
		}
	case ending:
		a.addWait(m, Grace, "", from, to)
	case next == nil:
		a.addWait(m, m.lasting(), "", from, to)
	default:
		stage := setup(next)
		if stage == Setup && slices.ContainsFunc(m.main, func(r *record.Record) bool { return r.Stage == record.Sandbox && r.End() <= from }) {
			stage = Prepare
		}
		a.addWait(m, stage, nameOf(next), from, to)
	}
}

func nameOf(r *record.Record) string {
	if r == nil {
		return ""
	}
	if r.Stage == record.Sandbox || r.Stage == record.Volume {
		return ""
	}
	return r.Name
}

// setup is the kubelet's wait before a stage.
func setup(next *record.Record) record.Stage {
	if next == nil || next.Stage == record.Sandbox || next.Stage == record.Volume {
		return Setup
	}
	return Prepare
}

// lasting is the wait that a pod is in which the kubelet works on.
func (m *member) lasting() record.Stage {
	started := 0
	for _, r := range m.main {
		if r.Stage == record.Start && r.Error == "" && slices.Contains(m.Object.Containers, r.Name) {
			started++
		}
	}
	switch {
	case started > 0 && started >= len(m.Object.Containers):
		return Settle
	case slices.ContainsFunc(m.main, func(r *record.Record) bool { return r.Stage == record.Sandbox && r.Error == "" }):
		return Prepare
	}
	return Setup
}

func (a *assembly) addWait(m *member, stage record.Stage, name string, from, to int64) {
	if to <= from {
		return
	}
	s := Span{ID: len(a.t.Spans) + 1, Object: m.Object.Ref, Stage: stage, Name: name, Begin: at(from), End: at(to), Wait: true}
	if stage == Deliver || stage == Setup || stage == Prepare || stage == Settle || stage == Grace {
		s.Node = m.node()
	}
	a.push(m, s)
}

func (a *assembly) push(m *member, s Span) {
	a.t.Spans, a.whose = append(a.t.Spans, s), append(a.whose, m)
}

// node is where a pod runs, if the kubelet has begun to work on it.
func (m *member) node() string {
	for i := range m.Records {
		if r := &m.Records[i]; r.Stage == record.Sync || r.Stage == record.Sandbox {
			return r.Node
		}
	}
	return ""
}

// span returns a record as a span, without an ID.
func span(object record.Ref, r *record.Record) Span {
	s := Span{
		Object: object, Stage: r.Stage, Name: r.Name, Node: r.Node, Begin: at(r.Start), End: at(r.End()), Moment: r.Duration == 0,
		By: r.Actor, Message: r.Message, Error: r.Error, Bytes: r.Bytes, Peak: r.Peak, Verdicts: r.Verdicts, Scores: r.Scores,
	}
	if r.Stage == record.Request {
		s.By = by(r)
	}
	if r.Count > 1 {
		s.Count = r.Count
	}
	return s
}

// add adds a record and its steps, and returns its ID.
func (a *assembly) add(m *member, r *record.Record, parent int) int {
	s := span(m.Object.Ref, r)
	s.ID, s.Parent = len(a.t.Spans)+1, parent
	if end := at(a.end); s.End.After(end) {
		s.End = end
	}
	if s.End.Before(s.Begin) {
		s.End = s.Begin
	}
	a.push(m, s)
	cursor := r.Start
	for _, step := range r.Steps {
		begin := cursor
		if step.Offset >= 0 {
			begin = r.Start + int64(step.Offset)
		}
		begin = min(begin, r.End())
		cursor = min(begin+int64(step.Duration), r.End())
		a.push(m, Span{
			ID: len(a.t.Spans) + 1, Parent: s.ID, Object: s.Object, Stage: record.Stage(step.Name), Name: step.Detail, Node: s.Node,
			Begin: at(begin), End: at(cursor), Error: step.Error,
		})
	}
	return s.ID
}

// criticalPath walks back from the end, through the stages of the object that was last, those of the volumes that it
// waited for, and then through its owner's.
func (a *assembly) criticalPath() {
	of := map[*member][]*Span{}
	for i := range a.t.Spans {
		if s := &a.t.Spans[i]; s.Parent == 0 && s.End.After(s.Begin) {
			of[a.whose[i]] = append(of[a.whose[i]], s)
		}
	}
	m, now := a.last(), a.t.End
	for steps := 0; m != nil && now.After(a.t.Begin) && steps < len(a.t.Spans)+len(a.members); steps++ {
		best, until := lastBefore(of[m], now)
		if best == nil {
			m = m.owner
			continue
		}
		begin, next := best.Begin, m
		if best.Wait {
			begin, next = a.waitedFor(of, m, best, until)
		}
		if begin.Before(a.t.Begin) {
			begin = a.t.Begin
		}
		if begin.Before(until) {
			best.Critical = true
			a.t.Critical = append(a.t.Critical, Segment{Span: best.ID, Begin: begin, End: until})
		}
		m, now = next, begin
	}
	slices.Reverse(a.t.Critical)
}

// last is the object that the end waited for.
func (a *assembly) last() *member {
	last := a.members[0]
	for _, m := range a.members {
		if m.Object.Resource != pods {
			continue
		}
		switch {
		case a.t.Settled && (m.gone == a.end || m.ready == a.end), !a.t.Settled && cmp.Or(m.gone, m.ready) == 0 && len(m.main) > 0:
			return m
		case !a.t.Settled && m.deleting != nil && m.gone == 0:
			last = m
		}
	}
	return last
}

// lastBefore returns the span that ends last before a time, and where it ends or is cut off.
func lastBefore(spans []*Span, now time.Time) (best *Span, until time.Time) {
	for _, s := range spans {
		end := s.End
		if end.After(now) {
			end = now
		}
		if !end.After(s.Begin) {
			continue
		}
		if best == nil || end.After(until) || end.Equal(until) && better(s, best) {
			best, until = s, end
		}
	}
	return best, until
}

// better reports which of two spans that end at the same time explains more: work more than a wait, and among those the
// one that began later, which the other one may have waited for.
func better(s, than *Span) bool {
	if s.Wait != than.Wait {
		return !s.Wait
	}
	return s.Begin.After(than.Begin)
}

// waitedFor returns since when nothing else explains a wait, and with whom to go on there: a pod waits for its volumes,
// a rollout and a StatefulSet for the pods before.
func (a *assembly) waitedFor(of map[*member][]*Span, m *member, wait *Span, until time.Time) (time.Time, *member) {
	begin, next := wait.Begin, m
	for _, o := range a.members {
		switch {
		case o == m:
		case (wait.Stage == Setup || wait.Stage == Queue) && o.of(m):
			if s, end := lastBefore(of[o], until); s != nil && !s.Wait && end.After(begin) {
				begin, next = end, o
			}
		case wait.Stage == Reconcile && o.Object.Resource == pods && (m.Object.Resource != pods || m.owner != nil && m.owner.Object.Resource == "statefulsets.apps"):
			if done := cmp.Or(o.gone, o.ready); done != 0 && at(done).After(begin) && at(done).Before(until) {
				begin, next = at(done), o
			}
		}
	}
	return begin, next
}

// of reports whether an object is a claim of a pod, or the volume of one.
func (m *member) of(pod *member) bool {
	for o := m; o != nil && o.Object.Resource != pods; o = o.owner {
		if o.owner == pod && o.Object.Resource == claims {
			return pod.Object.Resource == pods
		}
	}
	return false
}

// total sums the critical path by stage.
func (a *assembly) total() {
	all := a.t.End.Sub(a.t.Begin)
	if all <= 0 {
		return
	}
	took := map[record.Stage]time.Duration{}
	var covered time.Duration
	for _, segment := range a.t.Critical {
		d := segment.End.Sub(segment.Begin)
		took[a.t.Spans[segment.Span-1].Stage] += d
		covered += d
	}
	a.t.Covered = float64(covered) / float64(all)
	for stage, d := range took {
		a.t.Stages = append(a.t.Stages, Total{Stage: stage, Took: d, Share: float64(d) / float64(all)})
	}
	slices.SortFunc(a.t.Stages, func(x, y Total) int { return cmp.Or(cmp.Compare(y.Took, x.Took), cmp.Compare(x.Stage, y.Stage)) })
}
