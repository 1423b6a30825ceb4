package kubelith

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/components/controlplane/servers"
)

func etcdCommand() *cli.Command {
	output := outputFlag("json")
	return &cli.Command{
		Name:            "etcd",
		Usage:           "show and maintain the servers' etcd",
		HideHelpCommand: true,
		OnUsageError:    usageError,
		Action:          subcommandHelp,
		Subcommands: []*cli.Command{
			administratorCommand("etcd", "status", "", "show the servers, which of them are missing since when, and the size of the database", etcdStatus, output),
			administratorCommand("etcd", "members", "", "list the servers", etcdMembers, output),
			administratorCommand("etcd", "remove", "NAME", "remove a server from the cluster; it can come back with a token only", etcdRemove),
			administratorCommand("etcd", "defrag", "", "return what the database of the server does not use to the file system", etcdDo(servers.DefragPath, "the database is defragmented")),
			administratorCommand("etcd", "disarm", "", "clear the alarm that the database of the server is full", etcdDo(servers.DisarmPath, "the alarm is cleared, if there was one")),
		},
	}
}

// serversView asks the server of the kubeconfig.
func serversView(ctx context.Context, cs kubernetes.Interface) (*servers.View, error) {
	return viewOf[servers.View](ctx, cs.CoreV1().RESTClient().Get().AbsPath(names.ServersPath))
}

func etcdStatus(c *cli.Context, cs kubernetes.Interface) error {
	v, err := serversView(c.Context, cs)
	if err != nil {
		return err
	}
	if wantsJSON(c) {
		return writeJSON(c.App.Writer, v)
	}
	return printServers(c.App.Writer, v, time.Now())
}

func printServers(out io.Writer, v *servers.View, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, "NAME\tADDRESS\tROLE\tANSWERS")
	for _, s := range v.Servers {
		answers := "yes"
		if !s.Missing.IsZero() {
			answers = fmt.Sprintf("no, for %s (since %s)", now.Sub(s.Missing).Round(time.Second), s.Missing.UTC().Format(time.RFC3339))
		}
		role := s.Role
		if s.Witness {
			role += " (witness)"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", orNone(s.Name), s.PeerURL, role, answers)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%s\n", servers.Verdict(v.Servers))
	if v.Space == nil {
		_, err := fmt.Fprintf(out, "The etcd of %s does not answer.\n", v.Asked)
		return err
	}
	_, err := fmt.Fprintf(out, "The database of %s has %.1f MiB, of which %.1f MiB are in use; the limit is %d MiB.\n", v.Asked, float64(v.Space.Bytes)/(1<<20), float64(v.Space.InUse)/(1<<20), v.Space.Quota>>20)
	for _, a := range v.Space.Alarms {
		fmt.Fprintf(out, "Alarm: %s\n", a)
	}
	return err
}

func orNone(name string) string { return cmp.Or(name, "-") }

func etcdMembers(c *cli.Context, cs kubernetes.Interface) error {
	v, err := serversView(c.Context, cs)
	if err != nil {
		return err
	}
	if wantsJSON(c) {
		return writeJSON(c.App.Writer, v.Servers)
	}
	for _, s := range v.Servers {
		fmt.Fprintln(c.App.Writer, orNone(s.Name))
	}
	return nil
}

func etcdRemove(c *cli.Context, cs kubernetes.Interface) error {
	if c.NArg() != 1 {
		return errors.New("etcd remove needs the name of one server: kubelith etcd members shows the names")
	}
	name := c.Args().First()
	v, err := serversView(c.Context, cs)
	if err != nil {
		return err
	}
	if err := removeServer(c.Context, cs, name); err != nil {
		return err
	}
	if slices.ContainsFunc(v.Servers, func(s servers.Status) bool { return s.Name == name && s.Witness }) {
		_, err := fmt.Fprintf(c.App.Writer, "the witness %s is no longer in the cluster: disable its service; kubelith reset --data removes its data there\n", name)
		return err
	}
	fmt.Fprintf(c.App.Writer, "server %s is no longer one of the cluster's; kubelith node remove --force %[1]s removes its node\n", name)
	return nil
}

func removeServer(ctx context.Context, cs kubernetes.Interface, name string) error {
	return cs.CoreV1().RESTClient().Verb(http.MethodDelete).AbsPath(names.ServersPath).Param("name", name).Do(ctx).Error()
}

func etcdDo(path, result string) func(*cli.Context, kubernetes.Interface) error {
	return func(c *cli.Context, cs kubernetes.Interface) error {
		if err := cs.CoreV1().RESTClient().Post().AbsPath(path).Do(c.Context).Error(); err != nil {
			return err
		}
		_, err := fmt.Fprintln(c.App.Writer, result)
		return err
	}
}
