// Package manifests tests on real clusters that objects follow the files of a directory.
package manifests

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

const (
	directory = harness.DataDir + "/server/manifests"
	soon      = 60 * time.Second
	partOf    = "applyset.kubernetes.io/part-of"
)

var cluster = harness.NewShared(harness.Options{NoTestImage: true})

func TestMain(m *testing.M) { harness.Main(m, cluster) }

// put writes a file of the directory, and deletes it at the end of the test: a broken one would stop deletions for all.
func put(t *testing.T, s *harness.Server, name, content string) {
	t.Helper()
	path := s.Path(filepath.Join(directory, name))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(path) })
}

func remove(t *testing.T, s *harness.Server, name string) {
	t.Helper()
	if err := os.Remove(s.Path(filepath.Join(directory, name))); err != nil {
		t.Fatal(err)
	}
}

// configMap is a document; value is its data.
func configMap(ns, name, value string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: %s}\ndata: {value: %q}\n", name, ns, value)
}

// value waits until a ConfigMap has a value, and returns it.
func value(t *testing.T, s *harness.Server, ns, name, want string) *corev1.ConfigMap {
	t.Helper()
	var got *corev1.ConfigMap
	harness.Eventually(t, soon, "ConfigMap "+ns+"/"+name+" with "+want, func() (err error) {
		if got, err = s.Client(t).CoreV1().ConfigMaps(ns).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		if got.Data["value"] != want {
			return fmt.Errorf("its value is %q", got.Data["value"])
		}
		return nil
	})
	return got
}

// gone waits until an object is not there any more.
func gone(t *testing.T, s *harness.Server, args ...string) {
	t.Helper()
	harness.Eventually(t, soon, strings.Join(args, " ")+" to be gone", func() error {
		if res := s.TryKubectl(t, append([]string{"get", "-o=name", "--ignore-not-found"}, args...)...); res.Code != 0 || res.Stdout != "" {
			return errors.New(res.Stdout + res.Stderr)
		}
		return nil
	})
}

// told waits until the log and an Event at the file's parent have a message about a line of the file.
func told(t *testing.T, s *harness.Server, name string, line int, text string) {
	t.Helper()
	want := fmt.Sprintf("%s/%s:%d: %s", directory, name, line, text)
	harness.Eventually(t, soon, want, func() error {
		if !strings.Contains(s.Logs(), want) {
			return errors.New("the log does not have it")
		}
		events, err := s.Client(t).CoreV1().Events("kube-system").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=ConfigMap,involvedObject.name=manifest-" + name})
		if err != nil {
			return err
		}
		var said []string
		for _, e := range events.Items {
			if e.Type == corev1.EventTypeWarning && e.Reason == "ManifestFailed" && strings.Contains(e.Message, want) {
				return nil
			}
			said = append(said, e.Message)
		}
		return fmt.Errorf("the Events have %q", said)
	})
}

// silent checks that no fault of a file was reported.
func silent(t *testing.T, s *harness.Server, name string) {
	t.Helper()
	for line := range strings.Lines(s.Logs()) {
		if strings.Contains(line, " error component=manifests ") && strings.Contains(line, directory+"/"+name) {
			t.Errorf("the log has %s", line)
		}
	}
	if events := s.Kubectl(t, "-n=kube-system", "get", "events", "--field-selector=involvedObject.name=manifest-"+name, "-o=name"); events != "" {
		t.Errorf("there are Events: %s", events)
	}
}
