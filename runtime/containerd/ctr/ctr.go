// Package ctr is containerd's command line client, as `kubelith ctr`. It is for looking and debugging; the
// kubelet owns what it finds in the namespace k8s.io.
package ctr

import (
	"context"
	"os"

	"github.com/containerd/containerd/v2/cmd/ctr/app"
	"github.com/urfave/cli/v3"
)

// Namespace is where CRI keeps images and containers.
const Namespace = "k8s.io"

// deprecations is ctr's switch for what it says of deprecations before each command; false shows it.
const deprecations = "CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS"

// Run executes ctr with args, which come after the command's name. The daemon at address and the namespace
// k8s.io are used unless args or the environment (CONTAINERD_ADDRESS, CONTAINERD_NAMESPACE) say otherwise.
// It returns errors rather than exit.
func Run(ctx context.Context, address string, args []string) error {
	// What containerd of this release calls deprecated is our configuration, which is right for it, and the host's cgroups, of
	// which kubelith check tells.
	if _, set := os.LookupEnv(deprecations); !set {
		os.Setenv(deprecations, "true")
	}
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
