package kubelith

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/components/node"
	"kubelith.io/kubelith/host/preflight"
)

func checkCommand() *cli.Command {
	return &cli.Command{
		Name:         "check",
		Usage:        "check whether this host can run a server",
		Flags:        config.Flags(),
		OnUsageError: usageError,
		Subcommands: []*cli.Command{{
			Name:         "agent",
			Usage:        "check whether this host can run an agent and join the cluster",
			Flags:        config.AgentFlags(),
			OnUsageError: usageError,
			Action: func(c *cli.Context) error {
				if err := quiet(); err != nil {
					return err
				}
				cfg, err := loadAgent(c)
				results := configuration(err)
				if err == nil {
					results = append(results, node.PreflightAgent(c.Context, cfg)...)
				}
				return show(c, results)
			},
		}},
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			if err := quiet(); err != nil {
				return err
			}
			cfg, err := loadServer(c)
			results := configuration(err)
			switch {
			case cfg == nil:
			case cfg.Validate() != nil:
				results = append(results, node.PreflightArguments(cfg)...)
			default:
				results = append(results, node.Preflight(c.Context, cfg)...)
			}
			return show(c, results)
		},
	}
}

// quiet drops the libraries' log: the results contain the errors.
func quiet() error {
	_, err := logging.Setup(logging.Options{Format: "text", Level: "error", Out: io.Discard})
	return err
}

// configuration returns a line for each error in the configuration, or one that reports none.
func configuration(err error) []preflight.Result {
	const name = "configuration"
	if err == nil {
		return []preflight.Result{{Name: name, Status: preflight.OK, Message: "understood"}}
	}
	var results []preflight.Result
	for line := range strings.SplitSeq(err.Error(), "\n") {
		results = append(results, preflight.Result{Name: name, Status: preflight.Fail, Message: line})
	}
	return results
}

// show prints the results; it returns an error when one of them has failed.
func show(c *cli.Context, results []preflight.Result) error {
	for _, r := range results {
		fmt.Fprintln(c.App.Writer, r)
	}
	failed := preflight.Failures(results)
	if failed == nil {
		return nil
	}
	n := len(strings.Split(failed.Error(), "\n"))
	return errors.New(map[bool]string{true: "1 check failed", false: fmt.Sprintf("%d checks failed", n)}[n == 1])
}
