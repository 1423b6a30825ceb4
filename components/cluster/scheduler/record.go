package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"kubelith.io/kubelith/trace/record"
)

const (
	// maxNodes is how many nodes a verdict names, and maxScores of how many nodes a record has the scores.
	maxNodes  = 16
	maxScores = 8
	// maxVerdicts is how many verdicts of filters a record has: upstream's need fewer. The last one has the others.
	maxVerdicts = 16
	// minWait is the time from which on a wait for permission is a step.
	minWait = time.Millisecond
)

// recorder records attempts to schedule pods and to bind them. It stands between upstream's scheduler and its profiles,
// so it sees the scheduler's calls of the framework, but not those of plugins: preemption, which runs filters on nodes
// without some of their pods, and the batches of opportunistic batching have the framework itself.
type recorder struct {
	to *record.Store
	// now is the attempt that the scheduler works on, nil between attempts. Upstream schedules one pod after another.
	now *attempt
	// rejected are the nodes of that attempt.
	rejected []rejection
	// waiting has the attempts of pods that wait for permission, by UID.
	waiting sync.Map
}

type rejection struct {
	node   string
	status *fwk.Status
}

// attempt is one to schedule a pod, and then to bind it. It is kept in the state of the cycle.
type attempt struct {
	record record.Record
	began  time.Time
	// filters is when filters began to run; zero: not yet, or no longer.
	filters time.Time
	scores  time.Time
	hint    string
	nodes   int          // in the snapshot
	n       atomic.Int32 // rejected
	fit     *framework.FitError
	bind    record.Record
	decided time.Time
}

const stateKey fwk.StateKey = "kubelith.io/record"

// Clone implements fwk.StateData. Preemption copies states, and does not come back here with them.
func (a *attempt) Clone() fwk.StateData { return a }

func attemptOf(state fwk.CycleState) *attempt {
	data, err := state.Read(stateKey)
	if err != nil {
		return nil
	}
	a, _ := data.(*attempt)
	return a
}

// recordTo lets a scheduler record what it does. It is called before the scheduler runs.
func recordTo(to *record.Store, sched *scheduler.Scheduler) {
	if to == nil {
		return
	}
	r := &recorder{to: to}
	for name, profile := range sched.Profiles {
		sched.Profiles[name] = &recordedFramework{Framework: profile, recorder: r}
	}
	schedule := sched.SchedulePod
	sched.SchedulePod = func(ctx context.Context, f framework.Framework, state fwk.CycleState, pod *framework.QueuedPodInfo) (scheduler.ScheduleResult, error) {
		if state.IsPodGroupSchedulingCycle() { // one of several placements that are tried for a group
			return schedule(ctx, f, state, pod)
		}
		a := r.begin(f, state, pod.Pod)
		result, err := schedule(ctx, f, state, pod)
		r.end(a, f, result, err)
		return result, err
	}
}

// begin begins an attempt.
func (r *recorder) begin(f framework.Framework, state fwk.CycleState, pod *corev1.Pod) *attempt {
	a := &attempt{began: time.Now()}
	a.record = record.Record{
		Object: record.Ref{UID: string(pod.UID), Resource: "pods", Namespace: pod.Namespace, Name: pod.Name},
		Stage:  record.Schedule, Actor: f.ProfileName(), Start: r.to.Clock().At(a.began), Steps: make([]record.Step, 0, 5),
	}
	if nodes, err := f.SnapshotSharedLister().NodeInfos().List(); err == nil {
		a.nodes = len(nodes)
	}
	if len(r.rejected) <= a.nodes { // the nominated one may be asked twice
		r.rejected = make([]rejection, a.nodes+1)
	}
	a.hint = pod.Status.NominatedNodeName
	state.Write(stateKey, a)
	r.now = a
	return a
}

func (a *attempt) step(name string, from time.Time, err string) {
	a.record.Steps = append(a.record.Steps, record.Step{Name: name, Offset: from.Sub(a.began), Duration: time.Since(from), Error: err})
}

// filtered ends the step of the filters.
func (a *attempt) filtered() {
	if !a.filters.IsZero() {
		a.step("filter", a.filters, "")
		a.filters = time.Time{}
	}
}

// end ends the search for a node. What follows is reserve and permit or, if there is none, postfilter.
func (r *recorder) end(a *attempt, f framework.Framework, result scheduler.ScheduleResult, err error) {
	r.now = nil
	a.filtered()
	r.verdicts(a)
	switch {
	case err == nil:
		a.record.Name = result.SuggestedHost
		if a.hint != "" && a.hint == result.SuggestedHost {
			a.record.Message = "tried this node first"
		}
		return
	case errors.As(err, &a.fit) && f.HasPostFilterPlugins():
		return // see RunPostFilterPlugins
	}
	r.decide(a, err.Error())
}

// decide records an attempt with its outcome.
func (r *recorder) decide(a *attempt, err string) {
	a.decided = time.Now()
	a.record.Error, a.record.Duration = err, a.decided.Sub(a.began)
	r.to.Add(a.record)
}

// verdicts groups what filters rejected.
func (r *recorder) verdicts(a *attempt) {
	rejected := r.rejected[:min(int(a.n.Load()), len(r.rejected))]
	if a.hint != "" && len(rejected) > 1 && slices.ContainsFunc(rejected[1:], func(o rejection) bool { return o.node == rejected[0].node }) {
		rejected[0] = rejection{}
	}
	before := a.record.Verdicts // those of prefilter
	var verdicts []record.Verdict
	var reasons [][]string // by verdict
	for i := range rejected {
		status := rejected[i].status
		if status == nil {
			continue
		}
		why, at := status.Reasons(), 0
		for at < len(reasons) && (verdicts[at].Plugin != status.Plugin() || !slices.Equal(reasons[at], why)) {
			at++
		}
		if at == maxVerdicts {
			at--
			verdicts[at].Reason, verdicts[at].Plugin = "other reasons", ""
		} else if at == len(reasons) {
			reasons = append(reasons, why)
			verdicts = append(verdicts, record.Verdict{Plugin: status.Plugin(), Reason: strings.Join(why, ", ")})
		}
		v := &verdicts[at]
		if v.Count++; v.Count <= maxNodes {
			v.Nodes = append(v.Nodes, rejected[i].node)
		}
	}
	clear(rejected)
	slices.SortStableFunc(verdicts, func(a, b record.Verdict) int { return cmp.Compare(b.Count, a.Count) })
	a.record.Verdicts = append(before, verdicts...)
}

// recordedFramework is a profile whose work is recorded.
type recordedFramework struct {
	framework.Framework
	recorder *recorder
}

// RunPreFilterPlugins implements framework.Framework.
func (f *recordedFramework) RunPreFilterPlugins(
	ctx context.Context, state fwk.CycleState, pod *corev1.Pod,
) (*fwk.PreFilterResult, *fwk.Status, sets.Set[string]) {
	a := f.recorder.now
	if a == nil {
		return f.Framework.RunPreFilterPlugins(ctx, state, pod)
	}
	began := time.Now()
	result, status, by := f.Framework.RunPreFilterPlugins(ctx, state, pod)
	refused := ""
	if !status.IsSuccess() {
		refused = status.Message()
		a.record.Verdicts = append(a.record.Verdicts, record.Verdict{Count: a.nodes, Plugin: status.Plugin(), Reason: refused})
	} else if !result.AllNodes() && a.nodes > len(result.NodeNames) {
		a.record.Verdicts = append(a.record.Verdicts, record.Verdict{
			Count: a.nodes - len(result.NodeNames), Plugin: strings.Join(sets.List(by), ", "), Reason: "excluded before the filters",
		})
	}
	a.step("prefilter", began, refused)
	if refused == "" {
		a.filters = time.Now()
	}
	return result, status, by
}

// GetNodeHint implements framework.Framework.
func (f *recordedFramework) GetNodeHint(ctx context.Context, pod *corev1.Pod, signature fwk.PodSignature, state fwk.CycleState, cycle int64) string {
	hint := f.Framework.GetNodeHint(ctx, pod, signature, state, cycle)
	if a := f.recorder.now; a != nil && a.hint == "" {
		a.hint = hint
	}
	return hint
}

// RunFilterPluginsWithNominatedPods implements framework.Framework. It runs for several nodes at a time.
func (f *recordedFramework) RunFilterPluginsWithNominatedPods(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	status := f.Framework.RunFilterPluginsWithNominatedPods(ctx, state, pod, node)
	if a := f.recorder.now; a != nil && !status.IsSuccess() {
		if i := int(a.n.Add(1)) - 1; i < len(f.recorder.rejected) {
			f.recorder.rejected[i] = rejection{node.Node().Name, status}
		}
	}
	return status
}

// RunPreScorePlugins implements framework.Framework.
func (f *recordedFramework) RunPreScorePlugins(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	if a := f.recorder.now; a != nil {
		a.filtered()
		a.scores = time.Now()
	}
	return f.Framework.RunPreScorePlugins(ctx, state, pod, nodes)
}

// RunScorePlugins implements framework.Framework.
func (f *recordedFramework) RunScorePlugins(
	ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo,
) ([]fwk.NodePluginScores, *fwk.Status) {
	scores, status := f.Framework.RunScorePlugins(ctx, state, pod, nodes)
	if a := f.recorder.now; a != nil && !a.scores.IsZero() {
		a.step("score", a.scores, "")
		a.record.Scores = best(scores)
	}
	return scores, status
}

// best returns the scores of the nodes with the highest ones.
func best(all []fwk.NodePluginScores) []record.Score {
	top := make([]*fwk.NodePluginScores, 0, maxScores+1)
	for i := range all {
		s := &all[i]
		if len(top) == maxScores && s.TotalScore <= top[maxScores-1].TotalScore {
			continue
		}
		at := len(top)
		for at > 0 && top[at-1].TotalScore < s.TotalScore {
			at--
		}
		top = slices.Insert(top, at, s)
		top = top[:min(len(top), maxScores)]
	}
	scores := make([]record.Score, len(top))
	for i, s := range top {
		scores[i] = record.Score{Node: s.Name, Total: s.TotalScore, Plugins: make(map[string]int64, len(s.Scores))}
		for _, p := range s.Scores {
			scores[i].Plugins[p.Name] = p.Score
		}
	}
	return scores
}

// RunPostFilterPlugins implements framework.Framework: it looks for pods to preempt.
func (f *recordedFramework) RunPostFilterPlugins(
	ctx context.Context, state fwk.CycleState, pod *corev1.Pod, rejected fwk.NodeToStatusReader,
) (*fwk.PostFilterResult, *fwk.Status) {
	a := attemptOf(state)
	if a == nil || a.fit == nil {
		return f.Framework.RunPostFilterPlugins(ctx, state, pod, rejected)
	}
	began := time.Now()
	result, status := f.Framework.RunPostFilterPlugins(ctx, state, pod, rejected)
	a.step("postfilter", began, "")
	if result != nil && result.NominatingInfo != nil && result.NominatedNodeName != "" {
		a.record.Message = fmt.Sprintf("preempts pods on node %s, which is nominated", result.NominatedNodeName)
	}
	fit := *a.fit
	fit.Diagnosis.PostFilterMsg = status.Message()
	a.fit = nil
	f.recorder.decide(a, fit.Error())
	return result, status
}

// RunReservePluginsReserve implements framework.Framework.
func (f *recordedFramework) RunReservePluginsReserve(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	a := attemptOf(state)
	if a == nil {
		return f.Framework.RunReservePluginsReserve(ctx, state, pod, node)
	}
	began := time.Now()
	status := f.Framework.RunReservePluginsReserve(ctx, state, pod, node)
	a.step("reserve", began, failure(status))
	if !status.IsSuccess() {
		a.record.Name = ""
		f.recorder.decide(a, failure(status))
	}
	return status
}

// RunPermitPlugins implements framework.Framework: the last part of the attempt.
func (f *recordedFramework) RunPermitPlugins(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) (map[string]time.Duration, *fwk.Status) {
	a := attemptOf(state)
	if a == nil {
		return f.Framework.RunPermitPlugins(ctx, state, pod, node)
	}
	began := time.Now()
	waits, status := f.Framework.RunPermitPlugins(ctx, state, pod, node)
	a.step("permit", began, failure(status))
	if failure(status) != "" {
		a.record.Name = ""
		f.recorder.decide(a, failure(status))
		return waits, status
	}
	f.recorder.decide(a, "")
	a.bind = record.Record{Object: a.record.Object, Stage: record.Bind, Name: node, Actor: a.record.Actor, Start: f.recorder.to.Clock().At(a.decided)}
	if status.IsWait() {
		f.recorder.waiting.Store(pod.UID, a)
	}
	return waits, status
}

// failure is why a step failed, empty if it did not.
func failure(status *fwk.Status) string {
	if status.IsSuccess() || status.IsWait() {
		return ""
	}
	return cmp.Or(status.Message(), status.Code().String())
}

func (a *attempt) bindStep(name string, from time.Time, status *fwk.Status) {
	a.bind.Steps = append(a.bind.Steps, record.Step{Name: name, Offset: from.Sub(a.decided), Duration: time.Since(from), Error: failure(status)})
}

// bound records the binding, once.
func (r *recorder) bound(a *attempt, status *fwk.Status) {
	if a.bind.Stage == "" {
		return
	}
	a.bind.Error, a.bind.Duration = failure(status), time.Since(a.decided)
	r.to.Add(a.bind)
	a.bind.Stage = ""
}

// WaitOnPermit implements framework.Framework.
func (f *recordedFramework) WaitOnPermit(ctx context.Context, pod *corev1.Pod) *fwk.Status {
	began := time.Now()
	status := f.Framework.WaitOnPermit(ctx, pod)
	if data, ok := f.recorder.waiting.LoadAndDelete(pod.UID); ok {
		a := data.(*attempt)
		if time.Since(began) >= minWait || !status.IsSuccess() {
			a.bindStep("permit", began, status)
		}
		if !status.IsSuccess() {
			f.recorder.bound(a, status)
		}
	}
	return status
}

// RunPreBindPlugins implements framework.Framework.
func (f *recordedFramework) RunPreBindPlugins(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	a := attemptOf(state)
	if a == nil {
		return f.Framework.RunPreBindPlugins(ctx, state, pod, node)
	}
	began := time.Now()
	status := f.Framework.RunPreBindPlugins(ctx, state, pod, node)
	a.bindStep("prebind", began, status)
	if !status.IsSuccess() {
		f.recorder.bound(a, status)
	}
	return status
}

// RunBindPlugins implements framework.Framework.
func (f *recordedFramework) RunBindPlugins(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	a := attemptOf(state)
	if a == nil {
		return f.Framework.RunBindPlugins(ctx, state, pod, node)
	}
	began := time.Now()
	status := f.Framework.RunBindPlugins(ctx, state, pod, node)
	a.bindStep("bind", began, status)
	f.recorder.bound(a, status)
	return status
}

// RunPostBindPlugins implements framework.Framework. It comes here first if an extender has bound the pod.
func (f *recordedFramework) RunPostBindPlugins(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) {
	if a := attemptOf(state); a != nil {
		f.recorder.bound(a, nil)
	}
	f.Framework.RunPostBindPlugins(ctx, state, pod, node)
}
