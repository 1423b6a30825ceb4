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
			return fmt.Errorf("encryption: %s is damaged (%w): restore it from a backup, no Secret can be read without it", path, err)
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("encryption: %w", err)
	}
	if used {
		return fmt.Errorf("encryption: %s is missing, but the cluster has data: restore it from a backup, no Secret can be read without it", path)
	}
	key := make([]byte, 32) // the size for secretbox
	rand.Read(key)          // never fails: crypto/rand ends the process instead
	out, err := yaml.Marshal(apiserverv1.EncryptionConfiguration{
		TypeMeta: metav1.TypeMeta{APIVersion: "apiserver.config.k8s.io/v1", Kind: "EncryptionConfiguration"},
		Resources: []apiserverv1.ResourceConfiguration{{
			Resources: []string{"secrets"},
			Providers: []apiserverv1.ProviderConfiguration{
				{Secretbox: &apiserverv1.SecretboxConfiguration{
					Keys: []apiserverv1.Key{{Name: "key1", Secret: base64.StdEncoding.EncodeToString(key)}},
				}},
				{Identity: &apiserverv1.IdentityConfiguration{}},
			},
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
