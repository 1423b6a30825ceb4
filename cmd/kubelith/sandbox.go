package kubelith

import (
	"encoding/json"
	"errors"
	"os"

	"github.com/urfave/cli/v2"

	"kubelith.io/kubelith/host/sandbox"
)

// sandboxCommand keeps a sandbox until standard input ends. The Go library starts it (cluster/sandbox.go), so that test
// binaries need not link what it does.
func sandboxCommand() *cli.Command {
	return &cli.Command{
		Name:   "sandbox",
		Usage:  "give a node its own namespaces, for tests",
		Hidden: true,
		Action: func(c *cli.Context) error {
			if os.Getenv(sandbox.HolderEnv) != "" {
				return sandbox.Hold()
			}
			if err := noArguments(c); err != nil {
				return err
			}
			sb, err := sandbox.New(sandbox.Options{})
			if err != nil {
				return err
			}
			err = json.NewEncoder(c.App.Writer).Encode(map[string]any{"pid": sb.HolderPID(), "cgroup": sb.Name(), "nodeIP": sb.NodeIP, "hostIP": sb.HostIP})
			if err == nil {
				<-untilEnd(c.Context, c.App.Reader).Done()
			}
			return errors.Join(err, sb.Close())
		},
	}
}
