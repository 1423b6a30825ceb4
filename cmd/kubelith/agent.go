package kubelith

import (
	"errors"

	"github.com/urfave/cli/v2"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/components/node"
)

func agentCommand() *cli.Command {
	return &cli.Command{
		Name:         "agent",
		Usage:        "run a node that joins a cluster",
		Flags:        config.AgentFlags(),
		OnUsageError: usageError,
		Action: func(c *cli.Context) error {
			cfg, err := loadAgent(c)
			if err != nil {
				return err
			}
			return node.ServeAgent(c.Context, cfg, Version, output(c, &cfg.Node, "agent.log"))
		},
	}
}

// loadAgent reads the configuration and checks what can be known without the cluster, like loadServer.
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
