// Package admission lets plugins review requests to the API as webhooks do.
//
// It is upstream's own two plugins for webhooks, MutatingAdmissionWebhook and
// ValidatingAdmissionWebhook, with one source of webhooks more: the hooks that
// plugins describe stand before those of the API. So rules, selectors, matchConditions, reinvocation, failure
// policies, warnings, audit and metrics are upstream's code; only the way to the reviewer differs:
//
//	dispatcher (upstream) -> accessor.GetRESTClient -> call: encode, Plugin.Call, Review over gRPC, check the answer
//
// It does not start plugins (plugins/host), and knows them as a plugins.Set only.
package admission
