package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	componentcli "k8s.io/component-base/cli"
	"k8s.io/component-base/version"
	"k8s.io/kubectl/pkg/cmd"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"kubelith.io/kubelith/components/config"
	"kubelith.io/kubelith/components/host"
	"kubelith.io/kubelith/components/join"
	pluginhost "kubelith.io/kubelith/plugins/host"
	"kubelith.io/kubelith/runtime/containerd/ctr"
)

// kubelithVersion is set at build time (-X main.kubelithVersion=...).
var kubelithVersion = "v0.0.0-dev"

// noArguments refuses what a command does not take, instead of ignoring it.
func noArguments(c *cli.Context) error {
	if c.Args().Present() {
		return fmt.Errorf("%s takes no arguments, got %q: see kubelith %s --help", c.Command.Name, c.Args().First(), c.Command.Name)
	}
	return nil
}

func kubectlCommand() *cli.Command {
	return &cli.Command{
		Name:            "kubectl",
		Usage:           "upstream's kubectl; uses the admin kubeconfig when nothing else is given",
		SkipFlagParsing: true,
		Action:          func(c *cli.Context) error { return kubectl(c.Args().Slice()) },
	}
}

// kubectl runs upstream's kubectl with args. It ends the process itself on errors.
func kubectl(args []string) error {
	if os.Getenv("KUBECONFIG") == "" {
		home, _ := os.UserHomeDir()
		own := filepath.Join(home, ".kube", "config")
		admin := config.AdminKubeconfig(config.DefaultFile)
		if _, err := os.Stat(own); home == "" || err != nil {
			if f, err := os.Open(admin); err == nil {
				f.Close()
				os.Setenv("KUBECONFIG", admin)
			} else if asksCluster(args) && join.IsAgent(config.AgentDataDir(config.DefaultFile)) {
				return errors.New("this machine is an agent, which has no administrator's credentials: use kubectl on the server, or give --kubeconfig")
			}
		}
	}
	os.Args = append([]string{"kubectl"}, args...)
	// As upstream's main: errors are printed, and the process ended, the way kubectl does.
	if err := componentcli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		cmdutil.CheckErr(err)
	}
	return nil
}

// asksCluster reports whether kubectl with args needs to be told of a cluster, and is not.
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
		Usage:           "containerd's client for this node: kubelith ctr [--run-dir DIR] ARGUMENTS OF CTR",
		SkipFlagParsing: true, // all but our own flags are ctr's
		Action: func(c *cli.Context) error {
			ours, theirs := split(c.Args().Slice(), config.DirFlags())
			app := &cli.App{Name: "ctr", Flags: config.DirFlags(), HideHelp: true, ExitErrHandler: func(*cli.Context, error) {}}
			app.Action = func(own *cli.Context) error {
				cfg, err := config.LoadDirs(own)
				if err != nil {
					return err
				}
				return ctr.Run(c.Context, filepath.Join(cfg.SocketDir(), "containerd", "containerd.sock"), theirs)
			}
			return app.Run(append([]string{"ctr"}, ours...))
		},
	}
}

// split takes the leading arguments that set one of flags, as --name=value or
// --name value, from the others.
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
		Usage: "end the processes of all pods of a server or agent that is stopped; the service does it when the machine shuts down",
		Description: "Pods outlive the server, so that it can be restarted and replaced. What its pods are to do without it for long ends with this.\n" +
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
			r, err := host.NewReset(host.ResetOptions{DataDir: cfg.DataDir, RunDir: cfg.RunDir, KubeletRootDir: cfg.KubeletRootDir, Out: os.Stdout})
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
			&cli.BoolFlag{Name: "yes", Usage: "do not ask"},
			&cli.BoolFlag{Name: "data", Usage: "remove the cluster's data and credentials as well"}),
		OnUsageError: usageError,
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			cfg, err := config.LoadDirs(c)
			if err != nil {
				return err
			}
			r, err := host.NewReset(host.ResetOptions{
				DataDir:        cfg.DataDir,
				RunDir:         cfg.RunDir,
				RunLink:        cfg.SocketDir(),
				KubeletRootDir: cfg.KubeletRootDir,
				Kubeconfig:     cfg.WriteKubeconfig,
				Data:           c.Bool("data"),
				EndPlugins:     pluginhost.Sweep,
				Out:            os.Stdout,
			})
			if err != nil {
				return err
			}
			defer r.Close()
			plan := r.Plan()
			if len(plan) == 0 {
				fmt.Printf("nothing to remove: no server has left anything that belongs to --data-dir %s\n", cfg.DataDir)
				return nil
			}
			if !c.Bool("yes") && !confirmed(plan) {
				return fmt.Errorf("nothing was changed")
			}
			return r.Run(c.Context)
		},
	}
}

// confirmed shows the plan and asks.
func confirmed(plan []string) bool {
	fmt.Println("This will:")
	for _, line := range plan {
		fmt.Println("  - " + line)
	}
	fmt.Print("Go on? [y/N] ")
	answer, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return true
	}
	return false
}

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:         "version",
		Usage:        "print the versions of Kubelith and of what it is made of",
		OnUsageError: usageError,
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			fmt.Printf("kubelith   %s\nkubernetes %s\n", kubelithVersion, version.Get().GitVersion)
			for _, m := range moduleVersions("go.etcd.io/etcd/server/v3", "github.com/containerd/containerd/v2", "github.com/coredns/coredns") {
				fmt.Println(m)
			}
			fmt.Printf("go         %s %s/%s\n", runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		},
	}
}
