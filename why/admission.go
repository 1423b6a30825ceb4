package why

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/base/oneline"
)

// refusal is how a message of the API server says that it refused to create an object.
type refusal struct {
	code    Code
	message *regexp.Regexp
	// cause is completed with the groups of message.
	cause  string
	remedy string
}

// refusals has one parser per upstream message. An admission plugin answers with a status whose only field with the
// fact is its message.
var refusals = [...]refusal{
	// Source: k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go (checkRequest)
	{QuotaExceeded, regexp.MustCompile(`exceeded quota: (\S+), (requested: .*)`), "the ResourceQuota %s is used up: %s",
		"Delete what is not needed, lower the requests, or raise the ResourceQuota."},
	// Source: the same
	{QuotaNeedsRequests, regexp.MustCompile(`failed quota: (\S+): must specify (.*)`),
		"the ResourceQuota %s counts %s, which the pod template does not set",
		"Set these requests and limits in the pod template, or create a LimitRange with defaults."},
	// Source: k8s.io/kubernetes/plugin/pkg/admission/limitranger/admission.go (minConstraint, maxConstraint, ...)
	{LimitRangeDenied, regexp.MustCompile(`((?:minimum|maximum) \S+ usage per .*|\S+ max limit to request ratio per .*)`),
		"a LimitRange of the namespace refuses: %s",
		"Change the requests or limits in the pod template, or the LimitRange."},
	// Source: k8s.io/pod-security-admission/admission/admission.go (EvaluatePod)
	{PodSecurityDenied, regexp.MustCompile(`violates PodSecurity "([^"]+)": (.*)`), "the namespace enforces the Pod Security level %s: %s",
		"Change the securityContext in the pod template as the message says, or the namespace's label pod-security.kubernetes.io/enforce."},
	// Source: k8s.io/apiserver/pkg/admission/plugin/webhook/errors/statuserror.go (ToStatusErr)
	{WebhookDenied, regexp.MustCompile(`admission webhook "([^"]+)" denied the request(?:: (.*)| without explanation)`),
		"the admission webhook %s refuses: %s",
		"The rule is the webhook's: change the pod template as it says, or ask who runs the webhook."},
	// Source: k8s.io/apiserver/pkg/util/webhook/error.go (ErrCallingWebhook)
	{WebhookUnreachable, regexp.MustCompile(`failed calling webhook "([^"]+)"[:;] (.*)`),
		"the admission webhook %s cannot be called, and its failurePolicy is Fail: %s",
		"Start what serves the webhook, or correct or delete its ValidatingWebhookConfiguration or MutatingWebhookConfiguration."},
	// Source: k8s.io/apiserver/pkg/admission/plugin/policy/validating/dispatcher.go (Dispatch)
	{PolicyDenied, regexp.MustCompile(`ValidatingAdmissionPolicy '([^']+)'(?: with binding '[^']+')? denied request: (.*)`),
		"the ValidatingAdmissionPolicy %s refuses: %s",
		"Change the pod template as the policy wants, or the policy."},
	// Source: k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go (forbiddenMessage)
	{AccessDenied, regexp.MustCompile(`User "([^"]+)" (cannot .*)`), "%s %s",
		"Ask `kubelith why --as USER VERB TYPE` which rule is missing, and bind a role that has it."},
	// Source: k8s.io/kubernetes/plugin/pkg/admission/serviceaccount/admission.go (Validate)
	{ServiceAccountMissing, regexp.MustCompile(`error looking up service account (\S+)/(\S+): serviceaccount .* not found`),
		"the namespace %s has no ServiceAccount %s",
		"Create the ServiceAccount, or correct serviceAccountName in the pod template."},
	// Source: k8s.io/kubernetes/plugin/pkg/admission/priority/admission.go (admitPod)
	{PriorityClassMissing, regexp.MustCompile(`no PriorityClass with name (\S+) was found()`), "the PriorityClass %s does not exist%s",
		"Create the PriorityClass, or correct priorityClassName in the pod template."},
}

// refusedBy explains why the API server refuses what a controller wants to create for o.
func refusedBy(o Object, what, message string) *Finding {
	code, cause, remedy := refusedFor(message)
	return broken(code, fmt.Sprintf("no %s can be created for %s: %s", what, o, cause)).do(remedy)
}

// refusedFor returns the cause for which the API server refuses an object with a message, and what to do.
func refusedFor(message string) (code Code, cause, remedy string) {
	message = sentence(message)
	for _, r := range refusals {
		if m := r.message.FindStringSubmatch(message); m != nil {
			text := strings.TrimRight(strings.TrimSuffix(fmt.Sprintf(r.cause, m[1], lastGroup(m)), ": "), " ")
			return r.code, oneline.Shorten(text, 400), r.remedy
		}
	}
	remedy = "The message is the API server's: change what it names. The controller tries again by itself."
	return CreateRefused, oneline.Shorten(message, 400), remedy
}

func lastGroup(m []string) any {
	if len(m) > 2 {
		return m[2]
	}
	return ""
}

// createRetried is the longest time between two attempts of a controller to create an object.
//
// Source: DefaultTypedControllerRateLimiter in k8s.io/client-go/util/workqueue: 1000 s
const createRetried = 1000*time.Second + time.Minute

// notCreated explains a controller that lacks objects because the API server refuses them. Its last word decides: an
// Event of an object that could be created ends the matter.
func (r *Reader) notCreated(ctx context.Context, o Object, object metav1.Object, what string) *Finding {
	e := r.LastEvent(ctx, object, metav1.NewTime(r.now().Add(-createRetried)), "FailedCreate", "SuccessfulCreate")
	if e == nil || e.Reason != "FailedCreate" {
		return nil
	}
	return refusedBy(o, what, e.Message).since(e.FirstTimestamp).sawEvent(e)
}
