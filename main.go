// Kubelith is a whole Kubernetes cluster in one executable.
//
// main parses the command line, calls, prints an error and exits: the only
// os.Exit of the project is here. components/node has what a server is made of.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"kubelith.io/kubelith/components/logging"
	"kubelith.io/kubelith/components/node/startup"
)

func main() {
	startup.Done()
	// Under the name kubectl the executable is kubectl.
	if filepath.Base(os.Args[0]) == "kubectl" {
		exit(kubectl(os.Args[1:]))
	}
	// kubectl and ctr parse their own flags, and need no others of ours before.
	if len(os.Args) > 1 && os.Args[1] == "kubectl" {
		exit(kubectl(os.Args[2:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := app().RunContext(ctx, os.Args)
	stop()
	exit(err)
}

// exit prints err as one line per problem and ends the process.
func exit(err error) {
	if err == nil {
		os.Exit(0)
	}
	var code interface{ ExitCode() int }
	status := 1
	if errors.As(err, &code) {
		status = code.ExitCode()
	}
	say(err)
	os.Exit(status)
}

// unread is how long an error waits for somebody to read it. A service that has ended must end in time to be started again.
const unread = time.Minute

// say prints err on standard error.
func say(err error) {
	said := make(chan struct{})
	go func() {
		defer close(said)
		if text := strings.TrimSpace(err.Error()); text != "" {
			for _, line := range strings.Split(text, "\n") {
				fmt.Fprintln(os.Stderr, "kubelith: "+logging.Printable(line))
			}
		}
	}()
	select {
	case <-said:
	case <-time.After(unread):
	}
}

func app() *cli.App {
	return &cli.App{
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
			ctrCommand(),
			checkCommand(),
			tokenCommand(),
			nodeCommand(),
			kubeconfigCommand(),
			pluginCommand(),
			csiSanityCommand(),
			stopPodsCommand(),
			resetCommand(),
			versionCommand(),
			completionCommand(),
		},
		// Errors are printed once, by exit.
		ExitErrHandler: func(*cli.Context, error) {},
		OnUsageError: func(_ *cli.Context, err error, _ bool) error {
			return fmt.Errorf("%w: see kubelith --help", err)
		},
		CommandNotFound: func(c *cli.Context, name string) {
			exit(fmt.Errorf("unknown command %q: see kubelith --help", name))
		},
	}
}

// usageError makes one line of each wrong flag, without the whole help. The parser, whose error err is, stops at the first.
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
		errs = append(errs, fmt.Errorf("%w: see kubelith %s --help", wrong, c.Command.Name))
		if set.NArg() == len(rest) { // it has the form of no flag
			rest = rest[1:]
		} else {
			rest = set.Args()
		}
		for len(rest) > 0 && !strings.HasPrefix(rest[0], "-") { // its value
			rest = rest[1:]
		}
	}
}
