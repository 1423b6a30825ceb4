package kubelith

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSchedulerPolicy(t *testing.T) {
	const text = "kind: Policy\napiVersion: v1\npredicates:\n- name: %\npriorities: []\n"
	file := filepath.Join(t.TempDir(), "policy.yaml")
	good, bad := strings.Replace(text, "%", "PodFitsResources", 1), strings.Replace(text, "%", "PodFitsResource", 1)
	if err := os.WriteFile(file, []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(in string, args ...string) (string, error) {
		var out bytes.Buffer
		err := App(strings.NewReader(in), &out, io.Discard).Run(append([]string{"kubelith", "scheduler-policy"}, args...))
		return out.String(), err
	}
	named, err := run("", file)
	if err != nil || !strings.Contains(named, "kind: KubeSchedulerConfiguration") || !strings.Contains(named, "- name: NodeResourcesFit") {
		t.Errorf("%v, %s", err, named)
	}
	if piped, err := run(good, "-"); err != nil || piped != named {
		t.Errorf("from standard input: %v, %s", err, piped)
	}
	for _, tc := range []struct {
		in   string
		args []string
		want string
	}{
		{bad, []string{"-"}, `-: line 4: predicate "PodFitsResource": Kubernetes 1.22 had no such name: did you mean "PodFitsResources"?`},
		{strings.Repeat(" ", maxPolicy) + good, []string{"-"}, "more than 1048576 bytes"},
		{"", nil, "needs one file, got 0"},
		{"", []string{file, file}, "needs one file, got 2"},
		{"", []string{"/no/such/file"}, "/no/such/file"},
	} {
		if out, err := run(tc.in, tc.args...); err == nil || !strings.Contains(err.Error(), tc.want) || out != "" {
			t.Errorf("%q: %v, printed %q, want %s", tc.args, err, out, tc.want)
		}
	}
}
