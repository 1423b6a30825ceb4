package initializers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"kubelith.io/kubelith/base/client"
)

// PluginName is the admission plugin's, as upstream's was.
const PluginName = "Initializers"

// Verb is the right to change hidden objects, and to choose the initializers of a new one.
const Verb = "initialize"

// Register adds the plugin to those that may be enabled.
func (i *Initializers) Register(plugins *admission.Plugins) {
	plugins.Register(PluginName, func(io.Reader) (admission.Interface, error) {
		return &plugin{Handler: admission.NewHandler(admission.Create, admission.Update), all: i}, nil
	})
}

type plugin struct {
	*admission.Handler
	all    *Initializers
	rights authorizer.Authorizer
}

var (
	_ admission.MutationInterface       = (*plugin)(nil)
	_ admission.ValidationInterface     = (*plugin)(nil)
	_ initializer.WantsAuthorizer       = (*plugin)(nil)
	_ admission.InitializationValidator = (*plugin)(nil)
)

// SetAuthorizer implements initializer.WantsAuthorizer.
func (p *plugin) SetAuthorizer(a authorizer.Authorizer) { p.rights = a }

// ValidateInitialization implements admission.InitializationValidator.
func (p *plugin) ValidateInitialization() error {
	if p.rights == nil {
		return errors.New(PluginName + " has no authorizer")
	}
	return nil
}

// Admit implements admission.MutationInterface.
func (p *plugin) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetObject() == nil {
		return nil
	}
	r := requestFrom(ctx)
	if r == nil {
		return reserved(a)
	}
	if a.GetOperation() == admission.Create {
		return p.create(ctx, a)
	}
	return p.update(ctx, a, r)
}

// reserved refuses the annotations in requests that began while there were no initializers: a client needs the right to
// hide an object.
func reserved(a admission.Attributes) error {
	for _, name := range []string{Annotation, changeAnnotation} {
		if _, has := annotation(a.GetObject(), name); has {
			return admission.NewForbidden(a, fmt.Errorf("the annotation %s can be set only while there is an InitializerConfiguration", name))
		}
	}
	return nil
}

// create fills the list of a new object, or checks the one that its creator has chosen.
func (p *plugin) create(ctx context.Context, a admission.Attributes) error {
	if a.GetSubresource() != "" || !stored(a.GetResource().GroupResource()) || a.GetUserInfo().GetName() == client.APIServer {
		return nil
	}
	if err := p.all.configurations.wait(ctx); err != nil {
		return apierrors.NewServiceUnavailable(err.Error())
	}
	o, err := meta.Accessor(a.GetObject())
	if err != nil {
		return nil // it is not stored
	}
	chosen, err := changed(a.GetObject(), nil)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if chosen != nil {
		if errs := chosen.validate(); len(errs) > 0 {
			return apierrors.NewInvalid(a.GetKind().GroupKind(), a.GetName(), errs)
		}
		if err := p.mayInitialize(ctx, a, "create with initializers denied"); err != nil {
			return err
		}
		if chosen.ends() { // as an administrator may
			chosen = nil
		}
		return setState(o, chosen)
	}
	// The kubelet runs these already.
	if _, mirror := o.GetAnnotations()[corev1.MirrorPodAnnotationKey]; mirror && a.GetResource().GroupResource() == corev1.Resource("pods") {
		return nil
	}
	names := p.all.configurations.namesFor(a.GetResource())
	if len(names) == 0 {
		return nil
	}
	return setState(o, pending(names...))
}

// stored reports whether objects of a type are stored, and are not what Initializers work with.
func stored(r schema.GroupResource) bool {
	switch r.Group {
	case "authentication.k8s.io", "authorization.k8s.io":
		return false
	}
	return r != configurationResource && r != corev1.Resource("bindings")
}

// update checks a change of a hidden object.
func (p *plugin) update(ctx context.Context, a admission.Attributes, r *request) error {
	old, err := stateOf(a.GetOldObject())
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	_, patched := annotation(a.GetObject(), changeAnnotation)
	if old == nil && !patched && !hidden(a.GetObject()) {
		return nil
	}
	o, err := meta.Accessor(a.GetObject())
	if err != nil {
		return nil
	}
	if a.GetSubresource() != "" { // it is about other parts of the object
		if old != nil {
			if err := p.mayInitialize(ctx, a, "update to uninitialized resource denied"); err != nil {
				return err
			}
		}
		return setState(o, old)
	}
	next, err := changed(a.GetObject(), old)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if next != nil && next.ends() {
		next = nil
	}
	if errs := validateUpdate(next, old); len(errs) > 0 {
		return apierrors.NewInvalid(a.GetKind().GroupKind(), a.GetName(), errs)
	}
	if old != nil {
		if err := p.mayInitialize(ctx, a, "update to uninitialized resource denied"); err != nil {
			return err
		}
		r.relax(a.GetObject())
	}
	return setState(o, next)
}

// mayInitialize checks the caller's right. As upstream did.
func (p *plugin) mayInitialize(ctx context.Context, a admission.Attributes, why string) error {
	decision, reason, err := p.rights.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: Verb, Namespace: a.GetNamespace(), Name: a.GetName(), ResourceRequest: true,
		APIGroup: a.GetResource().Group, APIVersion: a.GetResource().Version, Resource: a.GetResource().Resource,
	})
	if decision == authorizer.DecisionAllow {
		return nil
	}
	text := fmt.Errorf("%s: user %q has no right to %s %s", why, a.GetUserInfo().GetName(), Verb, a.GetResource().GroupResource())
	if reason != "" {
		text = fmt.Errorf("%w: %s", text, reason)
	}
	return admission.NewForbidden(a, errors.Join(text, err))
}

// Validate implements admission.ValidationInterface. It checks configurations.
func (p *plugin) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != configurationResource || a.GetSubresource() != "" {
		return nil
	}
	o, ok := a.GetObject().(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	c, err := configurationOf(o)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if errs := c.validate(); len(errs) > 0 {
		return apierrors.NewInvalid(a.GetKind().GroupKind(), a.GetName(), errs)
	}
	return nil
}

// change is a patch of a State.
type change struct {
	// Type is that of the request's patch.
	Type types.PatchType `json:"type"`
	// Patch is what it had for metadata.initializers. The paths of a JSON patch begin there.
	Patch json.RawMessage `json:"patch"`
}

// changed returns the state that a request wants: that of the object's annotation or, with a patch, old with the patch
// applied.
func changed(o runtime.Object, old *State) (*State, error) {
	text, ok := annotation(o, changeAnnotation)
	if !ok {
		return stateOf(o)
	}
	var c change
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return nil, fmt.Errorf("%s: %w", changeAnnotation, err)
	}
	return c.apply(old)
}

func (c change) apply(old *State) (*State, error) {
	if string(c.Patch) == "null" {
		return nil, nil
	}
	if old == nil {
		old = &State{}
	}
	before, err := json.Marshal(old)
	if err != nil {
		return nil, err
	}
	var after []byte
	switch c.Type {
	case types.MergePatchType:
		after, err = jsonpatch.MergePatch(before, c.Patch)
	case types.StrategicMergePatchType:
		after, err = strategicpatch.StrategicMergePatch(before, c.Patch, State{})
	case types.JSONPatchType:
		after, err = applyOperations(before, c.Patch)
	default:
		err = fmt.Errorf("unknown patch type %q", c.Type)
	}
	if err != nil {
		return nil, fmt.Errorf("metadata.initializers: %w", err)
	}
	return parse(after)
}

// applyOperations applies a JSON patch whose paths begin at the state; "" is all of it.
func applyOperations(before, operations []byte) ([]byte, error) {
	patch, err := jsonpatch.DecodePatch(operations)
	if err != nil {
		return nil, err
	}
	whole, err := json.Marshal(map[string]json.RawMessage{"initializers": before})
	if err != nil {
		return nil, err
	}
	if whole, err = patch.Apply(whole); err != nil {
		return nil, err
	}
	var result map[string]json.RawMessage
	if err := json.Unmarshal(whole, &result); err != nil {
		return nil, err
	}
	if state, ok := result["initializers"]; ok {
		return state, nil
	}
	return []byte("null"), nil
}

// status is the error that a creator gets.
func (s *State) status() error {
	result := *s.Result
	result.Status = metav1.StatusFailure
	if result.Code == 0 {
		result.Code = 500
	}
	return &apierrors.StatusError{ErrStatus: result}
}
