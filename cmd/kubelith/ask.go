package kubelith

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v2"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// accessFlags are those of the commands that ask the cluster with the user's rights.
func accessFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "kubeconfig", Usage: "file with your credentials (default: as kubelith kubectl)"},
		&cli.StringFlag{Name: "context", Usage: "context of the kubeconfig"},
	}
}

// asking is the action of such a command.
func asking(ask func(c *cli.Context, args []string) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		args, err := interspersed(c)
		if errors.Is(err, flag.ErrHelp) {
			return cli.ShowSubcommandHelp(c)
		}
		if err != nil {
			return err
		}
		err = ask(c, args)
		if utilnet.IsConnectionRefused(err) {
			return fmt.Errorf("%w: is the server running?", err)
		}
		return err
	}
}

// interspersed returns the arguments of a command, and sets the flags that stand behind them: kubectl's users write
// them there. urfave/cli parses only those before the first argument.
func interspersed(c *cli.Context) (args []string, err error) {
	for rest := c.Args().Slice(); len(rest) > 0; {
		if !strings.HasPrefix(rest[0], "-") || rest[0] == "-" {
			args, rest = append(args, rest[0]), rest[1:]
			continue
		}
		set := flag.NewFlagSet(c.Command.Name, flag.ContinueOnError)
		set.SetOutput(io.Discard)
		names := map[string][]string{}
		for _, f := range c.Command.Flags {
			if err := f.Apply(set); err != nil {
				return nil, err
			}
			for _, name := range f.Names() {
				names[name] = f.Names()
			}
		}
		if err := set.Parse(rest); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, err
			}
			return nil, fmt.Errorf("%w: see %s --help", err, c.Command.HelpName)
		}
		set.Visit(func(f *flag.Flag) {
			for _, name := range names[f.Name] {
				err = errors.Join(err, c.Set(name, f.Value.String()))
			}
		})
		if err != nil {
			return nil, err
		}
		rest = set.Args()
	}
	return args, nil
}

// clusterOf returns the access to the cluster that flags and environment name, and a client's configuration of it.
func clusterOf(c *cli.Context) (access *genericclioptions.ConfigFlags, cfg *rest.Config, err error) {
	access = genericclioptions.NewConfigFlags(true).WithDiscoveryBurst(300).WithDiscoveryQPS(50)
	kubeconfig, name, namespace := c.String("kubeconfig"), c.String("context"), c.String("namespace")
	if kubeconfig == "" {
		own, err := ownKubeconfig()
		if err != nil {
			return nil, nil, fmt.Errorf("%w: ask on the server, or give --kubeconfig", err)
		}
		kubeconfig = own
	} else if _, err := os.Stat(kubeconfig); err != nil {
		return nil, nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	timeout := "30s"
	access.KubeConfig, access.Context, access.Namespace, access.Timeout = &kubeconfig, &name, &namespace, &timeout
	cfg, err = access.ToRESTConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, nil, errors.New("no credentials: run this as root on a server, or give --kubeconfig")
	}
	return access, cfg, err
}
