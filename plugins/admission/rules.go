package admission

import (
	"errors"
	"fmt"
	"math"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission/plugin/webhook"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	defaults "k8s.io/kubernetes/pkg/apis/admissionregistration/v1"
	"k8s.io/kubernetes/pkg/apis/admissionregistration/validation"
	"k8s.io/utils/ptr"

	"kubelith.io/kubelith/plugins"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

const (
	// domain ends the names of hooks and configurations that users, audit and metrics see.
	domain = ".plugin.kubelith.io"
	// defaultTimeout of a review, in seconds. Webhooks have 10, but a plugin is local.
	defaultTimeout = 2
	maxTimeout     = 30 // upstream's
)

// ruleset is what one plugin reviews.
type ruleset struct {
	mutating, validating []webhook.WebhookAccessor
}

// Validate returns an error if Kubelith cannot work with a description. The host then refuses the plugin.
func Validate(name string, d *pluginv1.Description) error {
	_, _, err := configurations(name, d, plugins.Settings{})
	return err
}

// rulesOf returns what a plugin reviews, by its description and the operator's settings.
func rulesOf(p plugins.Plugin) (ruleset, error) {
	d, settings := p.Description(), p.Settings()
	if d == nil {
		return unknownRules(p), nil
	}
	mutating, validating, err := configurations(p.Name(), d, settings)
	if err != nil {
		return ruleset{}, err
	}
	var r ruleset
	for i := range mutating.Webhooks {
		w := &mutating.Webhooks[i]
		r.mutating = append(r.mutating, &accessor{plugin: p, hook: short(w.Name, p.Name()),
			WebhookAccessor: webhook.NewMutatingWebhookAccessor(uid("mutating", w.Name), mutating.Name, w)})
	}
	for i := range validating.Webhooks {
		w := &validating.Webhooks[i]
		r.validating = append(r.validating, &accessor{plugin: p, hook: short(w.Name, p.Name()),
			WebhookAccessor: webhook.NewValidatingWebhookAccessor(uid("validating", w.Name), validating.Name, w)})
	}
	return r, nil
}

// unknownRules replace the rules of a plugin that never ran, or whose description is lost: it may exist to refuse
// requests. Until it describes itself, requests in all namespaces but Kubernetes' own are refused, unless the
// operator's failurePolicy is Ignore.
//
// What keeps the cluster running passes, so that it starts whatever a plugin does: cluster-scoped requests, those of
// kubelets, status updates of existing objects, and Events.
func unknownRules(p plugins.Plugin) ruleset {
	if p.Settings().FailurePolicy == string(registrationv1.Ignore) {
		return ruleset{}
	}
	w := &registrationv1.ValidatingWebhook{
		Name: "unknown." + p.Name() + domain,
		Rules: []registrationv1.RuleWithOperations{{
			Operations: []registrationv1.OperationType{registrationv1.OperationAll},
			Rule: registrationv1.Rule{
				APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*/*"},
				Scope: ptr.To(registrationv1.NamespacedScope),
			},
		}},
		NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpNotIn,
			Values: []string{metav1.NamespaceSystem, metav1.NamespacePublic, "kube-node-lease"},
		}}},
		MatchConditions: []registrationv1.MatchCondition{
			{Name: "no-event", Expression: "request.resource.resource != 'events'"},
			{Name: "no-kubelet", Expression: "!(has(request.userInfo.groups) && 'system:nodes' in request.userInfo.groups)"},
			{Name: "no-note-of-a-component", Expression: `!((request.userInfo.username.startsWith('system:kube') ||
				request.userInfo.username.startsWith('system:serviceaccount:kube-system:')) && (
				(has(request.subResource) && request.subResource in ['status', 'binding']) ||
				request.resource.resource in ['endpoints', 'endpointslices', 'leases']))`},
		},
		SideEffects:             ptr.To(registrationv1.SideEffectClassNone),
		AdmissionReviewVersions: []string{admissionv1.SchemeGroupVersion.Version},
	}
	override(&w.FailurePolicy, &w.TimeoutSeconds, p.Settings())
	defaults.SetDefaults_ValidatingWebhook(w)
	return ruleset{validating: []webhook.WebhookAccessor{&accessor{plugin: p, hook: "unknown",
		WebhookAccessor: webhook.NewValidatingWebhookAccessor(uid("validating", w.Name), p.Name()+domain, w)}}}
}

// configurations returns the hooks of a description as upstream's webhook configurations: named, defaulted and
// validated.
func configurations(name string, d *pluginv1.Description, settings plugins.Settings) (
	*registrationv1.MutatingWebhookConfiguration, *registrationv1.ValidatingWebhookConfiguration, error,
) {
	a := d.GetAdmission()
	if a == nil {
		return nil, nil, errors.New("it describes itself as another kind of plugin: move it to that kind, in the configuration or in the directory of plugins")
	}
	if len(a.GetMutating())+len(a.GetValidating()) == 0 {
		return nil, nil, errors.New("it describes no hook: nothing would be reviewed")
	}
	mutating := &registrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name + domain}}
	for i, text := range a.GetMutating() {
		var w registrationv1.MutatingWebhook
		if err := plugins.Decode(text, &w); err != nil {
			return nil, nil, fmt.Errorf("mutating[%d]: %w", i, err)
		}
		if err := complete(name, &w.Name, &w.ClientConfig, &w.AdmissionReviewVersions); err != nil {
			return nil, nil, fmt.Errorf("mutating[%d]: %w", i, err)
		}
		override(&w.FailurePolicy, &w.TimeoutSeconds, settings)
		mutating.Webhooks = append(mutating.Webhooks, w)
	}
	validating := &registrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name + domain}}
	for i, text := range a.GetValidating() {
		var w registrationv1.ValidatingWebhook
		if err := plugins.Decode(text, &w); err != nil {
			return nil, nil, fmt.Errorf("validating[%d]: %w", i, err)
		}
		if err := complete(name, &w.Name, &w.ClientConfig, &w.AdmissionReviewVersions); err != nil {
			return nil, nil, fmt.Errorf("validating[%d]: %w", i, err)
		}
		override(&w.FailurePolicy, &w.TimeoutSeconds, settings)
		validating.Webhooks = append(validating.Webhooks, w)
	}
	return mutating, validating, check(mutating, validating)
}

// complete sets the fields of a hook that upstream requires of a webhook.
func complete(plugin string, name *string, client *registrationv1.WebhookClientConfig, versions *[]string) error {
	if client.URL != nil || client.Service != nil || client.CABundle != nil {
		return errors.New("clientConfig: leave it out, the plugin itself is called")
	}
	*name += "." + plugin + domain
	client.URL = ptr.To("https://" + plugin + domain + "/") // required by validation, never called
	if len(*versions) == 0 {
		*versions = []string{admissionv1.SchemeGroupVersion.Version}
	}
	if (*versions)[0] != admissionv1.SchemeGroupVersion.Version {
		return fmt.Errorf("admissionReviewVersions: %s comes first, but plugins review v1 only", (*versions)[0])
	}
	return nil
}

// override applies the operator's settings, and the default timeout of plugins.
func override(policy **registrationv1.FailurePolicyType, seconds **int32, settings plugins.Settings) {
	if settings.FailurePolicy != "" {
		*policy = ptr.To(registrationv1.FailurePolicyType(settings.FailurePolicy))
	}
	if settings.Timeout > 0 { // Plugin.Call applies the exact one
		*seconds = ptr.To(min(int32(math.Ceil(settings.Timeout.Seconds())), maxTimeout))
	}
	if *seconds == nil {
		*seconds = ptr.To(int32(defaultTimeout))
	}
}

// check validates both configurations as the API does on creation. Errors use the plugin's names of fields.
func check(mutating *registrationv1.MutatingWebhookConfiguration, validating *registrationv1.ValidatingWebhookConfiguration) error {
	defaults.SetObjectDefaults_MutatingWebhookConfiguration(mutating)
	defaults.SetObjectDefaults_ValidatingWebhookConfiguration(validating)
	var internalMutating admissionregistration.MutatingWebhookConfiguration
	err := defaults.Convert_v1_MutatingWebhookConfiguration_To_admissionregistration_MutatingWebhookConfiguration(
		mutating, &internalMutating, nil)
	if err != nil {
		return err
	}
	var internalValidating admissionregistration.ValidatingWebhookConfiguration
	err = defaults.Convert_v1_ValidatingWebhookConfiguration_To_admissionregistration_ValidatingWebhookConfiguration(
		validating, &internalValidating, nil)
	if err != nil {
		return err
	}
	if err := first("mutating", validation.ValidateMutatingWebhookConfiguration(&internalMutating)); err != nil {
		return err
	}
	return first("validating", validation.ValidateValidatingWebhookConfiguration(&internalValidating))
}

func first(list string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	line, _, _ := strings.Cut(errs[0].Error(), "\n") // errors of expressions have an arrow on further lines
	return errors.New(strings.Replace(line, "webhooks[", list+"[", 1))
}

// short returns the hook's name in the plugin.
func short(name, plugin string) string { return strings.TrimSuffix(name, "."+plugin+domain) }

// uid returns a key that is unique among all hooks and webhooks.
func uid(list, name string) string { return "plugin/" + list + "/" + name }

// Hook returns the plugin and its hook by the names of a webhook configuration and a webhook; ok is false if they are
// no plugin's.
func Hook(configuration, webhook string) (plugin, hook string, ok bool) {
	plugin, ok = strings.CutSuffix(configuration, domain)
	return plugin, short(webhook, plugin), ok
}
