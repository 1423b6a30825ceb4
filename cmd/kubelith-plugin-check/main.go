// Kubelith-plugin-check starts the executable of a plugin and checks what every plugin of its kind must do;
// plugins/conformance holds the checks. `kubelith plugin check` executes it. It is a separate program because it links
// kubernetes-csi's conformance suite: a test framework, which registers flags in init(), handles signals and exits,
// does not belong in the server.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"
	"k8s.io/apimachinery/pkg/util/yaml"

	"kubelith.io/kubelith/base/oneline"
	"kubelith.io/kubelith/plugins/conformance"
	"kubelith.io/kubelith/plugins/conformance/csisanity"
	"kubelith.io/kubelith/plugins/proto"
)

// csiSanity is the command with which the program starts itself to run kubernetes-csi's suite, see csisanity.
const csiSanity = "csi-sanity"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := app(os.Stdin, os.Stdout, os.Stderr).RunContext(ctx, os.Args)
	stop()
	if err != nil {
		for line := range strings.Lines(strings.TrimSpace(err.Error())) {
			fmt.Fprintln(os.Stderr, "kubelith-plugin-check: "+oneline.Escape(strings.TrimSuffix(line, "\n")))
		}
		os.Exit(1)
	}
}

// app is the command line, on these streams.
func app(in io.Reader, out, err io.Writer) *cli.App {
	return &cli.App{
		Reader:    in,
		Writer:    out,
		ErrWriter: err,
		Name:      "kubelith plugin check",
		Usage:     "start a plugin's executable and check what every plugin of its kind must do",
		UsageText: "kubelith plugin check [options] FILE [ARGUMENT...]",
		Description: "No server is needed. The plugin runs in a temporary directory, which is removed at the end. Storage plugins create, mount\n" +
			"and delete volumes, which needs root. docs/plugin-protocol.md lists the requirements.",
		HideVersion:     true,
		HideHelpCommand: true,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "config", Usage: "YAML or JSON `file` with the plugin's config: section"},
			&cli.StringFlag{Name: "kubeconfig", Usage: "kubeconfig `file` for a plugin that reads the cluster; a server would provide one"},
			&cli.BoolFlag{Name: "log", Usage: "show the plugin's log"},
		},
		Commands: []*cli.Command{{
			Name: csiSanity, Hidden: true, HideHelp: true,
			Action: func(c *cli.Context) error { return csisanity.Main(c.App.Reader, csisanity.ResultsFile()) },
		}},
		ExitErrHandler: func(*cli.Context, error) {}, // main prints errors, once
		OnUsageError: func(_ *cli.Context, err error, _ bool) error {
			return fmt.Errorf("%w: see kubelith plugin check --help", err)
		},
		Action: check,
	}
}

func check(c *cli.Context) error {
	if c.NArg() == 0 {
		return errors.New("no executable given: kubelith plugin check FILE")
	}
	file, err := filepath.Abs(c.Args().First())
	if err != nil {
		return err
	}
	config, err := pluginConfig(c.String("config"))
	if err != nil {
		return err
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	if c.Bool("log") {
		log.SetOutput(c.App.ErrWriter)
	}
	options := conformance.Options{
		File:   file,
		Args:   c.Args().Tail(),
		Config: config,
		Suite:  []string{"/proc/self/exe", csiSanity},
		Log:    logrus.NewEntry(log),
	}
	if name := c.String("kubeconfig"); name != "" {
		if name, err = filepath.Abs(name); err != nil {
			return err
		}
		options.Env = []string{proto.KubeconfigVariable + "=" + name}
	}
	return conformance.Run(c.Context, options, func(r conformance.Result) { fmt.Fprintln(c.App.Writer, r) })
}

// pluginConfig returns the YAML of a file as JSON; nil without a name.
func pluginConfig(name string) ([]byte, error) {
	if name == "" {
		return nil, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	json, err := yaml.ToJSON(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return json, nil
}
