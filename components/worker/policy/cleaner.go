package policy

import (
	"context"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/components/worker/policy/kernel"
)

// NewCleaner returns the component that removes the rules of an earlier run. It is for a node without network-policy,
// or one whose pod network is not ours.
func NewCleaner(o Options) lifecycle.Component {
	return &lifecycle.Task{
		Called:   "network-policy-cleaner",
		Requires: []string{"apiserver"},
		Subject:  "remove the rules of network policies",
		Retry:    retry,
		Log:      o.Log,
		Do:       func(context.Context) error { return kernel.Remove() },
	}
}
