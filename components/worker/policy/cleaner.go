package policy

import (
	"context"
	"errors"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/components/worker/policy/kernel"
)

// NewCleaner returns the component that removes the rules of an earlier run. It is for a node without network-policy, or one
// whose pod network is not ours.
func NewCleaner(o Options) lifecycle.Component {
	return &lifecycle.Task{Called: "network-policy-cleaner", Subject: "remove the rules of network policies", Retry: retry, Log: o.Log, Do: func(ctx context.Context) error {
		table, err := kernel.New(true, true)
		if err != nil {
			return nil // without nft there are none
		}
		ports, err := kernel.NewPorts()
		if err != nil {
			return nil
		}
		return errors.Join(table.Remove(ctx), ports.Remove(ctx))
	}}
}
