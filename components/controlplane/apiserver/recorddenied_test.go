package apiserver

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// FuzzMetadata: the body of a denied request is anything.
func FuzzMetadata(f *testing.F) {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "a", OwnerReferences: []metav1.OwnerReference{{UID: "1"}}}}
	raw, err := o.Marshal()
	if err != nil {
		f.Fatal(err)
	}
	encoded, err := (&runtime.Unknown{Raw: raw}).Marshal()
	if err != nil {
		f.Fatal(err)
	}
	seed := append([]byte("k8s\x00"), encoded...)
	if got := metadata(seed); got.Name != "a" || len(owners(&got)) != 1 {
		f.Fatalf("%+v", got)
	}
	f.Add(seed)
	f.Add(seed[:len(seed)-3])
	f.Add([]byte(`{"metadata":{"name":"a","ownerReferences":[{"uid":"1"}]},"data":{"a":"b"}}`))
	f.Add([]byte(`{"metadata":"a"}`))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, body []byte) {
		o := metadata(body)
		if len(o.Name) > len(body)*3 || len(owners(&o)) > len(body) { // bytes that are no UTF-8 grow
			t.Errorf("%q of %q", o.Name, body)
		}
	})
}

// FuzzTraceparent: a traceparent is what a client sends.
func FuzzTraceparent(f *testing.F) {
	f.Add("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	f.Add("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-ever")
	f.Add("00-------")
	f.Fuzz(func(t *testing.T, value string) {
		trace, parent := parseTrace(value)
		if trace == "" && parent == "" {
			return
		}
		if len(trace) != 32 || len(parent) != 16 || !strings.Contains(value, trace+"-"+parent) || strings.Trim(trace+parent, "0123456789abcdef") != "" {
			t.Errorf("%q: %q, %q", value, trace, parent)
		}
	})
}

// TestRefusal: what is kept of an answer of the API.
func TestRefusal(t *testing.T) {
	status := func(reason, message string) string {
		return `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"` + message + `","reason":"` + reason + `","code":403}`
	}
	for _, c := range []struct {
		body         string
		code         int
		want, secret string
	}{
		{status("Forbidden", "no"), 403, "no", "Forbidden (the message is " + hidden + ")"},
		{status("AlreadyExists", "is there"), 409, "is there", "is there"},
		{"too many\nof them", 429, "too many", "Too Many Requests"},
		{"", 504, "Gateway Timeout", "Gateway Timeout"},
		{"k8s\x00", 500, "Internal Server Error", "Internal Server Error"},
	} {
		if got := refusal(c.code, []byte(c.body), false); got != c.want {
			t.Errorf("%q: %q, want %q", c.body, got, c.want)
		}
		if got := refusal(c.code, []byte(c.body), true); got != c.secret {
			t.Errorf("%q of a Secret: %q, want %q", c.body, got, c.secret)
		}
	}
}
