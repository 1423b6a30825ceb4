package kubelith

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/components/controlplane/encryption"
)

func encryptionCommand() *cli.Command {
	output := outputFlag("json")
	return group("encryption", "show and replace the key that encrypts Secrets in etcd",
		administratorCommand("status", "",
			"show which key each server uses, how many Secrets each key encrypts, and the progress of a rotation",
			encryptionStatus, output),
		administratorCommand("rotate", "",
			"replace the key on all servers, re-encrypt all Secrets, and drop the old key; resume an interrupted rotation",
			rotateEncryption,
			&cli.BoolFlag{Name: "no-wait", Usage: "only begin: the servers finish the rotation, see kubelith encryption status"}))
}

// encryptionView asks the server of the kubeconfig, with a GET or, to begin a rotation, a POST.
func encryptionView(ctx context.Context, cs kubernetes.Interface, verb string) (*encryption.View, error) {
	return viewOf[encryption.View](ctx, cs.CoreV1().RESTClient().Verb(verb).AbsPath(names.EncryptionPath))
}

func encryptionStatus(c *cli.Context, cs kubernetes.Interface) error {
	v, err := encryptionView(c.Context, cs, "GET")
	if err != nil {
		return err
	}
	if wantsJSON(c) {
		return writeJSON(c.App.Writer, v)
	}
	return printEncryption(c.App.Writer, v)
}

func printEncryption(out io.Writer, v *encryption.View) error {
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, "SERVER\tENCRYPTS WITH\tDECRYPTS WITH\tPROBLEM")
	for _, s := range v.Servers {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", orNone(s.Name), orNone(s.Writes), orNone(strings.Join(s.Reads, ",")), orNone(s.Problem))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	w = tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, "\nKEY\tSECRETS")
	for _, key := range slices.Sorted(maps.Keys(v.Secrets)) {
		fmt.Fprintf(w, "%s\t%d\n", cmp.Or(key, "(plain text)"), v.Secrets[key])
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\n%s\n", progressOf(v))
	return err
}

// progressOf describes in a sentence how far a rotation has got.
func progressOf(v *encryption.View) string {
	if v.Doing == "" {
		if v.Rotation.Key == "" {
			return "The key has not been rotated yet."
		}
		return fmt.Sprintf("The last rotation, to %s, ended at %s.", v.Rotation.Key, v.Rotation.Finished.Format(time.RFC3339))
	}
	total := 0
	for _, n := range v.Secrets {
		total += n
	}
	text := fmt.Sprintf("Rotation to %s: %s; %d of %d Secrets are encrypted with it.", v.Rotation.Key, v.Doing, v.Secrets[v.Rotation.Key], total)
	if v.Waiting != "" {
		text += " Waiting for " + v.Waiting + "."
	}
	return text
}

// rotateEvery is how often a rotation's progress is read.
const rotateEvery = 500 * time.Millisecond

func rotateEncryption(c *cli.Context, cs kubernetes.Interface) error {
	v, err := encryptionView(c.Context, cs, "POST")
	if err != nil {
		return err
	}
	key, said := v.Rotation.Key, ""
	for {
		if now := progressOf(v); now != said {
			fmt.Fprintln(c.App.Writer, now)
			said = now
		}
		switch {
		case v.Rotation.Key != key:
			return fmt.Errorf("another rotation has begun, to %s: kubelith encryption status shows it", v.Rotation.Key)
		case v.Doing == "" || c.Bool("no-wait"):
			return nil
		}
		if !reconcile.Sleep(c.Context, rotateEvery) {
			return errors.New("the rotation goes on without this command: kubelith encryption status shows its progress")
		}
		now, err := encryptionView(c.Context, cs, "GET")
		if err != nil {
			return fmt.Errorf("%w: the rotation goes on: kubelith encryption status shows its progress", err)
		}
		v = now
	}
}
