package pki

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"sigs.k8s.io/yaml"

	"kubelith.io/kubelith/base/atomicfile"
)

// EnsureEncryption creates the apiserver's EncryptionConfiguration at path (mode 0600) unless it exists: a random
// secretbox key for Secrets, then identity, to read Secrets stored in plain text. An existing file may have been
// changed to rotate keys; it is only checked to be an EncryptionConfiguration. Without it the Secrets of the cluster
// are lost, so a damaged file is never replaced, and neither is a missing one if used is true: the cluster has data
// already.
func EnsureEncryption(path string, used bool) error {
	data, err := os.ReadFile(path)
	if err == nil {
		var c apiserverv1.EncryptionConfiguration
		err = yaml.UnmarshalStrict(data, &c)
		if err == nil && (c.Kind != "EncryptionConfiguration" || len(c.Resources) == 0) {
			err = errors.New("it is not an EncryptionConfiguration with resources")
		}
		if err != nil {
			return fmt.Errorf("encryption: %s is damaged (%w): restore it from a backup; no Secret can be read without it", path, err)
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("encryption: %w", err)
	}
	if used {
		return fmt.Errorf("encryption: %s is missing, but the cluster has data: restore it from a backup; no Secret can be read without it", path)
	}
	return WriteEncryption(path, []EncryptionKey{NewEncryptionKey("key1")})
}

// EncryptionKey is a key for Secrets at rest.
type EncryptionKey struct {
	Name   string `json:"name"`   // begins, in etcd, each Secret that it encrypts
	Secret string `json:"secret"` // 32 bytes in base64
}

// NewEncryptionKey generates a key.
func NewEncryptionKey(name string) EncryptionKey {
	key := make([]byte, 32) // the size for secretbox
	rand.Read(key)          // never fails: crypto/rand ends the process instead
	return EncryptionKey{Name: name, Secret: base64.StdEncoding.EncodeToString(key)}
}

// WriteEncryption writes the apiserver's EncryptionConfiguration: the first key encrypts Secrets, all decrypt them, and
// Secrets stored in plain text can be read.
func WriteEncryption(path string, keys []EncryptionKey) error {
	secretbox := &apiserverv1.SecretboxConfiguration{}
	for _, k := range keys {
		secretbox.Keys = append(secretbox.Keys, apiserverv1.Key{Name: k.Name, Secret: k.Secret})
	}
	out, err := yaml.Marshal(apiserverv1.EncryptionConfiguration{
		TypeMeta: metav1.TypeMeta{APIVersion: "apiserver.config.k8s.io/v1", Kind: "EncryptionConfiguration"},
		Resources: []apiserverv1.ResourceConfiguration{{
			Resources: []string{"secrets"},
			Providers: []apiserverv1.ProviderConfiguration{{Secretbox: secretbox}, {Identity: &apiserverv1.IdentityConfiguration{}}},
		}},
	})
	if err != nil {
		return fmt.Errorf("encryption: encode: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("encryption: create directory: %w", err)
	}
	if err := atomicfile.Write(path, out); err != nil {
		return fmt.Errorf("encryption: %w", err)
	}
	return nil
}

// ReadEncryption returns the keys of a file that WriteEncryption has written, or one of the same form: it refuses other
// resources and other providers, which WriteEncryption would drop.
func ReadEncryption(path string) ([]EncryptionKey, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("encryption: %w", err)
	}
	var c apiserverv1.EncryptionConfiguration
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		return nil, fmt.Errorf("encryption: %s is damaged: %w", path, err)
	}
	other := fmt.Errorf("encryption: %s was edited and has more than secretbox keys for secrets: rotate its keys by hand", path)
	if len(c.Resources) != 1 || len(c.Resources[0].Resources) != 1 || c.Resources[0].Resources[0] != "secrets" {
		return nil, other
	}
	providers := c.Resources[0].Providers
	if len(providers) != 2 || providers[0].Secretbox == nil || len(providers[0].Secretbox.Keys) == 0 || providers[1].Identity == nil {
		return nil, other
	}
	var keys []EncryptionKey
	for _, k := range providers[0].Secretbox.Keys {
		keys = append(keys, EncryptionKey{Name: k.Name, Secret: k.Secret})
	}
	return keys, nil
}
