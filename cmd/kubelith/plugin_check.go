package kubelith

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/urfave/cli/v2"
)

// pluginChecker is the program of `kubelith plugin check`: it links a test framework, which does not belong in the
// server.
const pluginChecker = "kubelith-plugin-check"

func pluginCheckCommand() *cli.Command {
	return &cli.Command{
		Name:            "check",
		Usage:           "start a plugin's executable and check what every plugin of its kind must do; runs " + pluginChecker,
		ArgsUsage:       "FILE [ARGUMENT...]",
		SkipFlagParsing: true, // they belong to the program
		Action: func(c *cli.Context) error {
			program, err := findPluginChecker()
			if err != nil {
				return err
			}
			args := append([]string{pluginChecker}, c.Args().Slice()...)
			return fmt.Errorf("start %s: %w", program, syscall.Exec(program, args, os.Environ()))
		},
	}
}

// findPluginChecker searches beside this executable first: a program there is from the same build.
func findPluginChecker() (string, error) {
	if self, err := os.Executable(); err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(self), pluginChecker)); err == nil {
			return path, nil
		}
	}
	if path, err := exec.LookPath(pluginChecker); err == nil {
		return path, nil
	}
	return "", fmt.Errorf("%s is not installed: build it with 'make build' or take it from the release, and put it beside kubelith", pluginChecker)
}
