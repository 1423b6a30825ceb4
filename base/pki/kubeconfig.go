package pki

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"kubelith.io/kubelith/base/atomicfile"
)

// WriteKubeconfig writes a kubeconfig of mode 0600 with everything inline: server is the URL of the API, ca the path of
// its CA certificate, client the pair that the user authenticates with. A file with the same content is not touched.
func WriteKubeconfig(path, server, ca string, client Pair) error {
	var data [3][]byte
	for i, file := range []string{ca, client.Cert, client.Key} {
		var err error
		if data[i], err = os.ReadFile(file); err != nil {
			return fmt.Errorf("kubeconfig: %w", err)
		}
	}
	out, err := yaml.Marshal(inlineKubeconfig(server, data[0], data[1], data[2]))
	if err != nil {
		return fmt.Errorf("kubeconfig: encode: %w", err)
	}
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, out) {
		if info, err := os.Stat(path); err == nil && info.Mode().Perm() == 0o600 {
			return nil
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return unwritable(err)
	}
	if err := atomicfile.Write(path, out); err != nil {
		return unwritable(err)
	}
	return nil
}

func unwritable(err error) error {
	return fmt.Errorf("kubeconfig: cannot be written: make its directory writable or use another --write-kubeconfig: %w", err)
}
