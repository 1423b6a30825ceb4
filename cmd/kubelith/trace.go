package kubelith

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"kubelith.io/kubelith/trace"
	"kubelith.io/kubelith/trace/api"
	"kubelith.io/kubelith/trace/otlp"
	"kubelith.io/kubelith/trace/record"
	"kubelith.io/kubelith/trace/render"
)

// recorder is what answers `kubelith trace`: an api.Client.
type recorder interface {
	Timeline(ctx context.Context, resource, namespace, name string, after uint64) (*trace.Timeline, error)
	Recent(ctx context.Context, n int, after uint64) (*api.Recent, error)
	Slowest(ctx context.Context, n int) (*api.Slowest, error)
	Stats(ctx context.Context) (*api.Stats, error)
}

var _ recorder = (*api.Client)(nil)

func traceCommand() *cli.Command {
	return &cli.Command{
		Name:      "trace",
		Usage:     "show where the time went from a request until its pods were ready, or gone: each stage, and what waited for what",
		ArgsUsage: "TYPE/NAME [FILE] | --slowest [N] | --stats | --serve [ADDRESS]",
		Description: "TYPE is any that kubectl takes: pod, deploy, statefulsets.apps, or a custom resource. You see only what you may get.\n" +
			"The timeline is that of the last request that created the object, changed its specification or deleted it; objects that are gone\n" +
			"have one, too, as long as the server's recorder remembers them.\n" +
			"With -o json, html or otlp it goes to FILE, or to standard output.\n" +
			"With --serve a page shows the timelines of the cluster as they grow, in a browser on this machine.\n" +
			"With --follow the exit code is 0 once the object is as requested, and 1 if that failed or took longer than --timeout.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "namespace", Aliases: []string{"n"}, Usage: "namespace of the object (default: that of the kubeconfig's context)"},
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "keep updating until the object has settled"},
			&cli.DurationFlag{Name: "timeout", Usage: "with --follow: give up after this time", Value: 10 * time.Minute},
			outputFlag("json", "html", "otlp"),
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "show every object and step; without it, similar ones become one line"},
			&cli.BoolFlag{Name: "slowest", Usage: "list the slowest pod starts and requests; N of each, 10 by default"},
			&cli.BoolFlag{Name: "stats", Usage: "show percentiles of each stage of pod starts, and how full the recorder is"},
			&cli.BoolFlag{Name: "serve", Usage: "serve a page at a loopback ADDRESS, 127.0.0.1:0 by default"},
		}, accessFlags()...),
		OnUsageError: usageError,
		Action: asking(func(c *cli.Context, args []string) error {
			q, err := traceQuestion(c, args)
			if err != nil {
				return err
			}
			return q.answer(c)
		}),
	}
}

// question is what `kubelith trace` is asked.
type question struct {
	object string // TYPE/NAME
	file   string // where the answer goes; "" or "-": standard output
	count  int    // of --slowest
	// address is that of --serve.
	address string
}

// traceQuestion checks arguments and flags.
func traceQuestion(c *cli.Context, args []string) (*question, error) {
	q := &question{count: 10, address: "127.0.0.1:0"}
	modes := 0
	for _, name := range []string{"slowest", "stats", "serve"} {
		if c.Bool(name) {
			modes++
		}
	}
	switch out := c.String("output"); {
	case modes > 1:
		return nil, errors.New("--slowest, --stats and --serve exclude each other: use one of them")
	case modes > 0 && (c.Bool("follow") || c.Bool("all")):
		return nil, errors.New("--follow and --all go with TYPE/NAME")
	case modes > 0 && out != "text" && (out != "json" || c.Bool("serve")):
		return nil, fmt.Errorf("-o %s goes with TYPE/NAME", out)
	case c.IsSet("timeout") && !c.Bool("follow"):
		return nil, errors.New("--timeout goes with --follow")
	case c.Duration("timeout") <= 0:
		return nil, fmt.Errorf("--timeout %s: use a time above 0, such as 90s", c.Duration("timeout"))
	case c.Bool("stats") && len(args) > 0 || modes > 0 && len(args) > 1:
		return nil, fmt.Errorf("unexpected argument %q: see kubelith trace --help", args[len(args)-1])
	case c.Bool("slowest"):
		if len(args) == 1 {
			n, err := strconv.ParseUint(args[0], 10, 16)
			if err != nil || n == 0 || n > 500 {
				return nil, fmt.Errorf("--slowest %s: use a number from 1 to 500", args[0])
			}
			q.count = int(n)
		}
	case c.Bool("serve"):
		if len(args) == 1 {
			q.address = args[0]
		}
		return q, loopback(q.address)
	case modes == 0:
		if len(args) >= 2 && !strings.Contains(args[0], "/") {
			args = append([]string{args[0] + "/" + args[1]}, args[2:]...)
		}
		if len(args) == 0 || len(args) > 2 {
			return nil, fmt.Errorf("trace needs the type and the name of one object, such as pod/web: got %q", args)
		}
		q.object = args[0]
		if len(args) == 2 {
			q.file = args[1]
		}
	}
	return q, nil
}

// answer asks the recorder, and prints.
func (q *question) answer(c *cli.Context) error {
	access, cfg, err := clusterOf(c)
	if err != nil {
		return err
	}
	client, err := api.NewClient(cfg)
	if err != nil {
		return err
	}
	switch {
	case c.Bool("slowest"):
		return printSlowest(c, client, q.count)
	case c.Bool("stats"):
		return printStats(c, client)
	case c.Bool("serve"):
		return serveTraces(c.Context, c.App.Writer, client, q.address)
	}
	ref, err := refOf(access, q.object)
	if err != nil {
		return err
	}
	return q.trace(c, client, ref)
}

// refOf names the object that TYPE/NAME means as the recorder does.
func refOf(access *genericclioptions.ConfigFlags, object string) (record.Ref, error) {
	target, err := objectOf(access, object)
	return record.Ref{Resource: target.Resource.GroupResource().String(), Namespace: target.Namespace, Name: target.Name}, err
}

// trace prints the timeline of an object.
func (q *question) trace(c *cli.Context, client recorder, ref record.Ref) error {
	out, file := c.App.Writer, (*os.File)(nil)
	if q.file != "" && q.file != "-" {
		f, err := os.Create(q.file)
		if err != nil {
			return err
		}
		defer f.Close()
		out, file = f, f
	}
	format, options := c.String("output"), textOptions(out)
	options.All = c.Bool("all")
	var t *trace.Timeline
	var err error
	if c.Bool("follow") {
		// While it follows, text goes to where the answer will, and nothing else is printed.
		f := &follower{client: client, out: out, options: options, quiet: format != "text" || file != nil}
		ctx, cancel := context.WithTimeout(c.Context, c.Duration("timeout"))
		defer cancel()
		t, err = f.follow(ctx, ref)
		if t == nil || err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return recorderError(err, ref)
		}
		if err != nil {
			err = fmt.Errorf("%s has not settled within %s: %s", render.Object(ref), c.Duration("timeout"), t.Outcome)
		} else if render.Failed(t) {
			err = answered(1)
		}
		if format == "text" && file == nil {
			return err // it is printed
		}
	} else if t, err = client.Timeline(c.Context, ref.Resource, ref.Namespace, ref.Name, 0); err != nil {
		return recorderError(err, ref)
	}
	if failed := printTimeline(out, format, t, options); failed != nil {
		return failed
	}
	if file != nil {
		return cmp.Or(file.Close(), err)
	}
	return err
}

// printTimeline prints a timeline in a format.
func printTimeline(out io.Writer, format string, t *trace.Timeline, options render.Options) error {
	switch format {
	case "json":
		return writeJSON(out, t)
	case "html":
		return render.HTML(out, []*trace.Timeline{t}, false)
	case "otlp":
		line, err := otlp.JSON(otlp.Timeline(t))
		if err != nil {
			return err
		}
		_, err = out.Write(append(line, '\n'))
		return err
	}
	return render.Text(out, t, options)
}

// recorderError is err as one line for a user who asked for an object.
func recorderError(err error, ref record.Ref) error {
	if !apierrors.IsNotFound(err) {
		return err
	}
	where := ""
	if ref.Namespace != "" {
		where = " in namespace " + ref.Namespace
	}
	return fmt.Errorf("no record of %s%s: the recorder keeps %d h and %d MB at most, unless the server has other limits; "+
		"the object may be older, or may never have existed", render.Object(ref), where, int(record.DefaultAge.Hours()), record.DefaultBytes>>20)
}

// textOptions are those for text on out: the width and colours of a terminal.
func textOptions(out io.Writer) render.Options {
	o := render.Options{ASCII: !speaksUTF8()}
	if f := terminal(out); f != nil {
		o.Color = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
		if width, _, err := term.GetSize(int(f.Fd())); err == nil {
			o.Width = width
		}
	}
	return o
}

// terminal returns out if it is a terminal, nil if not.
func terminal(out io.Writer) *os.File {
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

// speaksUTF8 reports whether the locale's characters are those of UTF-8. Without a locale, as in a service or a minimal
// container, today's terminals are.
func speaksUTF8() bool {
	locale := strings.ToLower(cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG")))
	return locale == "" || strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
}

func printSlowest(c *cli.Context, client recorder, n int) error {
	s, err := client.Slowest(c.Context, n)
	if err != nil {
		return err
	}
	if wantsJSON(c) {
		return writeJSON(c.App.Writer, s)
	}
	fmt.Fprintln(c.App.Writer, "Pod starts")
	if err := render.Summaries(c.App.Writer, s.Starts); err != nil {
		return err
	}
	fmt.Fprintln(c.App.Writer, "\nRequests")
	return render.Summaries(c.App.Writer, s.Requests)
}

func printStats(c *cli.Context, client recorder) error {
	s, err := client.Stats(c.Context)
	if err != nil {
		return err
	}
	if wantsJSON(c) {
		return writeJSON(c.App.Writer, s)
	}
	if err := render.Stats(c.App.Writer, s.Stages); err != nil {
		return err
	}
	u := s.Usage
	_, err = fmt.Fprintf(c.App.Writer, "\nThe recorder holds %d records of %d objects in %.1f of %d MiB; it has dropped %d, the oldest first.\n",
		u.Records, u.Objects, float64(u.Bytes)/(1<<20), u.Limit>>20, u.Dropped)
	return err
}
