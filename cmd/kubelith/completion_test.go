package kubelith

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
)

func TestCompletion(t *testing.T) {
	defer func(args []string) { os.Args = args }(os.Args)
	complete := func(args ...string) (string, error) {
		var out bytes.Buffer
		a := App(nil, &out, io.Discard)
		os.Args = append([]string{"kubelith"}, args...) // urfave/cli reads the word to complete there
		err := a.Run(os.Args)
		return out.String(), err
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if text, err := complete("completion", shell); err != nil || !strings.Contains(text, "kubelith completion "+shell) {
			t.Errorf("%s: %v, %q", shell, err, text)
		}
	}
	for _, args := range [][]string{{"completion"}, {"completion", "tcsh"}, {"completion", "bash", "zsh"}} {
		if _, err := complete(args...); err == nil || !strings.Contains(err.Error(), "bash, zsh or fish") {
			t.Errorf("%q: %v", args, err)
		}
	}
	for _, tc := range []struct {
		args string
		want []string
	}{
		{"--generate-bash-completion", []string{"server", "agent", "check", "completion", "kubectl"}},
		{"check --generate-bash-completion", []string{"agent"}},
		{"server --log- --generate-bash-completion", []string{"--log-level", "--log-format", "--log-file"}},
		{"completion --generate-bash-completion", []string{"bash", "zsh", "fish"}},
	} {
		got, err := complete(strings.Fields(tc.args)...)
		for _, word := range tc.want {
			if err != nil || !strings.Contains("\n"+got, "\n"+word) {
				t.Errorf("%s: %v, %q lacks %s", tc.args, err, got, word)
			}
		}
	}
}
