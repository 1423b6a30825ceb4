package conformance

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
)

// build compiles a plugin of this repository.
func build(t *testing.T, pkg string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), filepath.Base(pkg))
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", file, pkg).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	return file
}

// run returns the result of each check.
func run(t *testing.T, o Options) (map[string]Result, error) {
	t.Helper()
	o.Log = logrus.NewEntry(logrus.New())
	o.Log.Logger.SetOutput(t.Output())
	results := map[string]Result{}
	err := Run(t.Context(), o, func(r Result) {
		t.Log(r)
		results[r.Check] = r
	})
	return results, err
}

// TestGoodPlugins: the examples pass everything.
func TestGoodPlugins(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "kubeconfig") // of a cluster that does not answer: a plugin has to live with that
	if err := os.WriteFile(nowhere, []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],`+
		`"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],"users":[{"name":"u","user":{}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ plugin, check string }{
		{"short-secrets", "reviews every operation of its rules, also as dry run"},
		{"disk-by-label", "equal pods get equal answers"},
		{"freememory", "refuses an epoch that it does not know with FAILED_PRECONDITION"},
	} {
		t.Run(c.plugin, func(t *testing.T) {
			t.Parallel()
			results, err := run(t, Options{File: build(t, "../examples/"+c.plugin), Env: []string{"KUBELITH_KUBECONFIG=" + nowhere}})
			if err != nil {
				t.Error(err)
			}
			if r, ran := results[c.check]; !ran || r.Err != nil {
				t.Errorf("%q: ran %v, %v", c.check, ran, r.Err)
			}
		})
	}
}

// TestWrongPlugins: each rule that is broken is found, by the check that is for it.
func TestWrongPlugins(t *testing.T) {
	file := build(t, "./testdata/wrong")
	for rule, check := range map[string]string{
		"host":  "ends when its host has gone",
		"hands": "refuses to be started by hand",
		"same":  "describes itself the same after a restart",
		"uid":   "reviews every operation of its rules, also as dry run",
		"patch": "reviews every operation of its rules, also as dry run",
		"crash": "garbage is an error, not a crash",
		"score": "knows the nodes that it was sent",
		"epoch": "refuses an epoch that it does not know with FAILED_PRECONDITION",
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			results, err := run(t, Options{File: file, Args: []string{rule}})
			if err == nil || results[check].Err == nil {
				t.Errorf("%q passed (%v)", check, err)
			}
		})
	}
}

// TestNoPlugin: what is none is one result, with the reason.
func TestNoPlugin(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("#!/bin/sh\necho hello\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{text: "hello", text + "-missing": "does not exist"} {
		results, err := run(t, Options{File: file})
		if err == nil || len(results) != 1 {
			t.Errorf("%s: %v, %v", file, results, err)
		}
		for _, r := range results {
			if r.Err == nil || !strings.Contains(r.Err.Error(), want) || strings.Contains(r.Err.Error(), "\n") {
				t.Errorf("%s: %v, want %q in one line", file, r.Err, want)
			}
		}
	}
}
