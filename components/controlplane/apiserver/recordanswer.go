package apiserver

import (
	"fmt"
	"net/http"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

const (
	// maxRefusal is how much of a refusal is kept, in bytes, to find its message.
	maxRefusal = 16 << 10
	// hidden replaces what may name a Secret's content.
	hidden = "not recorded: it may have parts of the Secret"
)

// watchedAnswer sees what is answered to a request that writes.
type watchedAnswer struct {
	http.ResponseWriter

	mu   sync.Mutex
	code int
	body []byte // of a refusal
}

var _ responsewriter.UserProvidedDecorator = (*watchedAnswer)(nil)

// watchAnswer returns a writer with the abilities of w, and what is written to it.
func watchAnswer(w http.ResponseWriter) (http.ResponseWriter, *watchedAnswer) {
	a := &watchedAnswer{ResponseWriter: w}
	return responsewriter.WrapForHTTP1Or2(a), a
}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (a *watchedAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (a *watchedAnswer) WriteHeader(code int) {
	a.mu.Lock()
	if a.code == 0 && code >= http.StatusOK {
		a.code = code
	}
	a.mu.Unlock()
	a.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (a *watchedAnswer) Write(data []byte) (int, error) {
	a.mu.Lock()
	if a.code == 0 {
		a.code = http.StatusOK
	}
	if a.code >= http.StatusBadRequest && len(a.body) < maxRefusal {
		a.body = append(a.body, data[:min(len(data), maxRefusal-len(a.body))]...)
	}
	a.mu.Unlock()
	return a.ResponseWriter.Write(data)
}

func (a *watchedAnswer) result() (code int, body []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.code == 0 { // it panicked, or has an empty body
		return http.StatusOK, nil
	}
	return a.code, a.body
}

// refusal returns why a request was refused. With secret it is about a Secret: then only messages are kept that
// upstream writes from its name.
func refusal(code int, body []byte, secret bool) string {
	status := &metav1.Status{}
	if _, _, err := legacyscheme.Codecs.UniversalDeserializer().Decode(body, nil, status); err != nil || status.Message == "" {
		text, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
		if text == "" || secret || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' }) {
			text = http.StatusText(code)
		}
		return text
	}
	if secret {
		switch status.Reason {
		case metav1.StatusReasonAlreadyExists, metav1.StatusReasonConflict, metav1.StatusReasonNotFound:
		default:
			return fmt.Sprintf("%s (the message is %s)", status.Reason, hidden)
		}
	}
	return status.Message
}
