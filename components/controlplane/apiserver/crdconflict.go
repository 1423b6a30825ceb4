package apiserver

import (
	"bytes"
	"io"
	"net/http"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/scheme"
	"k8s.io/client-go/rest"
)

// reportConflicts returns the client configuration for the controllers of the API extensions. With it, an update of a
// CustomResourceDefinition that is being deleted fails with an error that they retry, not with a conflict.
//
// Upstream's finalizer assumes that a conflict comes from another client, whose update will wake it. But when it runs
// again too early, because the storage of the instances was not ready the first time, the conflict is with its own last
// update, and updates that change nothing but its own condition do not wake it: the object stays Terminating, with
// "could not list instances: storage is (re)initializing", until the informer's resync, for up to five minutes.
// Source: sync and updateCustomResourceDefinition in
// k8s.io/apiextensions-apiserver/pkg/controller/finalizer/crd_finalizer.go.
func reportConflicts(loopback *rest.Config) *rest.Config {
	c := rest.CopyConfig(loopback)
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return conflictReporter{next} })
	return c
}

type conflictReporter struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t conflictReporter) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodPut || r.GetBody == nil || !strings.HasSuffix(r.URL.Path, "/status") ||
		!strings.HasPrefix(r.URL.Path, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/") {
		return t.next.RoundTrip(r)
	}
	response, err := t.next.RoundTrip(r)
	if err != nil || response.StatusCode != http.StatusConflict || !deleting(r) {
		return response, err
	}
	response.Body.Close()
	text := "the object has been changed by an update that is not known here yet"
	response.StatusCode, response.Status = http.StatusInternalServerError, "500 Internal Server Error"
	response.Header = http.Header{"Content-Type": []string{"text/plain"}}
	response.Body, response.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
	return response, nil
}

// deleting reports whether the definition in the body of a request is being deleted.
func deleting(r *http.Request) bool {
	body, err := r.GetBody()
	if err != nil {
		return false
	}
	defer body.Close()
	var content bytes.Buffer
	if _, err := content.ReadFrom(body); err != nil {
		return false
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(content.Bytes(), nil, nil)
	if err != nil {
		return false
	}
	crd, ok := object.(*apiextensionsv1.CustomResourceDefinition)
	return ok && !crd.DeletionTimestamp.IsZero()
}
