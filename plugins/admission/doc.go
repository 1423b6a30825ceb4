// Package admission lets plugins review requests to the API as webhooks do.
//
// It adds a source of webhooks to upstream's MutatingAdmissionWebhook and ValidatingAdmissionWebhook: the hooks that
// plugins describe run before those of the API. Rules, selectors, matchConditions, reinvocation, failure policies,
// warnings, audit and metrics are upstream's code; only the call differs:
//
//	dispatcher (upstream) -> accessor.GetRESTClient -> call: encode, Plugin.Call, Review over gRPC, check the answer
//
// It does not start plugins (see plugins/host), and knows them as a plugins.Set only.
package admission
