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
	const disarmUsage = "clear the alarms of all servers; a full server raises its alarm again at the next write"
	alarm := administratorCommand("alarm", "", "list the alarms of all servers: NOSPACE stops writes, CORRUPT also reads", etcdAlarms, output)
	alarm.HideHelpCommand = true
	alarm.Subcommands = []*cli.Command{administratorCommand("disarm", "", disarmUsage, etcdDisarm)}
	former := administratorCommand("disarm", "", disarmUsage, etcdDisarm) // its name in earlier releases
	former.Hidden = true
	return group("etcd", "show and maintain the servers' etcd",
		administratorCommand("status", "",
			"show the servers, since when one is missing, the size of the database, and alarms", etcdStatus, output),
		administratorCommand("members", "", "list the servers", etcdMembers, output),
		administratorCommand("remove", "NAME", "remove a server from the cluster; it needs a token to come back", etcdRemove),
		administratorCommand("defrag", "", "return unused space in the server's database to the file system", etcdDefrag),
		alarm,
		former)
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
	_, err := fmt.Fprintf(out, "The database of %s has %.1f MiB, of which %.1f MiB are in use; the limit is %d MiB.\n",
		v.Asked, float64(v.Space.Bytes)/(1<<20), float64(v.Space.InUse)/(1<<20), v.Space.Quota>>20)
	if v.Space.SlowSync > 0 {
		slow := time.Duration(v.Space.SlowSync * float64(time.Second)).Round(time.Millisecond)
		fmt.Fprintf(out, "99 of 100 syncs to its disk (p99 of fsync) took %s or less.\n", slow)
	}
	printAlarms(out, v.Space.Alarms)
	return err
}

func printAlarms(out io.Writer, all []servers.Alarm) {
	for _, a := range all {
		fmt.Fprintf(out, "Alarm: %s\n", a)
	}
}

func etcdAlarms(c *cli.Context, cs kubernetes.Interface) error {
	v, err := serversView(c.Context, cs)
	if err != nil {
		return err
	}
	if v.Space == nil {
		return fmt.Errorf("the etcd of %s does not answer: kubelith etcd status shows which servers are missing", v.Asked)
	}
	out := c.App.Writer
	if wantsJSON(c) {
		return writeJSON(out, append([]servers.Alarm{}, v.Space.Alarms...))
	}
	if len(v.Space.Alarms) == 0 {
		_, err := fmt.Fprintln(out, "there is no alarm")
		return err
	}
	printAlarms(out, v.Space.Alarms)
	return nil
}

// etcdDisarm clears all alarms, and prints what they were and what remains to be done.
func etcdDisarm(c *cli.Context, cs kubernetes.Interface) error {
	v, err := serversView(c.Context, cs)
	if err != nil {
		return err
	}
	if err := cs.CoreV1().RESTClient().Post().AbsPath(servers.DisarmPath).Do(c.Context).Error(); err != nil {
		return err
	}
	return printDisarmed(c.App.Writer, v)
}

func printDisarmed(out io.Writer, v *servers.View) error {
	if v.Space == nil {
		_, err := fmt.Fprintln(out, "cleared the alarms, if there were any")
		return err
	}
	if len(v.Space.Alarms) == 0 {
		_, err := fmt.Fprintln(out, "there was no alarm")
		return err
	}
	for _, a := range v.Space.Alarms {
		next := "if its database is still full, delete objects, or start the servers with a larger --etcd-arg quota-backend-bytes=N"
		if a.Kind == servers.Corrupt {
			next = "its data still differs from that of the others: stop it, move its server/db/member away and start it: it takes a copy from the others"
		}
		if a.Gone {
			next = "nothing remains to be done"
		}
		if _, err := fmt.Fprintf(out, "cleared the alarm %s; %s\n", a, next); err != nil {
			return err
		}
	}
	return nil
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
		_, err := fmt.Fprintf(c.App.Writer,
			"the witness %s is no longer in the cluster: disable its service; kubelith reset --data removes its data there\n", name)
		return err
	}
	_, err = fmt.Fprintf(c.App.Writer,
		"server %s is no longer in the cluster; kubelith node remove --force %[1]s removes its node\n", name)
	return err
}

func removeServer(ctx context.Context, cs kubernetes.Interface, name string) error {
	return cs.CoreV1().RESTClient().Verb(http.MethodDelete).AbsPath(names.ServersPath).Param("name", name).Do(ctx).Error()
}

func etcdDefrag(c *cli.Context, cs kubernetes.Interface) error {
	if err := cs.CoreV1().RESTClient().Post().AbsPath(servers.DefragPath).Do(c.Context).Error(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(c.App.Writer, "the database is defragmented")
	return err
}
