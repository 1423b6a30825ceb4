// Package ctr is containerd's command line client, as `kubelith ctr`. It is for looking and debugging; the
// kubelet owns what it finds in the namespace k8s.io.
package ctr

import (
	"context"

	"github.com/containerd/containerd/v2/cmd/ctr/app"
	"github.com/urfave/cli/v3"
)

// Namespace is where CRI keeps images and containers.
const Namespace = "k8s.io"

// Run executes ctr with args, which come after the command's name. The daemon at address and the namespace
// k8s.io are used unless args or the environment (CONTAINERD_ADDRESS, CONTAINERD_NAMESPACE) say otherwise.
// It returns errors rather than exit.
func Run(ctx context.Context, address string, args []string) error {
	cmd := app.New()
	for _, f := range cmd.Flags {
		flag, ok := f.(*cli.StringFlag)
		if !ok {
			continue
		}
		switch flag.Name {
		case "address":
			flag.Value = address
		case "namespace":
			flag.Value = Namespace
		}
	}
	cmd.ExitErrHandler = func(context.Context, *cli.Command, error) {} // the default handler calls os.Exit
	return cmd.Run(ctx, append([]string{"ctr"}, args...))
}
