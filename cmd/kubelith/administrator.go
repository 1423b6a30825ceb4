package kubelith

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"kubelith.io/kubelith/base/config"
)

// administratorCommand returns a command that acts with an administrator's credentials.
func administratorCommand(
	name, args, usage string, action func(*cli.Context, kubernetes.Interface) error, flags ...cli.Flag,
) *cli.Command {
	kubeconfig := &cli.StringFlag{
		Name:    "kubeconfig",
		Usage:   "file with the credentials of an administrator (default: the server's admin kubeconfig)",
		EnvVars: []string{"KUBECONFIG"},
	}
	return &cli.Command{
		Name: name, ArgsUsage: args, Usage: usage, Flags: append(flags, kubeconfig),
		OnUsageError: usageError,
		Action: func(c *cli.Context) error {
			if args == "" {
				if err := noArguments(c); err != nil {
					return err
				}
			}
			cs, err := administrator(c.String("kubeconfig"))
			if err != nil {
				return err
			}
			err = action(c, cs)
			if utilnet.IsConnectionRefused(err) {
				return fmt.Errorf("%w: start kubelith server first", err)
			}
			return err
		},
	}
}

// viewOf sends a request to the server and returns its answer.
func viewOf[V any](ctx context.Context, request *rest.Request) (*V, error) {
	text, err := request.SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	var v V
	if err := json.Unmarshal(text, &v); err != nil {
		return nil, fmt.Errorf("cannot read the server's answer (%w): it may be an older release", err)
	}
	return &v, nil
}

// group returns a command that only has subcommands.
func group(name, usage string, subcommands ...*cli.Command) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, Subcommands: subcommands, HideHelpCommand: true, OnUsageError: usageError,
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("unknown command %q: see kubelith %s --help", c.Args().First(), name)
			}
			return cli.ShowSubcommandHelp(c)
		},
	}
}

// administrator returns a client with the credentials in a file, which may be a list as in KUBECONFIG.
func administrator(kubeconfig string) (kubernetes.Interface, error) {
	if kubeconfig == "" {
		kubeconfig = config.AdminKubeconfig(config.DefaultFile)
		if _, err := os.Stat(kubeconfig); err != nil {
			return nil, fmt.Errorf("no credentials (%w): run this as root on a server, or give --kubeconfig", err)
		}
	}
	rules := &clientcmd.ClientConfigLoadingRules{Precedence: filepath.SplitList(kubeconfig)}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	cfg.Timeout = 70 * time.Second // a running API answers within 60 s: on a slow disk with an error, else earlier
	return kubernetes.NewForConfig(cfg)
}
