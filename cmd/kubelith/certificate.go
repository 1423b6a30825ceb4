package kubelith

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"
	"k8s.io/apimachinery/pkg/util/duration"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/components/node"
)

func certificateCommand() *cli.Command {
	command := group("certificate", "show the certificates of this machine, and replace the CAs of the cluster", &cli.Command{
		Name:         "list",
		Usage:        "list the certificates of the server or agent on this machine, running or not: subject, issuer and expiry",
		Flags:        append(config.DirFlags(), outputFlag("json")),
		OnUsageError: usageError,
		Action:       listCertificates,
	}, rotateCACommand())
	command.Aliases = []string{"certificates"}
	return command
}

func listCertificates(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	cfg, err := config.LoadDirs(c)
	if err != nil {
		return err
	}
	all, err := node.Certificates(&cfg.Node)
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("the certificates in %s belong to root: run it as root", cfg.DataDir)
	}
	if len(all) == 0 && err != nil {
		return err
	}
	return errors.Join(printCertificates(c.App.Writer, all, wantsJSON(c), time.Now()), err)
}

// listed is a certificate in JSON.
type listed struct {
	pki.Certificate
	SecondsLeft int64 `json:"secondsLeft"` // negative: it has expired
}

func printCertificates(out io.Writer, all []pki.Certificate, inJSON bool, now time.Time) error {
	if inJSON {
		list := make([]listed, 0, len(all))
		for _, c := range all {
			list = append(list, listed{c, int64(c.NotAfter.Sub(now).Seconds())})
		}
		return writeJSON(out, list)
	}
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, "NAME\tSUBJECT\tISSUER\tEXPIRES\tLEFT\tUSE")
	for _, c := range all {
		subject := strings.Join(append([]string{c.Subject}, c.Groups...), ",")
		left := "expired"
		if d := c.NotAfter.Sub(now); d > 0 {
			left = duration.HumanDuration(d)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", c.Name, subject, c.Issuer, c.NotAfter.UTC().Format(time.RFC3339), left, c.Use)
	}
	return w.Flush()
}
