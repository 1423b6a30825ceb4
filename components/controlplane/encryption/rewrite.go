package encryption

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/components/controlplane/etcd"
)

const (
	// page is how many Secrets are read from etcd at once; each may have a MiB.
	page = 32
	// rewriteFor bounds one round; the next one goes on.
	rewriteFor = 10 * time.Second
)

// each calls do with every Secret in etcd, as it is stored, until do returns false.
func (s *Server) each(ctx context.Context, do func(namespace, name string, value []byte) bool) error {
	c, err := etcd.Dial(s.opts.Socket)
	if err != nil {
		return err
	}
	defer c.Close()
	prefix := strings.TrimSuffix(s.opts.Prefix, "/") + "/secrets/"
	for from, end := prefix, clientv3.GetPrefixRangeEnd(prefix); ; {
		answer, err := c.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(page))
		if err != nil {
			return fmt.Errorf("read the Secrets from etcd: %w", err)
		}
		for _, kv := range answer.Kvs {
			namespace, name, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), prefix), "/")
			if !do(namespace, name, kv.Value) {
				return nil
			}
		}
		if !answer.More || len(answer.Kvs) == 0 {
			return nil
		}
		from = string(answer.Kvs[len(answer.Kvs)-1].Key) + "\x00"
	}
}

// count returns how many Secrets each key encrypts; the empty one stands for plain text.
func (s *Server) count(ctx context.Context) (map[string]int, error) {
	counts := map[string]int{}
	err := s.each(ctx, func(_, _ string, value []byte) bool {
		counts[keyOf(value)]++
		return true
	})
	return counts, err
}

// rewrite has the API server write each Secret again that another key encrypts, for a while, and returns how many are
// left. A Secret that another client has just written needs nothing.
func (s *Server) rewrite(ctx context.Context, key string) (remaining int, err error) {
	until := time.Now().Add(rewriteFor)
	var refused error // the first one
	others := 0
	err = s.each(ctx, func(namespace, name string, value []byte) bool {
		if keyOf(value) == key {
			return true
		}
		if time.Now().After(until) {
			remaining++
			return true
		}
		if err := s.writeAgain(ctx, namespace, name); err != nil {
			remaining++
			switch {
			case apierrors.IsNotFound(err): // just deleted, or it waits for its initializers: the next look at etcd says which
			case refused == nil:
				refused = fmt.Errorf("cannot write Secret %s/%s: %w", namespace, name, err)
			default:
				others++
			}
		}
		return ctx.Err() == nil
	})
	if others > 0 {
		refused = fmt.Errorf("%w (and %d others)", refused, others)
	}
	return remaining, errors.Join(err, refused)
}

// writeAgain updates a Secret without a change: the API server writes it because its key is not the current one.
// Source: k8s.io/apiserver/pkg/storage/etcd3/store.go, GuaranteedUpdate.
func (s *Server) writeAgain(ctx context.Context, namespace, name string) error {
	secrets := s.Client.CoreV1().Secrets(namespace)
	secret, err := secrets.Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
	}
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}
