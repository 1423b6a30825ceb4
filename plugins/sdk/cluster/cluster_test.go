package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubelith.io/kubelith/plugins/proto"
)

func TestConfig(t *testing.T) {
	dir := t.TempDir()
	const kubeconfig = `{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],
clusters: [{name: a, cluster: {server: "https://127.0.0.1:6443"}}], users: [{name: a, user: {token: secret}}]}`
	if err := os.WriteFile(filepath.Join(dir, "there"), []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ path, fails string }{
		{"", proto.KubeconfigVariable + " is not set: "},
		{filepath.Join(dir, "none"), proto.KubeconfigVariable + ": stat "},
		{filepath.Join(dir, "there"), ""},
	} {
		t.Setenv(proto.KubeconfigVariable, tc.path)
		config, err := Config()
		if tc.fails != "" {
			if err == nil || !strings.HasPrefix(err.Error(), tc.fails) {
				t.Errorf("%q: %v, want %q", tc.path, err, tc.fails)
			}
			if _, err := Dynamic(); err == nil {
				t.Errorf("%q: a client without a cluster", tc.path)
			}
			continue
		}
		if err != nil || config.Host != "https://127.0.0.1:6443" || config.BearerToken != "secret" {
			t.Errorf("%q: %v, %v", tc.path, config, err)
		}
	}
}
