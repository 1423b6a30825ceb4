package kubelith

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/plugins/pluginadmin"
)

// restartTimeout bounds the wait for a restarted plugin: the host gives up on a start earlier.
const restartTimeout = 30 * time.Second

func pluginCommand() *cli.Command {
	output := outputFlag("json")
	command := func(name, args, usage string, action func(*cli.Context, *pluginadmin.Client) error, flags ...cli.Flag) *cli.Command {
		return &cli.Command{
			Name: name, ArgsUsage: args, Usage: usage, Flags: append(config.DirFlags(), flags...), OnUsageError: usageError,
			Action: func(c *cli.Context) error {
				if args != "" && !c.Args().Present() {
					return fmt.Errorf("plugin %s needs the name of a plugin: kubelith plugin list shows them", name)
				}
				if args == "" {
					if err := noArguments(c); err != nil {
						return err
					}
				}
				cfg, err := config.LoadDirs(c)
				if err != nil {
					return err
				}
				return action(c, pluginadmin.NewClient(filepath.Join(cfg.SocketDir(), pluginadmin.SocketName)))
			},
		}
	}
	return group("plugin", "list, inspect and restart the plugins on this host",
		command("list", "", "list all plugins with their state", listPlugins, output),
		command("describe", "NAME ...", "show all details of a plugin", describePlugins, output),
		command("restart", "NAME ...", "start a new process of a plugin, then stop the old one", restartPlugins),
		pluginCheckCommand())
}

func listPlugins(c *cli.Context, client *pluginadmin.Client) error {
	all, err := client.List(c.Context)
	if err != nil {
		return err
	}
	if wantsJSON(c) {
		return writeJSON(c.App.Writer, append([]pluginadmin.Plugin{}, all...))
	}
	return printPlugins(c.App.Writer, all, time.Now())
}

func printPlugins(out io.Writer, all []pluginadmin.Plugin, now time.Time) error {
	if len(all) == 0 {
		fmt.Fprintln(out, "there are no plugins")
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, "NAME\tKIND\tPHASE\tFOR\tSTARTS\tVERSION\tMESSAGE")
	for _, p := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", p.Name, p.Kind, p.Phase, since(p.Since, now), p.Starts, p.Version, p.Message)
	}
	return w.Flush()
}

// since returns a duration for humans.
func since(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return now.Sub(t).Round(time.Second).String()
}

func describePlugins(c *cli.Context, client *pluginadmin.Client) error {
	var all []pluginadmin.Plugin
	for _, name := range c.Args().Slice() {
		p, err := client.Get(c.Context, name)
		if err != nil {
			return err
		}
		all = append(all, p)
	}
	if wantsJSON(c) {
		return writeJSON(c.App.Writer, append([]pluginadmin.Plugin{}, all...))
	}
	for i, p := range all {
		if i > 0 {
			fmt.Fprintln(c.App.Writer)
		}
		if err := describePlugin(c.App.Writer, p, time.Now()); err != nil {
			return err
		}
	}
	return nil
}

// describePlugin prints all fields that are not empty.
func describePlugin(out io.Writer, p pluginadmin.Plugin, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s:\t%s\n", name, value)
		}
	}
	number := func(n int) string {
		if n == 0 {
			return ""
		}
		return fmt.Sprint(n)
	}
	declared := func(set string) string {
		if set == "" {
			return "as the plugin declares"
		}
		return set
	}
	row("Name", p.Name)
	row("Kind", p.Kind)
	row("Phase", p.Phase+", for "+since(p.Since, now))
	row("Message", p.Message)
	row("Version", p.Version)
	row("Path", p.Path)
	row("SHA-256", p.SHA256)
	row("Wanted by", p.Source)
	row("Process", number(p.PID))
	row("Starts", fmt.Sprint(p.Starts))
	row("Calls under way", fmt.Sprint(p.InFlight))
	row("Control group", p.Cgroup)
	if p.Kind != "storage" {
		row("Failure policy", declared(p.FailurePolicy))
		row("Timeout", declared(p.Timeout))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	lines, err := p.Declares()
	if err != nil || len(lines) == 0 {
		return err
	}
	fmt.Fprintln(out, "Declares:\n  "+strings.Join(lines, "\n  "))
	return nil
}

func restartPlugins(c *cli.Context, client *pluginadmin.Client) error {
	var errs []error
	for _, name := range c.Args().Slice() {
		ctx, cancel := context.WithTimeout(c.Context, restartTimeout)
		p, err := client.Restart(ctx, name)
		cancel()
		if err == nil {
			fmt.Fprintf(c.App.Writer, "plugin %s is ready again, as process %d\n", name, p.PID)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
