package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"kubelith.io/kubelith/components/config"
	"kubelith.io/kubelith/components/host"
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
				cfg, err := loadAgent(c)
				if err != nil {
					return err
				}
				return show(node.PreflightAgent(c.Context, cfg))
			},
		}},
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			cfg, err := loadServer(c)
			if err != nil {
				return err
			}
			return show(node.Preflight(c.Context, cfg))
		},
	}
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
