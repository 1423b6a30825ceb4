package why

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/base/oneline"
)

// Version is the value of apiVersion in the JSON of an answer.
const Version = "why.kubelith.io/v1"

// Status is the state of the requested object.
type Status string

// The states of an object.
const (
	Healthy     Status = "healthy"     // as it should be
	Progressing Status = "progressing" // on its way there, without a fault
	Broken      Status = "broken"      // not as it should be; it stays so until something changes
	Absent      Status = "absent"      // it does not exist
)

// Object names an object of the cluster as kubectl does: TYPE/NAME.
type Object struct {
	// Type is the kind in lower case, with its group where that is not built in: certificate.cert-manager.io.
	Type      string `json:"type"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
}

// String returns TYPE/NAME.
func (o Object) String() string { return o.Type + "/" + o.Name }

// Answer is what Explain returns.
type Answer struct {
	APIVersion string `json:"apiVersion"`
	Object     Object `json:"object"`
	Finding
	// Unread is what the caller may not read and would have helped, one sentence each.
	Unread []string `json:"unread,omitempty"`
}

// Finding is what is known about an object.
type Finding struct {
	Status Status `json:"status"`
	Code   Code   `json:"code"`
	// Cause is one sentence without a full stop. For a healthy object it says since when.
	Cause string `json:"cause"`
	// Since is when the state began, as far as the API has it.
	Since    *metav1.Time `json:"since,omitempty"`
	Evidence []Evidence   `json:"evidence"`
	// Remedy is what to do: sentences, and commands, which begin with "kubelith ".
	Remedy []string `json:"remedy,omitempty"`
	// NotBecause is what a person would suspect and is not the cause.
	NotBecause []RuledOut `json:"notBecause,omitempty"`
	// Chain leads from the requested object to the one that is the cause; empty if they are the same.
	Chain []Object `json:"chain,omitempty"`
}

// Evidence is one observation.
type Evidence struct {
	// Source is where it was read: "pod/web .status.containerStatuses[app].state", "event FailedMount of pod/web".
	Source string `json:"source"`
	Text   string `json:"text"`
	// Time is when it was observed, or began; nil if the API does not say.
	Time *metav1.Time `json:"time,omitempty"`
}

// RuledOut is a suspect that is not the cause, and how that is known.
type RuledOut struct {
	Code     Code   `json:"code"`
	Text     string `json:"text"`
	Evidence string `json:"evidence"`
}

// maxRuledOut bounds what a reader has to read.
const maxRuledOut = 5

// found returns a finding; its cause is a sentence.
func found(status Status, code Code, cause string) *Finding {
	return &Finding{Status: status, Code: code, Cause: sentence(cause)}
}

func broken(code Code, cause string) *Finding { return found(Broken, code, cause) }

// since sets when the state began, if t is known.
func (f *Finding) since(t metav1.Time) *Finding {
	if !t.IsZero() {
		f.Since = &t
	}
	return f
}

// saw adds an observation without a time, unless its text is empty.
func (f *Finding) saw(source, text string) *Finding { return f.sawAt(source, text, metav1.Time{}) }

// sawAt adds an observation, unless its text is empty.
func (f *Finding) sawAt(source, text string, at metav1.Time) *Finding {
	if text = strings.TrimSpace(text); text == "" {
		return f
	}
	e := Evidence{Source: source, Text: text}
	if !at.IsZero() {
		e.Time = &at
	}
	f.Evidence = append(f.Evidence, e)
	return f
}

// do adds sentences and commands to the remedy.
func (f *Finding) do(steps ...string) *Finding {
	f.Remedy = append(f.Remedy, steps...)
	return f
}

// not adds a suspect that was ruled out. The first entry of a code stays.
func (f *Finding) not(code Code, text, evidence string) *Finding {
	known := slices.ContainsFunc(f.NotBecause, func(r RuledOut) bool { return r.Code == code })
	if code != f.Code && !known && len(f.NotBecause) < maxRuledOut {
		f.NotBecause = append(f.NotBecause, RuledOut{Code: code, Text: text, Evidence: evidence})
	}
	return f
}

// under says that the cause of above's state is this finding, of another object: below. It keeps status, code, cause
// and remedy, and puts above in front of the chain. A healthy or progressing finding passes as it is.
func (f *Finding) under(above, below Object) *Finding {
	if len(f.Chain) == 0 {
		f.Chain = []Object{below}
	}
	f.Chain = append([]Object{above}, f.Chain...)
	return f
}

// sentence returns a text as one line without a full stop.
func sentence(text string) string {
	return strings.TrimSuffix(oneline.Of(text), ".")
}

// ago formats a duration as a person writes it: 12s, 1m30s, 45m, 3h20m, 5d.
func ago(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 2*time.Minute:
		return d.Round(time.Second).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour && d%time.Hour < time.Minute:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}
