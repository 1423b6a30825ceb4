package kubelith

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/urfave/cli/v2"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/components/controlplane/snapshot"
	"kubelith.io/kubelith/components/node"
)

func serverCommand() *cli.Command {
	return &cli.Command{
		Name:  "server",
		Usage: "run a cluster: control plane and node",
		Flags: append(config.Flags(),
			&cli.BoolFlag{
				Name: clusterReset,
				Usage: "disaster recovery after the loss of most servers: make this server, while it is stopped, " +
					"the only one of its cluster; then start it without this flag",
			},
			&cli.BoolFlag{
				Name: clusterResetForce,
				Usage: "with --cluster-reset: reset even if the other servers answer with a majority; " +
					"data that only they have is moved aside when they return",
			},
			&cli.StringFlag{
				Name: clusterResetRestorePath,
				Usage: "with --cluster-reset: create the data directory from this snapshot instead, " +
					"as kubelith snapshot restore does; the name is k3s'",
			},
			&cli.BoolFlag{
				Name:  stopWithStdin,
				Usage: "stop when standard input ends, as it does when the program that started this server ends",
			}),
		Subcommands: []*cli.Command{
			administratorCommand("leave", "", "remove this server from a cluster of several", leaveServers),
		},
		OnUsageError: usageError,
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			cfg, err := loadServer(c)
			if err != nil {
				return err
			}
			ctx := c.Context
			if c.Bool(clusterReset) {
				return resetCluster(c, cfg)
			}
			for _, flag := range []string{clusterResetForce, clusterResetRestorePath} {
				if c.IsSet(flag) {
					return fmt.Errorf("--%s does nothing alone: add --%s, or leave it out", flag, clusterReset)
				}
			}
			if c.Bool(stopWithStdin) {
				ctx = untilEnd(ctx, c.App.Reader)
			}
			return node.Serve(ctx, cfg, Version, output(c, &cfg.Node, "server.log"))
		},
	}
}

// These are flags only: in a file they would take effect at every start.
const (
	clusterReset            = "cluster-reset"
	clusterResetForce       = clusterReset + "-force"
	clusterResetRestorePath = clusterReset + "-restore-path"
)

// resetCluster makes this server the only one of its cluster, with its data or, on a machine without any, with those
// of a snapshot.
func resetCluster(c *cli.Context, cfg *config.Server) error {
	if !c.IsSet(clusterResetRestorePath) {
		return node.ResetCluster(c.Context, cfg, Version, c.Bool(clusterResetForce), c.App.Writer)
	}
	if c.Bool(clusterResetForce) {
		return fmt.Errorf("--%s is for the data that this server has: leave it out with --%s", clusterResetForce, clusterResetRestorePath)
	}
	if cfg.Witness {
		return errors.New("a witness is not restored from a snapshot, as it has no keys: restore a server, and let the witness join it")
	}
	if cfg.SnapshotDir == "" {
		cfg.SnapshotDir = snapshot.Dir(cfg.DataDir)
	}
	return restoreNamed(c, cfg, c.String(clusterResetRestorePath))
}

// leaveServers takes the server of this machine out of the cluster.
func leaveServers(c *cli.Context, cs kubernetes.Interface) error {
	v, err := serversView(c.Context, cs)
	if err != nil {
		return err
	}
	if err := removeServer(c.Context, cs, v.Asked); err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.App.Writer, "server %s has left the cluster and is stopping: disable its service, "+
		"run kubelith reset --data there, and kubelith node remove %[1]s on another server\n", v.Asked)
	return err
}

// stopWithStdin ties a server to the program that started it: a pipe ends however its writer ends. It is a flag only,
// as it describes how this process was started.
const stopWithStdin = "stop-with-stdin"

// untilEnd returns a context that is also cancelled when in ends. The process ends with it, and so with the read.
func untilEnd(ctx context.Context, in io.Reader) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		io.Copy(io.Discard, in) // a read error is an end too
	}()
	return ctx
}

// loadServer reads the configuration, finds the node's addresses and checks everything. The error has a line for each
// fault; the configuration comes with it if it was readable apart from those.
func loadServer(c *cli.Context) (*config.Server, error) {
	cfg, wrong := config.Load(c)
	if cfg == nil {
		return nil, wrong
	}
	if len(cfg.NodeIP) == 0 {
		var err error
		if cfg.NodeIP, err = config.DetectNodeIPs(cfg.ClusterCIDR); err != nil {
			return cfg, errors.Join(wrong, err)
		}
		cfg.NodeIPDetected = true
	}
	if err := cfg.Validate(); err != nil {
		return cfg, errors.Join(wrong, err)
	}
	if cfg.AdvertiseAddress == "" {
		cfg.AdvertiseAddress = cfg.NodeIP[0]
	}
	return cfg, wrong
}

// output shows the progress of the start on a terminal and keeps the log in a file; any other output gets the log. The
// configuration may name another file.
func output(c *cli.Context, cfg *config.Node, logFile string) node.Output {
	if out := terminal(c.App.Writer); out != nil {
		return node.Output{LogFile: filepath.Join(cfg.RunDir, logFile), Progress: out}
	}
	return node.Output{Log: c.App.ErrWriter}
}
