package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"
	"k8s.io/apimachinery/pkg/util/yaml"

	"kubelith.io/kubelith/plugins/conformance"
	"kubelith.io/kubelith/plugins/conformance/csisanity"
	"kubelith.io/kubelith/plugins/proto"
)

func pluginCheckCommand() *cli.Command {
	return &cli.Command{
		Name:      "check",
		Usage:     "start a plugin's executable by itself and check what every plugin of its kind must do",
		ArgsUsage: "FILE [ARGUMENT...]",
		Description: "No server is needed. The plugin runs in a directory of its own, which is removed. A storage plugin makes,\n" +
			"mounts and removes volumes: that needs root. docs/plugin-protocol.md tells what is asked for.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "config", Usage: "YAML or JSON `file` with what stands below config: of the plugin in the configuration"},
			&cli.StringFlag{Name: "kubeconfig", Usage: "`file` for a plugin that reads the cluster; a server would give it one"},
			&cli.BoolFlag{Name: "log", Usage: "show what the plugin logs"},
		},
		OnUsageError: usageError,
		Action:       checkPlugin,
	}
}

// csiSanity runs kubernetes-csi's suite for plugin check: a process of its own, see plugins/conformance/csisanity.
const csiSanity = "csi-sanity"

func csiSanityCommand() *cli.Command {
	return &cli.Command{Name: csiSanity, Hidden: true, Action: func(*cli.Context) error {
		return csisanity.Main(os.Stdin, csisanity.ResultsFile())
	}}
}

func checkPlugin(c *cli.Context) error {
	if c.NArg() == 0 {
		return errors.New("no executable given: kubelith plugin check FILE")
	}
	file, err := filepath.Abs(c.Args().First())
	if err != nil {
		return err
	}
	config, err := pluginConfig(c.String("config"))
	if err != nil {
		return err
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	if c.Bool("log") {
		log.SetOutput(os.Stderr)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	options := conformance.Options{File: file, Args: c.Args().Tail(), Config: config, Suite: []string{"/proc/self/exe", csiSanity}, Log: logrus.NewEntry(log)}
	if name := c.String("kubeconfig"); name != "" {
		if name, err = filepath.Abs(name); err != nil {
			return err
		}
		options.Env = []string{proto.KubeconfigVariable + "=" + name}
	}
	return conformance.Run(ctx, options,
		func(r conformance.Result) { fmt.Println(r) })
}

// pluginConfig reads a file of YAML as JSON; none without a name.
func pluginConfig(name string) ([]byte, error) {
	if name == "" {
		return nil, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	json, err := yaml.ToJSON(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return json, nil
}
