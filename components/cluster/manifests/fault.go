package manifests

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	"kubelith.io/kubelith/base/oneline"
)

// fault is an error in a file, and its line: line 0 is the file as a whole.
type fault struct {
	line int
	text string
}

// in formats the fault for the user: FILE:LINE: TEXT.
func (f fault) in(file string) string {
	if f.line == 0 {
		return file + ": " + f.text
	}
	return fmt.Sprintf("%s:%d: %s", file, f.line, f.text)
}

// explain finds the lines for an API error about a document.
func explain(d document, err error) []fault {
	what := describe(d.object) + ": "
	if meta.IsNoMatchError(err) {
		return []fault{{lineOf(d.node, "kind"), fmt.Sprintf("%sthe API has no kind %s in %s: apply its CustomResourceDefinition, or correct apiVersion and kind",
			what, d.object.GetKind(), d.object.GetAPIVersion())}}
	}
	var faults []fault
	add := func(path, text string) { faults = append(faults, fault{lineOf(d.node, path), what + text}) }
	var status apierrors.APIStatus
	if apierrors.IsInvalid(err) && errors.As(err, &status) && status.Status().Details != nil {
		for _, cause := range status.Status().Details.Causes {
			add(cause.Field, strings.TrimPrefix(cause.Field+": "+oneline.Of(cause.Message), ": "))
		}
	}
	if m := typedPatch.FindStringSubmatch(err.Error()); m != nil {
		for line := range strings.Lines(m[1]) {
			path, text, ok := strings.Cut(strings.TrimSpace(line), ": ")
			switch {
			case !ok:
			case text == "field not declared in schema":
				add(path, "unknown field "+strings.TrimPrefix(path, "."))
			default:
				add(path, strings.TrimPrefix(path, ".")+": "+text)
			}
		}
	}
	for _, m := range strictDecoding.FindAllStringSubmatch(err.Error(), -1) {
		add(m[1], "unknown field "+m[1])
	}
	if len(faults) == 0 {
		return []fault{{d.line, what + oneline.Of(err.Error())}}
	}
	return faults
}

var (
	// typedPatch is how server-side apply rejects fields that do not fit the schema: one field, or "errors:" and a line
	// for each.
	// Source: k8s.io/apimachinery/pkg/util/managedfields/internal/structuredmerge.go,
	// structured-merge-diff/typed/helpers.go.
	typedPatch = regexp.MustCompile(`(?s)^failed to create typed patch object \(.*?\): (.*)$`)
	// strictDecoding is how field validation names unknown fields.
	strictDecoding = regexp.MustCompile(`unknown field "([^"]+)"`)
)
