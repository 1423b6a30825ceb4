package kubelith

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/base/jointoken"
)

// signedTimeout bounds the wait for the signature of a new token, which takes some milliseconds.
const signedTimeout = time.Minute

func tokenCommand() *cli.Command {
	command := func(name, args, usage string, action func(*cli.Context, kubernetes.Interface) error, flags ...cli.Flag) *cli.Command {
		return administratorCommand(name, args, usage, action, flags...)
	}
	return group("token", "manage join tokens",
		command("create", "", "create a token and print it", createToken,
			&cli.DurationFlag{
				Name:        "ttl",
				Usage:       "lifetime of the token; 0 means no expiry",
				Value:       24 * time.Hour,
				DefaultText: "24h0m0s, for a server 1h0m0s",
			},
			&cli.StringFlag{
				Name:  "usages",
				Usage: "what the token may be used for: authentication and signing to join as an agent, or server to join as a server",
				Value: jointoken.UsageAuthentication + "," + jointoken.UsageSigning,
			},
			&cli.StringFlag{Name: "description", Usage: "a description, shown by token list"},
			&cli.BoolFlag{Name: "once", Usage: "valid for one machine only"}),
		command("list", "", "list the tokens, without their secrets", listTokens),
		command("delete", "ID|TOKEN ...", "delete tokens; nodes that have joined are unaffected", deleteTokens))
}

func createToken(c *cli.Context, cs kubernetes.Interface) error {
	spec := jointoken.Spec{TTL: c.Duration("ttl"), Description: c.String("description"), Once: c.Bool("once")}
	for _, u := range strings.Split(c.String("usages"), ",") {
		if u = strings.TrimSpace(u); u != "" {
			spec.Usages = append(spec.Usages, u)
		}
	}
	if slices.Contains(spec.Usages, jointoken.UsageServer) && !c.IsSet("ttl") {
		spec.TTL = jointoken.ServerTTL
	}
	if len(spec.Usages) == 0 {
		return errors.New("--usages is empty: use authentication, signing or both, or server")
	}
	if err := spec.Validate(); err != nil {
		return err
	}
	hash, err := jointoken.CAHash(c.Context, cs)
	if err != nil {
		return err
	}
	t, err := jointoken.Create(c.Context, cs, hash, spec)
	if err != nil {
		return err
	}
	fmt.Fprintln(c.App.Writer, t)
	if slices.Contains(spec.Usages, jointoken.UsageSigning) || slices.Contains(spec.Usages, jointoken.UsageServer) {
		return jointoken.WaitSigned(c.Context, cs, t.ID, spec.TTL, signedTimeout)
	}
	return nil
}

func listTokens(c *cli.Context, cs kubernetes.Interface) error {
	all, err := jointoken.List(c.Context, cs)
	if err != nil {
		return err
	}
	return printTokens(c.App.Writer, all, time.Now())
}

func printTokens(out io.Writer, all []jointoken.Info, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, "ID\tEXPIRES\tUSAGES\tMACHINES\tDESCRIPTION")
	for _, t := range all {
		expires := "never"
		switch {
		case t.Expires.IsZero():
		case t.Expires.After(now):
			expires = "in " + t.Expires.Sub(now).Round(time.Second).String()
		default:
			expires = "expired"
		}
		machines := "any"
		switch {
		case t.Used:
			machines = "one, used"
		case t.Once:
			machines = "one"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", t.ID, expires, strings.Join(t.Usages, ","), machines, t.Description)
	}
	return w.Flush()
}

func deleteTokens(c *cli.Context, cs kubernetes.Interface) error {
	if !c.Args().Present() {
		return errors.New("token delete needs the id of a token: kubelith token list shows them")
	}
	var errs []error
	for _, arg := range c.Args().Slice() {
		id, err := jointoken.IDOf(arg)
		if err == nil {
			err = jointoken.Delete(c.Context, cs, id)
		}
		if err == nil {
			fmt.Fprintf(c.App.Writer, "token %s deleted\n", id)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
