package encryption

import (
	"context"
	"fmt"

	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/base/sealed"
)

// fetch gets a key from another server: the first that has it.
func (s *Server) fetch(ctx context.Context, key string) (got pki.EncryptionKey, err error) {
	err = sealed.Fetch(ctx, s.client, s.opts.Identity, KeyPath, key, &got)
	if err == nil && (got.Name != key || got.Secret == "") {
		err = fmt.Errorf("a server has sent another key")
	}
	if err != nil {
		return pki.EncryptionKey{}, fmt.Errorf("get the new key %s from another server: %w", key, err)
	}
	return got, nil
}
