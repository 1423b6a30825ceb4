package kubelith

import (
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"kubelith.io/kubelith/components/cluster/scheduler/policy"
)

// maxPolicy bounds what is read of a policy: a ConfigMap has at most 1 MiB.
const maxPolicy = 1 << 20

func schedulerPolicyCommand() *cli.Command {
	return &cli.Command{
		Name:      "scheduler-policy",
		Usage:     "convert a scheduler policy to a KubeSchedulerConfiguration",
		ArgsUsage: "FILE",
		Description: "FILE is a policy (kind: Policy, apiVersion: v1), YAML or JSON; - is standard input.\n" +
			"The output is a KubeSchedulerConfiguration for --scheduler-arg=config=FILE.\n" +
			"A server follows a policy with --scheduler-arg=policy-config-file=FILE or policy-configmap=NAME.",
		OnUsageError: usageError,
		Action: func(c *cli.Context) error {
			if c.NArg() != 1 {
				return fmt.Errorf("scheduler-policy needs one file, got %d: see kubelith scheduler-policy --help", c.NArg())
			}
			return printSchedulerPolicy(c.App.Reader, c.App.Writer, c.Args().First())
		},
	}
}

func printSchedulerPolicy(in io.Reader, out io.Writer, name string) error {
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		defer file.Close()
		in = file
	}
	text, err := io.ReadAll(io.LimitReader(in, maxPolicy+1))
	if err == nil && len(text) > maxPolicy {
		err = fmt.Errorf("it has more than %d bytes", maxPolicy)
	}
	var t *policy.Translation
	if err == nil {
		t, err = policy.Load(text)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	_, err = out.Write(t.YAML)
	return err
}
