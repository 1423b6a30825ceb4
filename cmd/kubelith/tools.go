package kubelith

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	componentcli "k8s.io/component-base/cli"
	"k8s.io/component-base/version"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/plugin"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/components/worker/containerd/ctr"
	"kubelith.io/kubelith/components/worker/join"
	"kubelith.io/kubelith/host/reset"
	"kubelith.io/kubelith/patches"
	"kubelith.io/kubelith/plugins/process"
	"kubelith.io/kubelith/runtime/payload"
)

// Version is set at build time (-X kubelith.io/kubelith/cmd/kubelith.Version=...).
var Version = "v0.0.0-dev"

// noArguments refuses arguments of a command that takes none, instead of ignoring them.
func noArguments(c *cli.Context) error {
	if c.Args().Present() {
		_, name, _ := strings.Cut(c.Command.HelpName, " ") // without the program's
		return fmt.Errorf("%s takes no arguments, got %q: see %s --help", name, c.Args().First(), c.Command.HelpName)
	}
	return nil
}

func kubectlCommand() *cli.Command {
	return &cli.Command{
		Name:            "kubectl",
		Usage:           "run kubectl; uses the admin kubeconfig by default. With --trace, show what the command set off",
		SkipFlagParsing: true,
		Action: func(c *cli.Context) error {
			return Kubectl(c.Args().Slice(), c.App.Reader, c.App.Writer, c.App.ErrWriter)
		},
	}
}

// Kubectl runs upstream's kubectl with args, on these streams. It ends the process itself on errors, unless --trace is
// among them.
func Kubectl(args []string, in io.Reader, out, errOut io.Writer) error {
	args, traced := takeTrace(args)
	admin, err := ownKubeconfig()
	if admin != "" {
		os.Setenv("KUBECONFIG", admin)
	} else if err != nil && asksCluster(args) {
		return fmt.Errorf("%w: use kubectl on the server, or give --kubeconfig", err)
	}
	os.Args = append([]string{"kubectl"}, args...)
	streams := genericiooptions.IOStreams{In: in, Out: out, ErrOut: errOut}
	if traced {
		return kubectlTraced(streams)
	}
	// Like upstream's main: errors are printed, and the process exits, as kubectl does.
	if err := runKubectl(streams, nil); err != nil {
		cmdutil.CheckErr(err)
	}
	return nil
}

// runKubectl runs kubectl with the process's arguments. wrap, unless nil, changes the configuration of its clients.
//
// Source: NewDefaultKubectlCommand in k8s.io/kubectl/pkg/cmd/cmd.go.
func runKubectl(streams genericiooptions.IOStreams, wrap func(*rest.Config) *rest.Config) error {
	access := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().WithDiscoveryBurst(300).WithDiscoveryQPS(50).
		WithWarningPrinter(streams).WithWrapConfigFn(wrap)
	return componentcli.RunNoErrOutput(cmd.NewDefaultKubectlCommandWithArgs(cmd.KubectlOptions{
		PluginHandler: cmd.NewDefaultPluginHandler(plugin.ValidPluginFilenamePrefixes),
		Arguments:     os.Args,
		ConfigFlags:   access,
		IOStreams:     streams,
	}))
}

// ownKubeconfig is the administrator's kubeconfig on a server, for a user who has no other: "" if there is one in
// KUBECONFIG or at home. The error is about an agent, which has no such file.
func ownKubeconfig() (string, error) {
	if os.Getenv("KUBECONFIG") != "" {
		return "", nil
	}
	home, _ := os.UserHomeDir()
	if _, err := os.Stat(filepath.Join(home, ".kube", "config")); home != "" && err == nil {
		return "", nil
	}
	admin := config.AdminKubeconfig(config.DefaultFile)
	f, err := os.Open(admin)
	if err != nil {
		if join.IsAgent(config.AgentDataDir(config.DefaultFile)) {
			return "", errors.New("this machine is an agent, which has no administrator's credentials")
		}
		return "", nil
	}
	f.Close()
	return admin, nil
}

// asksCluster reports whether kubectl with args needs a cluster and args name none.
func asksCluster(args []string) bool {
	command := ""
	for _, arg := range args {
		name, _, _ := strings.Cut(arg, "=")
		switch {
		case slices.Contains([]string{"--kubeconfig", "--server", "-s", "--help", "-h", "--client"}, name):
			return false
		case command == "" && !strings.HasPrefix(arg, "-"):
			command = arg
		}
	}
	return !slices.Contains([]string{"", "completion", "config", "help", "kustomize", "options", "plugin", "__complete", "__completeNoDesc"}, command)
}

func ctrCommand() *cli.Command {
	return &cli.Command{
		Name:            "ctr",
		Usage:           "run containerd's ctr on this node: kubelith ctr [--run-dir DIR] CTR-ARGUMENTS",
		SkipFlagParsing: true, // all except our own flags are ctr's
		Action: func(c *cli.Context) error {
			ours, theirs := split(c.Args().Slice(), config.DirFlags())
			app := &cli.App{Name: "ctr", Flags: config.DirFlags(), HideHelp: true, ExitErrHandler: func(*cli.Context, error) {}}
			app.Action = func(own *cli.Context) error {
				cfg, err := config.LoadDirs(own)
				if err != nil {
					return err
				}
				return ctr.Run(c.Context, cfg.ContainerdSocket(), theirs)
			}
			return app.Run(append([]string{"ctr"}, ours...))
		},
	}
}

// split separates the leading arguments that set one of flags, as --name=value or --name value, from the others.
func split(args []string, flags []cli.Flag) (ours, theirs []string) {
	known := map[string]bool{}
	for _, f := range flags {
		for _, name := range f.Names() {
			known["--"+name] = true
		}
	}
	theirs = args
	for len(theirs) > 0 {
		name, _, hasValue := strings.Cut(theirs[0], "=")
		n := 2
		if hasValue {
			n = 1
		}
		if !known[name] || len(theirs) < n {
			break
		}
		ours, theirs = append(ours, theirs[:n]...), theirs[n:]
	}
	return ours, theirs
}

func stopPodsCommand() *cli.Command {
	return &cli.Command{
		Name:  "stop-pods",
		Usage: "stop all pods of a stopped server or agent, as the service does at shutdown",
		Description: "Pods outlive the server, so that it can be restarted and replaced. Run this if they must not run without it.\n" +
			"Nothing is removed: the pods start again with the server.",
		Flags:        config.DirFlags(),
		OnUsageError: usageError,
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			cfg, err := config.LoadDirs(c)
			if err != nil {
				return err
			}
			r, err := reset.New(reset.Options{DataDir: cfg.DataDir, RunDir: cfg.RunDir, KubeletRootDir: cfg.KubeletRootDir, Out: c.App.Writer})
			if err != nil {
				return err
			}
			defer r.Close()
			return r.StopPods(c.Context)
		},
	}
}

func resetCommand() *cli.Command {
	return &cli.Command{
		Name:  "reset",
		Usage: "stop all pods and remove what the node left on this host",
		Flags: append(config.DirFlags("writeKubeconfig"),
			&cli.BoolFlag{Name: "yes", Usage: "do not ask for confirmation"},
			&cli.BoolFlag{Name: "data", Usage: "also remove the cluster's data and credentials"}),
		OnUsageError: usageError,
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			cfg, err := config.LoadDirs(c)
			if err != nil {
				return err
			}
			r, err := reset.New(reset.Options{
				DataDir:        cfg.DataDir,
				RunDir:         cfg.RunDir,
				RunLink:        cfg.SocketDir(),
				KubeletRootDir: cfg.KubeletRootDir,
				Kubeconfig:     cfg.WriteKubeconfig,
				Data:           c.Bool("data"),
				EndPlugins:     process.Sweep,
				Out:            c.App.Writer,
			})
			if err != nil {
				return err
			}
			defer r.Close()
			plan := r.Plan()
			if len(plan) == 0 {
				fmt.Fprintf(c.App.Writer, "nothing to remove: no server has left anything that belongs to --data-dir %s\n", cfg.DataDir)
				return nil
			}
			if !c.Bool("yes") && !confirmed(c, plan) {
				return fmt.Errorf("nothing was changed")
			}
			return r.Run(c.Context)
		},
	}
}

// writeJSON writes what -o json asks for.
func writeJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// confirmed shows the plan and asks for confirmation.
func confirmed(c *cli.Context, plan []string) bool {
	fmt.Fprintln(c.App.Writer, "This will:")
	for _, line := range plan {
		fmt.Fprintln(c.App.Writer, "  - "+line)
	}
	fmt.Fprint(c.App.Writer, "Go on? [y/N] ")
	answered := make(chan string, 1)
	go func() {
		answer, _ := bufio.NewReader(c.App.Reader).ReadString('\n')
		answered <- strings.ToLower(strings.TrimSpace(answer))
	}()
	select {
	case answer := <-answered:
		return answer == "y" || answer == "yes"
	case <-c.Context.Done():
		return false
	}
}

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:         "version",
		Usage:        "print the versions of Kubelith and its components",
		OnUsageError: usageError,
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			fmt.Fprintf(c.App.Writer, "kubelith   %s\nkubernetes %s\n", Version, version.Get().GitVersion)
			for _, m := range moduleVersions("go.etcd.io/etcd/server/v3", "github.com/containerd/containerd/v2", "github.com/coredns/coredns") {
				fmt.Fprintln(c.App.Writer, m)
			}
			fmt.Fprintf(c.App.Writer, "go         %s %s/%s\n", runtime.Version(), runtime.GOOS, runtime.GOARCH)
			applied := patches.Applied(payload.Patched())
			for _, patch := range applied {
				fmt.Fprintln(c.App.Writer, "patch      "+patch)
			}
			if len(applied) == 0 {
				fmt.Fprintln(c.App.Writer, "patch      none")
			}
			return nil
		},
	}
}
