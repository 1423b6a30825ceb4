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
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			cfg, err := loadServer(c)
			if err != nil {
				return err
			}
			results := node.Preflight(c.Context, cfg)
			for _, r := range results {
				fmt.Println(r)
			}
			if failed := host.Failures(results); failed != nil {
				n := len(strings.Split(failed.Error(), "\n"))
				return errors.New(map[bool]string{true: "1 check failed", false: fmt.Sprintf("%d checks failed", n)}[n == 1])
			}
			return nil
		},
	}
}
