package apiserver

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"kubelith.io/kubelith/trace/record"
)

// The name of an object that may not be created is in the body of the request, which upstream does not read.

const (
	// maxDenied is how much of the body of a denied request is read, in bytes, and denyWait for how long at most. The
	// client has its answer by then.
	maxDenied = 64 << 10
	denyWait  = time.Second
)

// unnamed reports whether authorization denied the creation of an object.
func (p *pending) unnamed(code int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.denied && code == http.StatusForbidden && p.info != nil && p.info.Verb == "create" && p.info.Name == ""
}

// name reads the name and the owners of an object from a request. It keeps nothing else of it.
func (p *pending) name(w http.ResponseWriter, req *http.Request) {
	if req.Body == nil || req.ContentLength <= 0 || req.ContentLength > maxDenied || req.Header.Get("Content-Encoding") != "" {
		return
	}
	control := http.NewResponseController(w)
	if err := control.SetReadDeadline(time.Now().Add(denyWait)); err == nil {
		defer control.SetReadDeadline(time.Time{})
	} else if req.TLS != nil {
		return // nothing would end a slow one
	}
	body, err := io.ReadAll(io.LimitReader(req.Body, maxDenied))
	if err != nil {
		return
	}
	o := metadata(body)
	name := o.Name
	if name == "" {
		name = o.GenerateName
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if name == "" || p.tried || p.info == nil {
		return
	}
	p.object = record.Object{Owners: owners(&o), Ref: record.Ref{
		Resource:  schema.GroupResource{Group: p.info.APIGroup, Resource: p.info.Resource}.String(),
		Namespace: p.info.Namespace, Name: name,
	}}
}

// metadata reads the metadata of an object in JSON or protobuf; it is empty if that fails.
func metadata(body []byte) metav1.ObjectMeta {
	var o metav1.PartialObjectMetadata
	if encoded, ok := bytes.CutPrefix(body, []byte("k8s\x00")); ok {
		var unknown runtime.Unknown
		// Field 1 of all objects is their metadata.
		if unknown.Unmarshal(encoded) != nil || o.Unmarshal(unknown.Raw) != nil {
			return metav1.ObjectMeta{}
		}
		return o.ObjectMeta
	}
	if json.Unmarshal(body, &o) != nil {
		return metav1.ObjectMeta{}
	}
	return o.ObjectMeta
}
