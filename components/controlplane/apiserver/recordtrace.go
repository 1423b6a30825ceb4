package apiserver

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// traceHeader names the trace and span of the client.
	// Source: W3C Trace Context.
	traceHeader = "Traceparent"
	// traceAnnotation names those to which an object belongs.
	// Source: KEP-5915, asynchronous trace propagation.
	traceAnnotation = "tracing.k8s.io/traceparent"
	// maxTraces is of how many annotated objects the children get the annotation.
	maxTraces = 4096
)

// passTrace gives a new object the annotation of the object that controls it, so that the controllers of users can
// continue the trace. An object that has one keeps it, and nothing else changes an object.
func (r *flight) passTrace(object runtime.Object) {
	if r.traces.Len() == 0 {
		return
	}
	o, err := meta.Accessor(object)
	if err != nil || o.GetAnnotations()[traceAnnotation] != "" {
		return
	}
	owner := metav1.GetControllerOfNoCopy(o)
	if owner == nil {
		return
	}
	value, ok := r.traces.Get(string(owner.UID))
	if !ok {
		return
	}
	annotations := make(map[string]string, len(o.GetAnnotations())+1)
	for k, v := range o.GetAnnotations() {
		annotations[k] = v
	}
	annotations[traceAnnotation] = value.(string)
	o.SetAnnotations(annotations)
}

// keepTrace remembers an object's annotation for its children.
func (r *flight) keepTrace(o metav1.Object) {
	if value := o.GetAnnotations()[traceAnnotation]; value != "" {
		if trace, _ := parseTrace(value); trace != "" {
			r.traces.Add(string(o.GetUID()), strings.Clone(value))
		}
	}
}

// traceOf returns the trace to which an object belongs: the one of its annotation or, when it is created, that of the
// request.
func (p *pending) traceOf(o metav1.Object, created bool) (trace, parent string) {
	if value := o.GetAnnotations()[traceAnnotation]; value != "" {
		return parseTrace(value)
	}
	if created && p.parent != "" {
		return parseTrace(p.parent)
	}
	return "", ""
}

// maxTraceparent is the length of a traceparent: 55 in version 00, with some room for later ones.
const maxTraceparent = 100

// parseTrace returns the trace ID and the span ID of a traceparent, or nothing if it is none.
func parseTrace(value string) (trace, parent string) {
	if len(value) > maxTraceparent {
		return "", ""
	}
	parts := strings.Split(value, "-")
	if len(parts) < 4 || len(parts[0]) != 2 || len(parts[1]) != 32 || len(parts[2]) != 16 || len(parts[3]) != 2 {
		return "", ""
	}
	if parts[0] == "ff" || parts[0] == "00" && len(parts) != 4 {
		return "", ""
	}
	for _, part := range parts[:4] {
		if strings.Trim(part, "0123456789abcdef") != "" {
			return "", ""
		}
	}
	if strings.Trim(parts[1], "0") == "" || strings.Trim(parts[2], "0") == "" {
		return "", ""
	}
	return strings.Clone(parts[1]), strings.Clone(parts[2])
}
