package main

import (
	"errors"

	"github.com/urfave/cli/v2"

	"kubelith.io/kubelith/components/config"
	"kubelith.io/kubelith/components/node"
)

func agentCommand() *cli.Command {
	return &cli.Command{
		Name:         "agent",
		Usage:        "run a node of a cluster whose server is on another machine",
		Flags:        config.AgentFlags(),
		OnUsageError: usageError,
		Action: func(c *cli.Context) error {
			cfg, err := loadAgent(c)
			if err != nil {
				return err
			}
			return node.ServeAgent(c.Context, cfg, kubelithVersion, output(&cfg.Node, "agent.log"))
		},
	}
}

// loadAgent reads the configuration and checks what can be known without the cluster, as loadServer does.
func loadAgent(c *cli.Context) (*config.Agent, error) {
	if err := noArguments(c); err != nil {
		return nil, err
	}
	cfg, wrong := config.LoadAgent(c)
	if cfg == nil {
		return nil, wrong
	}
	return cfg, errors.Join(wrong, cfg.Validate())
}
