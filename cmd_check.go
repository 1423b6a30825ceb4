package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"kubelith.io/kubelith/components/config"
	"kubelith.io/kubelith/components/host"
	"kubelith.io/kubelith/components/logging"
	"kubelith.io/kubelith/components/node"
)

func checkCommand() *cli.Command {
	return &cli.Command{
		Name:         "check",
		Usage:        "say whether this host can run a server, and what to do where it cannot",
		Flags:        config.Flags(),
		OnUsageError: usageError,
		Subcommands: []*cli.Command{{
			Name:         "agent",
			Usage:        "the same for an agent, and whether it could join",
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
				return show(results)
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
			return show(results)
		},
	}
}

// quiet drops what libraries log: the results say it.
func quiet() error {
	_, err := logging.Setup(logging.Options{Format: "text", Level: "error", Out: io.Discard})
	return err
}

// configuration has a line for each fault of the configuration, or says that there is none.
func configuration(err error) []host.Result {
	const name = "configuration"
	if err == nil {
		return []host.Result{{Name: name, Status: host.OK, Message: "understood"}}
	}
	var results []host.Result
	for line := range strings.SplitSeq(err.Error(), "\n") {
		results = append(results, host.Result{Name: name, Status: host.Fail, Message: line})
	}
	return results
}

// show prints the results; it fails when one of them has failed.
func show(results []host.Result) error {
	for _, r := range results {
		fmt.Println(r)
	}
	failed := host.Failures(results)
	if failed == nil {
		return nil
	}
	n := len(strings.Split(failed.Error(), "\n"))
	return errors.New(map[bool]string{true: "1 check failed", false: fmt.Sprintf("%d checks failed", n)}[n == 1])
}
