package main

import (
	"slices"
	"testing"

	"kubelith.io/kubelith/components/config"
)

func TestSplitTakesOnlyLeadingFlagsOfOurs(t *testing.T) {
	for _, c := range []struct{ args, ours, theirs []string }{
		{nil, nil, nil},
		{[]string{"images", "ls"}, nil, []string{"images", "ls"}},
		{[]string{"--run-dir", "/r", "images", "ls"}, []string{"--run-dir", "/r"}, []string{"images", "ls"}},
		{[]string{"--run-dir=/r", "--data-dir=/d", "-n", "x", "images"}, []string{"--run-dir=/r", "--data-dir=/d"}, []string{"-n", "x", "images"}},
		{[]string{"--namespace", "k8s.io", "--run-dir=/r"}, nil, []string{"--namespace", "k8s.io", "--run-dir=/r"}},
		{[]string{"--run-dir"}, nil, []string{"--run-dir"}},
	} {
		ours, theirs := split(c.args, config.DirFlags())
		if !slices.Equal(ours, c.ours) || !slices.Equal(theirs, c.theirs) {
			t.Errorf("%q: ours %q, theirs %q", c.args, ours, theirs)
		}
	}
}
