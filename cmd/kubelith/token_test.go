package kubelith

import (
	"io"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/base/jointoken"
)

func TestPrintTokens(t *testing.T) {
	now := time.Now()
	var out strings.Builder
	err := printTokens(&out, []jointoken.Info{
		{ID: "aaaaaa", Expires: now.Add(-time.Second), Usages: []string{"authentication", "signing"}},
		{ID: "bbbbbb", Expires: now.Add(90 * time.Minute), Usages: []string{"signing"}, Description: "for the rack", Once: true},
		{ID: "cccccc", Once: true, Used: true},
	}, now)
	if err != nil {
		t.Fatal(err)
	}
	want := `ID       EXPIRES      USAGES                   MACHINES    DESCRIPTION
aaaaaa   expired      authentication,signing   any         
bbbbbb   in 1h30m0s   signing                  one         for the rack
cccccc   never                                 one, used   
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// Wrong arguments are reported in one line, before any request to a server.
func TestTokenArguments(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nonexistent/kubeconfig")
	for args, want := range map[string]string{
		"token nonsense":             `unknown command "nonsense": see kubelith token --help`,
		"token create now":           `token create takes no arguments, got "now": see kubelith token create --help`,
		"token create --tll 1h":      "flag provided but not defined: -tll: see kubelith token create --help",
		"token list":                 "kubeconfig /nonexistent/kubeconfig: ",
		"token list --kubeconfig=/x": "kubeconfig /x: ",
	} {
		a := App(nil, io.Discard, io.Discard)
		err := a.Run(append([]string{"kubelith"}, strings.Fields(args)...))
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
}
