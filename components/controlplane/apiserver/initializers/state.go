package initializers

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// Annotation holds the State of a hidden object, as JSON. An object without it is visible.
	Annotation = "initializers.kubelith.io/state"
	// changeAnnotation carries a patch of the State from the request's body to admission, which removes it.
	changeAnnotation = "initializers.kubelith.io/change"
)

// State is metadata.initializers of a hidden object.
// Source: metav1.Initializers of Kubernetes 1.13.
type State struct {
	// Pending are the initializers that have to act, in this order.
	Pending []Pending `json:"pending" patchStrategy:"merge" patchMergeKey:"name"`
	// Result, when set, is why the object could not be initialized.
	Result *metav1.Status `json:"result,omitempty"`
}

// Pending is an initializer that has not acted yet.
type Pending struct {
	// Name is fully qualified: podimage.example.com.
	Name string `json:"name"`
}

func pending(names ...string) *State {
	s := &State{}
	for _, name := range names {
		s.Pending = append(s.Pending, Pending{name})
	}
	return s
}

// ends reports whether nothing is left to do: the object becomes visible.
func (s *State) ends() bool { return len(s.Pending) == 0 && s.Result == nil }

// head is the next initializer.
func (s *State) head() string {
	if s == nil || len(s.Pending) == 0 {
		return ""
	}
	return s.Pending[0].Name
}

// annotation returns one of an object's annotations without copying them.
func annotation(o runtime.Object, name string) (value string, ok bool) {
	if u, is := o.(*unstructured.Unstructured); is {
		metadata, _ := u.Object["metadata"].(map[string]any)
		annotations, _ := metadata["annotations"].(map[string]any)
		value, ok = annotations[name].(string)
		return value, ok
	}
	a, err := meta.Accessor(o)
	if err != nil {
		return "", false
	}
	value, ok = a.GetAnnotations()[name]
	return value, ok
}

// hidden reports whether only requests that include uninitialized objects see it.
func hidden(o runtime.Object) bool {
	_, is := annotation(o, Annotation)
	return is
}

// stateOf returns nil for an object that is visible.
func stateOf(o runtime.Object) (*State, error) {
	value, ok := annotation(o, Annotation)
	if !ok {
		return nil, nil
	}
	return parse([]byte(value))
}

// parse reads a State strictly. "null" is nil.
func parse(text []byte) (*State, error) {
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	var s *State
	if err := d.Decode(&s); err != nil {
		return nil, fmt.Errorf("metadata.initializers: %w", err)
	}
	if d.More() {
		return nil, errors.New("metadata.initializers: more than one value")
	}
	return s, nil
}

// setState stores the state in an object; nil makes it visible.
func setState(o metav1.Object, s *State) error {
	annotations := maps.Clone(o.GetAnnotations())
	delete(annotations, changeAnnotation)
	delete(annotations, Annotation)
	if s != nil {
		text, err := json.Marshal(s)
		if err != nil {
			return err
		}
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[Annotation] = string(text)
	}
	if len(annotations) == 0 {
		annotations = nil
	}
	o.SetAnnotations(annotations)
	return nil
}

var statePath = field.NewPath("metadata", "initializers")

// validate checks the state that a creator gives an object.
func (s *State) validate() field.ErrorList {
	var errs field.ErrorList
	names := map[string]bool{}
	for i, p := range s.Pending {
		at := statePath.Child("pending").Index(i).Child("name")
		errs = append(errs, validation.IsFullyQualifiedName(at, p.Name)...)
		if names[p.Name] {
			errs = append(errs, field.Duplicate(at, p.Name))
		}
		names[p.Name] = true
	}
	if s.Result != nil {
		errs = append(errs, s.validateResult()...)
	}
	return errs
}

func (s *State) validateResult() field.ErrorList {
	at := statePath.Child("result")
	if s.Result.Status != metav1.StatusFailure {
		return field.ErrorList{field.Invalid(at.Child("status"), s.Result.Status, `must be "Failure"`)}
	}
	if s.Result.Code != 0 && (s.Result.Code < 400 || s.Result.Code > 599) {
		return field.ErrorList{field.Invalid(at.Child("code"), s.Result.Code, "must be an error: 400 to 599")}
	}
	return nil
}

// validateUpdate checks a change; either state may be nil.
// Source: ValidateInitializersUpdate of Kubernetes 1.13. There the list could be removed as a whole.
func validateUpdate(s, old *State) field.ErrorList {
	list := statePath.Child("pending")
	switch {
	case old == nil && s == nil:
		return nil
	case old == nil:
		return field.ErrorList{field.Forbidden(statePath, "the object is initialized already")}
	case old.Result != nil:
		if s == nil || !apiequality.Semantic.DeepEqual(s, old) {
			return field.ErrorList{field.Forbidden(statePath.Child("result"), "the initialization has failed: nothing can change that")}
		}
		return nil
	}
	var left []Pending
	if s != nil {
		left = s.Pending
	}
	if s != nil && s.Result != nil {
		if !slices.Equal(left, old.Pending) {
			return field.ErrorList{field.Forbidden(list, "the list cannot change together with a result")}
		}
		return s.validateResult()
	}
	switch {
	case slices.Equal(left, old.Pending):
		return nil
	case len(old.Pending) > 0 && slices.Equal(left, old.Pending[1:]):
		return nil
	}
	return field.ErrorList{field.Forbidden(list, fmt.Sprintf("only the first initializer, %q, can be removed", old.head()))}
}
