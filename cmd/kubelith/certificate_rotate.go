package kubelith

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/components/controlplane/carotation"
)

func rotateCACommand() *cli.Command {
	output := outputFlag("json")
	output.Usage += ", of --status"
	const usage = "replace the CAs of the cluster on all servers and agents while they run; resume an interrupted rotation"
	return administratorCommand("rotate-ca", "", usage, rotateCA,
		&cli.BoolFlag{Name: "status", Usage: "only show the progress of the rotation on each machine, and what it waits for"},
		&cli.DurationFlag{
			Name:  "grace",
			Usage: "how long pods and other clients have to read the new CA before it is used",
			Value: carotation.DefaultGrace,
		},
		&cli.BoolFlag{Name: "force", Usage: "continue without agents that are not Ready: they have to join again"},
		&cli.BoolFlag{Name: "no-wait", Usage: "only begin: the servers finish the rotation"},
		output)
}

// caView asks the server of the kubeconfig, with a GET or, with wanted, a POST.
func caView(ctx context.Context, cs kubernetes.Interface, wanted *carotation.Wanted) (*carotation.View, error) {
	request := cs.CoreV1().RESTClient().Get()
	if wanted != nil {
		body, err := json.Marshal(wanted)
		if err != nil {
			return nil, err
		}
		request = cs.CoreV1().RESTClient().Post().SetHeader("Content-Type", "application/json").Body(body)
	}
	return viewOf[carotation.View](ctx, request.AbsPath(names.CAPath))
}

const (
	// rotateCAEvery is how often the progress is read, and rotateCAPatience how long the API may fail to answer: its
	// certificate changes.
	rotateCAEvery, rotateCAPatience = time.Second, 30 * time.Second
)

func rotateCA(c *cli.Context, cs kubernetes.Interface) error {
	if c.Bool("status") {
		v, err := caView(c.Context, cs, nil)
		if err != nil {
			return err
		}
		if wantsJSON(c) {
			return writeJSON(c.App.Writer, v)
		}
		return printRotation(c.App.Writer, v)
	}
	if c.Duration("grace") < 0 {
		return errors.New("--grace is negative: use a duration such as 10m")
	}
	v, err := caView(c.Context, cs, &carotation.Wanted{Grace: int64(c.Duration("grace").Seconds()), Force: c.Bool("force")})
	if err != nil {
		return err
	}
	id, said, answered := v.Rotation.ID, "", time.Now()
	for {
		if now := rotationProgress(v); now != said {
			fmt.Fprintln(c.App.Writer, now)
			said = now
		}
		switch {
		case v.Rotation.ID != id:
			return fmt.Errorf("another rotation has begun, %s: kubelith certificate rotate-ca --status shows it", v.Rotation.ID)
		case v.Doing == "" || c.Bool("no-wait"):
			return nil
		}
		for {
			if !reconcile.Sleep(c.Context, rotateCAEvery) {
				return errors.New("the rotation goes on without this command: kubelith certificate rotate-ca --status shows its progress")
			}
			// The kubeconfig on a server changes, too: it is read again each time.
			cs, err := administrator(c.String("kubeconfig"))
			var now *carotation.View
			if err == nil {
				now, err = caView(c.Context, cs, nil)
			}
			if err == nil {
				v, answered = now, time.Now()
				break
			}
			if time.Since(answered) > rotateCAPatience {
				return fmt.Errorf("%w: the rotation goes on: kubelith certificate rotate-ca --status shows its progress", err)
			}
		}
	}
}

func printRotation(out io.Writer, v *carotation.View) error {
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, "MACHINE\tROLE\tPHASE\tLACKS")
	for _, m := range v.Machines {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", orNone(m.Name), m.Role, orNone(m.Phase), orNone(m.Lacks))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\n%s\n", rotationProgress(v))
	return err
}

// rotationProgress describes in a sentence how far a rotation has got.
func rotationProgress(v *carotation.View) string {
	r := v.Rotation
	if v.Doing == "" {
		if r.ID == "" {
			return "The CAs have not been rotated yet."
		}
		return fmt.Sprintf("The last rotation of the CAs, %s, ended at %s.", r.ID, r.Finished.Format(time.RFC3339))
	}
	text := fmt.Sprintf("Rotation %s of the CAs, phase %s: %s.", r.ID, r.Phase, v.Doing)
	if v.Waiting != "" {
		text += " Waiting for " + strings.TrimSuffix(v.Waiting, ".") + "."
	}
	return text
}
