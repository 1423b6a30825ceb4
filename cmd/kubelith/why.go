package kubelith

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/base/suggest"
	"kubelith.io/kubelith/trace/api"
	"kubelith.io/kubelith/why"
	"kubelith.io/kubelith/why/placement"
)

// The exit codes of `kubelith why` other than 0, healthy, and 1, an error. A Go program that crashes ends with 2.
const (
	exitBroken      = 3
	exitProgressing = 4
	exitAbsent      = 5
)

// answered ends the process with the status of an answer that is printed.
type answered int

func (answered) Error() string   { return "" }
func (a answered) ExitCode() int { return int(a) }

func whyCommand() *cli.Command {
	return &cli.Command{
		Name:      "why",
		Usage:     "explain why an object is not as it should be: the cause, the evidence, what to do",
		ArgsUsage: "TYPE/NAME | --as USER VERB TYPE[/NAME] | --cannot-reach pod/NAME service/NAME[:PORT]",
		Description: "TYPE is any that kubectl takes: pod, po, deployments.apps, or a custom resource. The command reads with your permissions.\n" +
			"--as reports whether a user may do something and, if not, which rule is missing: why --as ann delete pods -n shop.\n" +
			"--cannot-reach reports why a pod does not reach a Service or another pod: why --cannot-reach pod/shop service/db:5432.\n" +
			"Exit codes: 0 healthy, 1 no answer, 3 broken, 4 progressing, 5 the object does not exist.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "namespace", Aliases: []string{"n"}, Usage: "namespace of the object (default: that of the kubeconfig's context)"},
			&cli.StringFlag{Name: "as", Usage: "explain the permissions of this user; a ServiceAccount is system:serviceaccount:NAMESPACE:NAME"},
			&cli.StringFlag{Name: "as-group", Usage: "with --as: groups of the user in addition to the API server's, separated by commas"},
			&cli.StringFlag{Name: "subresource", Usage: "with --as: subresource of the type, such as log"},
			&cli.BoolFlag{Name: "all-namespaces", Aliases: []string{"A"}, Usage: "with --as: check all namespaces"},
			&cli.BoolFlag{Name: "cannot-reach", Usage: "explain the connection from a pod to a Service or another pod"},
			&cli.StringFlag{Name: "to-namespace", Usage: "with --cannot-reach: namespace of the destination (default: the pod's)"},
			outputFlag("json"),
		}, accessFlags()...),
		OnUsageError: usageError,
		Action: asking(func(c *cli.Context, args []string) error {
			a, err := askWhy(c, args)
			if err != nil {
				return err
			}
			if err := printAnswer(c, a); err != nil {
				return err
			}
			switch a.Status {
			case why.Healthy:
				return nil
			case why.Progressing:
				return answered(exitProgressing)
			case why.Absent:
				return answered(exitAbsent)
			}
			return answered(exitBroken)
		}),
	}
}

// askWhy explains the object, or the right, that args name.
func askWhy(c *cli.Context, args []string) (*why.Answer, error) {
	rights, reach := c.String("as") != "", c.Bool("cannot-reach")
	switch {
	case rights && reach:
		return nil, errors.New("--as and --cannot-reach exclude each other: use one of them")
	case reach && len(args) != 2:
		return nil, fmt.Errorf("why --cannot-reach needs a pod and its destination, such as pod/shop service/db: got %q", args)
	case !reach && c.IsSet("to-namespace"):
		return nil, errors.New("--to-namespace goes with --cannot-reach")
	case rights && len(args) != 2:
		return nil, fmt.Errorf("why --as needs a verb and a type, such as get pods: got %q", args)
	case !rights && (c.IsSet("as-group") || c.IsSet("subresource") || c.IsSet("all-namespaces")):
		return nil, errors.New("--as-group, --subresource and --all-namespaces go with --as USER")
	case !rights && !reach && len(args) == 2 && !strings.Contains(args[0], "/"):
		args = []string{args[0] + "/" + args[1]}
	case !rights && !reach && len(args) != 1:
		return nil, fmt.Errorf("why needs the type and the name of one object, such as pod/web: got %q", args)
	}
	access, cfg, err := clusterOf(c)
	if err != nil {
		return nil, err
	}
	cfg.QPS, cfg.Burst = 100, 200
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	recorder, err := api.NewClient(cfg)
	if err != nil {
		return nil, err
	}
	reader := why.NewReader(why.Options{Client: cs, Dynamic: dyn, Placement: placement.Verdicts, Record: recorder})
	if rights {
		request, err := accessOf(c, access, args[0], args[1])
		if err != nil {
			return nil, err
		}
		return why.ExplainAccess(c.Context, reader, request)
	}
	if reach {
		question, err := reachOf(c, access, args[0], args[1])
		if err != nil {
			return nil, err
		}
		return why.ExplainReach(c.Context, reader, question)
	}
	target, err := objectOf(access, args[0])
	if err != nil {
		return nil, err
	}
	return why.Explain(c.Context, reader, target)
}

// objectOf returns the object that TYPE/NAME means.
func objectOf(access *genericclioptions.ConfigFlags, object string) (why.Target, error) {
	kind, name, ok := strings.Cut(object, "/")
	if !ok || kind == "" || name == "" || strings.Contains(name, "/") {
		return why.Target{}, fmt.Errorf("%q is not TYPE/NAME, such as pod/web", object)
	}
	return targetOf(access, kind, name)
}

// reachOf returns the question that --cannot-reach is about: pod/NAME, and service/NAME or pod/NAME, with :PORT or
// without.
func reachOf(c *cli.Context, access *genericclioptions.ConfigFlags, from, to string) (why.Reach, error) {
	q := why.Reach{}
	var err error
	if q.From, err = objectOf(access, from); err != nil {
		return q, err
	}
	object, port, hasPort := strings.Cut(to, ":")
	if hasPort {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return q, fmt.Errorf("%q is not a port from 1 to 65535", port)
		}
		q.Port = int32(n)
	}
	if q.To, err = objectOf(access, object); err != nil {
		return q, err
	}
	if namespace := c.String("to-namespace"); namespace != "" {
		q.To.Namespace = namespace
	}
	is := func(t why.Target, kind string) bool { return t.Kind.GroupKind() == schema.GroupKind{Kind: kind} }
	if !is(q.From, "Pod") || !is(q.To, "Pod") && !is(q.To, "Service") {
		return q, fmt.Errorf("--cannot-reach explains the connection from a pod to a service or a pod, not from %s to %s", q.From.Object().Type, q.To.Object().Type)
	}
	return q, nil
}

// accessOf returns the request that --as is about: a verb and a type, TYPE/NAME or a path.
func accessOf(c *cli.Context, access *genericclioptions.ConfigFlags, verb, what string) (why.Access, error) {
	request := why.Access{User: c.String("as"), Verb: verb}
	if groups := c.String("as-group"); groups != "" {
		request.Groups = strings.Split(groups, ",")
	}
	if strings.HasPrefix(what, "/") {
		request.URL = what
		return request, nil
	}
	kind, name, _ := strings.Cut(what, "/")
	target, err := targetOf(access, kind, name)
	if err != nil {
		return request, err
	}
	request.Group, request.Resource, request.Subresource = target.Resource.Group, target.Resource.Resource, c.String("subresource")
	request.Name = name
	if !c.Bool("all-namespaces") {
		request.Namespace = target.Namespace
	}
	return request, nil
}

// targetOf finds the kind that a type, as kubectl takes it, means.
func targetOf(access *genericclioptions.ConfigFlags, kind, name string) (why.Target, error) {
	mapper, err := access.ToRESTMapper()
	if err != nil {
		return why.Target{}, err
	}
	// Like kubectl: resource.version.group first, then resource.group.
	full, group := schema.ParseResourceArg(kind)
	var resource schema.GroupVersionResource
	if full != nil {
		resource, err = mapper.ResourceFor(*full)
	}
	if full == nil || err != nil {
		resource, err = mapper.ResourceFor(group.WithVersion(""))
	}
	if meta.IsNoMatchError(err) {
		return why.Target{}, fmt.Errorf("the server has no type %q%s", kind, nearestType(access, kind))
	}
	if err != nil {
		return why.Target{}, err
	}
	gvk, err := mapper.KindFor(resource)
	if err != nil {
		return why.Target{}, err
	}
	mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return why.Target{}, err
	}
	target := why.Target{Kind: gvk, Resource: mapping.Resource, Name: name}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		target.Namespace, _, err = access.ToRawKubeConfigLoader().Namespace()
	}
	return target, err
}

// nearestType is what to add to the error about a type that the server does not have: the one that was meant.
func nearestType(access *genericclioptions.ConfigFlags, kind string) string {
	const all = ": kubelith kubectl api-resources shows them"
	client, err := access.ToDiscoveryClient()
	if err != nil {
		return all
	}
	lists, _ := client.ServerPreferredResources() // with an error for groups whose server is away
	var known []string
	for _, list := range lists {
		for _, r := range list.APIResources {
			known = append(known, r.SingularName, r.Name)
		}
	}
	return cmp.Or(suggest.Nearest(kind, known), all)
}

func printAnswer(c *cli.Context, a *why.Answer) error {
	if wantsJSON(c) {
		return writeJSON(c.App.Writer, a)
	}
	style := why.Style{Now: time.Now()}
	if f := terminal(c.App.Writer); f != nil {
		style.Colour = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
		if width, _, err := term.GetSize(int(f.Fd())); err == nil {
			style.Width = width
		}
	}
	return a.WriteText(c.App.Writer, style)
}
