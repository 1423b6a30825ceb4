package why

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/trace"
	"kubelith.io/kubelith/trace/record"
	"kubelith.io/kubelith/trace/render"
)

// Record is the flight recorder of a server: trace/api's client.
type Record interface {
	// Timeline returns what the recorder has of an object; an error says that it has nothing, or is not there.
	Timeline(ctx context.Context, resource, namespace, name string, after uint64) (*trace.Timeline, error)
}

// recorded explains an object that does not exist from the record: it was deleted, or refused. It returns nil if the
// record says neither.
func (r *Reader) recorded(ctx context.Context, t Target) *Finding {
	if r.Record == nil {
		return nil
	}
	timeline, err := r.Record.Timeline(ctx, t.Resource.GroupResource().String(), t.Namespace, t.Name, 0)
	if err != nil || len(timeline.Spans) == 0 {
		return nil
	}
	begin := timeline.Spans[0]
	switch {
	case timeline.Verb == "delete" && timeline.Settled:
		return deleted(t, timeline)
	case begin.Stage == record.Request && begin.Error != "" && timeline.Verb == "create":
		code, cause, remedy := refusedFor(begin.Error)
		if code == CreateRefused {
			remedy = "The message is the API server's: change what it names, and create the object again."
		}
		f := found(Absent, code, fmt.Sprintf("%s does not exist: its creation was refused: %s", t.Object(), cause)).since(metav1.NewTime(begin.End))
		return f.sawAt("record: "+timeline.SetOff, begin.Error, metav1.NewTime(begin.End)).do(remedy)
	}
	return nil
}

// deleted explains an object that was deleted: by whom, and how it was before.
func deleted(t Target, timeline *trace.Timeline) *Finding {
	who := strings.TrimPrefix(timeline.SetOff, "delete by ")
	cause := fmt.Sprintf("%s does not exist any more: %s deleted it", t.Object(), who)
	if timeline.Before != "" {
		cause += "; before that: " + timeline.Before
	}
	f := found(Absent, Deleted, cause).since(metav1.NewTime(timeline.Begin))
	f.sawAt("record: "+timeline.SetOff, fmt.Sprintf("it was gone after %s", ago(timeline.End.Sub(timeline.Begin))), metav1.NewTime(timeline.Begin))
	for _, failure := range timeline.Failures {
		f.sawAt("record: "+strings.TrimSpace(string(failure.Stage)+" "+failure.Name), failure.Error, metav1.NewTime(failure.Begin))
	}
	command := "kubelith trace " + t.Object().String()
	if t.Namespace != "" {
		command += " -n " + t.Namespace
	}
	return f.do(command)
}

// took adds to a healthy finding how long the object's last change took, and what took longest, if the record has it.
func (r *Reader) took(ctx context.Context, t Target, f *Finding) {
	if r.Record == nil || f.Status != Healthy || f.Code != OK && f.Code != Completed {
		return
	}
	timeline, err := r.Record.Timeline(ctx, t.Resource.GroupResource().String(), t.Namespace, t.Name, 0)
	if err != nil || !timeline.Settled || timeline.Verb == "delete" || len(timeline.Stages) == 0 || timeline.Stages[0].Stage == record.Request {
		return
	}
	what, most := "its start", timeline.Stages[0]
	if timeline.Verb != "create" {
		what = "its last change"
	}
	f.Cause += fmt.Sprintf("; %s took %s, %.0f %% of it %s (%s)",
		what, render.Took(timeline.End.Sub(timeline.Begin)), 100*most.Share, most.Stage, render.About(most.Stage))
	f.sawAt("record: "+timeline.SetOff, timeline.Outcome, metav1.NewTime(timeline.End))
}

// lastRun returns the record of how a container ended; nil: there is none of this end.
func (r *Reader) lastRun(ctx context.Context, pod *corev1.Pod, c container, end *corev1.ContainerStateTerminated) *trace.Span {
	if r.Record == nil || end.ExitCode != 137 {
		return nil
	}
	timeline, err := once(r, "get the record of pod/"+pod.Name+" in namespace "+pod.Namespace, func() (*trace.Timeline, error) {
		return r.Record.Timeline(ctx, "pods", pod.Namespace, pod.Name, 0)
	})
	if err != nil || timeline.Object.UID != string(pod.UID) {
		return nil
	}
	for i := range timeline.Ended {
		// The API's times have seconds only.
		if s := &timeline.Ended[i]; s.Name == c.spec.Name && s.End.Sub(end.FinishedAt.Time).Abs() <= 2*time.Second {
			return s
		}
	}
	return nil
}
