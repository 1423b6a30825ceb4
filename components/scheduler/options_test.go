package scheduler

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What a file sets and the composition would ignore is refused.
func TestConfigFile(t *testing.T) {
	for text, want := range map[string]string{
		"parallelism: 3\n":                                     "",
		"leaderElection: {leaderElect: false}\n":               "",
		"clientConnection: {qps: 7}\n":                         "clientConnection: cannot be set",
		"leaderElection: {resourceName: other}\n":              "leaderElection: cannot be set",
		"delayCacheUntilActive: true\n":                        "delayCacheUntilActive: cannot be set",
		"profiles: [{schedulerName: a}, {schedulerName: b}]\n": "",
	} {
		file := filepath.Join(t.TempDir(), "scheduler.yaml")
		if err := os.WriteFile(file, []byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := New(Options{Args: []string{"config=" + file}})
		if (err == nil) != (want == "") || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}
