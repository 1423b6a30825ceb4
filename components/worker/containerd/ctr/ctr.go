// Package ctr is containerd's command line client, as `kubelith ctr`. It is for inspection and debugging; the kubelet
// owns what it finds in the namespace k8s.io.
package ctr

import (
	"context"
	"os"

	"github.com/containerd/containerd/v2/cmd/ctr/app"
	"github.com/urfave/cli/v3"

	"kubelith.io/kubelith/base/names"
)

// deprecations is ctr's switch for its deprecation warnings before each command; false shows them.
const deprecations = "CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS"

// Run executes ctr with args, which follow the command's name. It uses the daemon at address and the namespace k8s.io
// unless args or the environment (CONTAINERD_ADDRESS, CONTAINERD_NAMESPACE) name others. It returns errors instead of
// exiting.
func Run(ctx context.Context, address string, args []string) error {
	// This release of containerd calls our configuration deprecated, which is right for it, and the host's cgroups,
	// which kubelith check reports.
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
			flag.Value = names.ContainerdNamespace
		}
	}
	cmd.ExitErrHandler = func(context.Context, *cli.Command, error) {} // the default handler calls os.Exit
	return cmd.Run(ctx, append([]string{"ctr"}, args...))
}
