package etcd

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// ClearAlarms clears the alarms of all members, also of those that are gone: etcd does not.
func ClearAlarms(ctx context.Context, c *clientv3.Client) error {
	_, err := c.AlarmDisarm(ctx, &clientv3.AlarmMember{}) // zero: all members and all kinds
	return err
}
