package kubelith

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

// Flags may stand behind the arguments, as kubectl's users write them.
func TestInterspersed(t *testing.T) {
	for line, want := range map[string]string{
		"pod/web":                        "pod/web|||text",
		"-n shop pod/web":                "pod/web|shop||text",
		"pod/web -n shop -o json":        "pod/web|shop||json",
		"pod web --namespace=shop":       "pod web|shop||text",
		"--context x pod -o=json web":    "pod web||x|json",
		"pod/web -n shop --namespace me": "pod/web|me||text",
	} {
		var got string
		command := whyCommand()
		command.Action = func(c *cli.Context) error {
			args, err := interspersed(c)
			got = strings.Join([]string{strings.Join(args, " "), c.String("namespace"), c.String("context"), c.String("output")}, "|")
			if c.String("n") != c.String("namespace") {
				t.Errorf("%s: -n is %q", line, c.String("n"))
			}
			return err
		}
		app := &cli.App{Writer: io.Discard, ErrWriter: io.Discard, Commands: []*cli.Command{command}, ExitErrHandler: func(*cli.Context, error) {}}
		if err := app.Run(append([]string{"kubelith", "why"}, strings.Fields(line)...)); err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", line, got, err, want)
		}
	}
}

func TestWhyRefuses(t *testing.T) {
	for line, want := range map[string]string{
		"":                               "why needs the type and the name of one object",
		"pod/a pod/b":                    "why needs the type and the name of one object",
		"pod/web -o yaml":                `invalid value "yaml" for flag -o: use text or json: see kubelith why --help`,
		"pod/web --moon":                 "flag provided but not defined: -moon: see kubelith why --help",
		"pod/web --kubeconfig=/no/where": "--kubeconfig: stat /no/where: no such file or directory",
	} {
		err := App(nil, io.Discard, io.Discard).Run(append([]string{"kubelith", "why"}, strings.Fields(line)...))
		if err == nil || !strings.HasPrefix(err.Error(), want) || slices.Contains([]byte(err.Error()), '\n') {
			t.Errorf("%s: got %v, want %q", line, err, want)
		}
	}
}
