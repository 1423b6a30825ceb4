// Package kubelith has the commands of the executable, one file for each.
package kubelith

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"
)

// App is the command line of kubelith, on these streams. The caller prints the errors that its commands return.
func App(in io.Reader, out, err io.Writer) *cli.App {
	return &cli.App{
		Reader:          in,
		Writer:          out,
		ErrWriter:       err,
		Name:            "kubelith",
		Usage:           "a whole Kubernetes cluster in one executable",
		HideVersion:     true,
		HideHelpCommand: true,
		// For the scripts of the command completion.
		EnableBashCompletion: true,
		Commands: []*cli.Command{
			serverCommand(),
			agentCommand(),
			kubectlCommand(),
			whyCommand(),
			traceCommand(),
			ctrCommand(),
			checkCommand(),
			tokenCommand(),
			nodeCommand(),
			snapshotCommand(),
			etcdCommand(),
			upgradeCommand(),
			certificateCommand(),
			encryptionCommand(),
			kubeconfigCommand(),
			schedulerPolicyCommand(),
			policyCommand(),
			pluginCommand(),
			stopPodsCommand(),
			resetCommand(),
			sandboxCommand(),
			versionCommand(),
			completionCommand(),
		},
		// Errors are printed once, by exit.
		ExitErrHandler: func(*cli.Context, error) {},
		OnUsageError: func(_ *cli.Context, err error, _ bool) error {
			return fmt.Errorf("%w: see kubelith --help", err)
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("unknown command %q: see kubelith --help", c.Args().First())
			}
			return cli.ShowAppHelp(c)
		},
	}
}

// usageError reports each wrong flag in one line, without the whole help. The parser, whose error err is, stops at the
// first.
func usageError(c *cli.Context, err error, _ bool) error {
	set := flag.NewFlagSet(c.Command.Name, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	for _, f := range c.Command.Flags {
		if f.Apply(set) != nil {
			return err
		}
	}
	var errs []error
	for rest := c.Lineage()[1].Args().Tail(); ; {
		wrong := set.Parse(rest)
		if wrong == nil {
			return cmp.Or(errors.Join(errs...), err)
		}
		errs = append(errs, fmt.Errorf("%w: see %s --help", wrong, c.Command.HelpName))
		if set.NArg() == len(rest) { // it does not have the form of a flag
			rest = rest[1:]
		} else {
			rest = set.Args()
		}
		for len(rest) > 0 && !strings.HasPrefix(rest[0], "-") { // its value
			rest = rest[1:]
		}
	}
}
