package upgrader

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"kubelith.io/kubelith/base/informers"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nodepatch"
	"kubelith.io/kubelith/base/oneline"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/host/upgrade"
)

const (
	// lookEvery is the time between two checks of a process that upgrades the node: it is no child after the restart.
	lookEvery = time.Second
	// startsWithin is how long the process may take to take its lock: a slow machine reads 200 MB for it first.
	startsWithin = 2 * time.Minute
	// retryEvery is the time between two tries to write the Node.
	retryEvery = 5 * time.Second
)

// Options configures the component.
type Options struct {
	// Client acts as the node.
	Client   *rest.Config
	NodeName string
	DataDir  string
	// Fetch writes the file with a checksum, from a server that has it; nil: Client's.
	Fetch func(ctx context.Context, sum string, to io.Writer) error
	Log   logrus.FieldLogger
}

// Server is the component.
type Server struct{ opts Options }

var _ lifecycle.Component = (*Server)(nil)

// New returns the component; nothing is started.
func New(o Options) *Server { return &Server{o} }

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "upgrader" }

// Needs implements lifecycle.Component.
func (s *Server) Needs() []string { return []string{"apiserver"} }

// RestartPolicy implements lifecycle.Restarter.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartBeside }

// Run implements lifecycle.Component. It is ready at once: the Node may be created later.
func (s *Server) Run(ctx context.Context, ready func()) error {
	cs, err := kubernetes.NewForConfig(s.opts.Client)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	ready()
	changed := reconcile.NewSignal()
	shared := informers.One(cs, "", s.opts.NodeName)
	nodes := shared.Core().V1().Nodes()
	if _, err := nodes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed.Send() },
		UpdateFunc: func(before, after any) {
			a, okA := before.(*corev1.Node)
			b, okB := after.(*corev1.Node)
			if !okA || !okB || a.Annotations[RequestAnnotation] != b.Annotations[RequestAnnotation] {
				changed.Send()
			}
		},
	}); err != nil {
		return err
	}
	defer informers.Start(ctx, shared)()
	n := &node{opts: s.opts, client: cs, nodes: nodes.Lister()}
	var said logging.Once
	reconcile.Loop(ctx, changed, 0, func() time.Duration {
		again, err := n.look(ctx)
		if err != nil && ctx.Err() == nil {
			if said.News("", err.Error()) {
				s.opts.Log.Warnf("cannot report upgrades, retrying in %s: %v", retryEvery, err)
			}
			return retryEvery
		}
		return again
	})
	return nil
}

// node carries out requests.
type node struct {
	opts   Options
	client kubernetes.Interface
	nodes  corelisters.NodeLister

	service upgrade.Service
	cannot  string
	asked   bool // service or cannot is known

	launched string // ID of the request whose process was started last
	at       time.Time
	wanted   bool // there was a request: when it is taken back, its file is not needed
}

// look compares the request with what has been done. It returns when to look again; 0: when the Node changes.
func (n *node) look(ctx context.Context) (time.Duration, error) {
	object, err := n.nodes.Get(n.opts.NodeName)
	if err != nil {
		return 0, nil // there is none yet
	}
	if !n.asked {
		n.asked = true
		if n.service, err = upgrade.OwnService(ctx); err != nil {
			n.cannot = oneline.Of(err.Error())
		}
	}
	status := Status{Cannot: n.cannot}
	request := requestOf(object.Annotations)
	if request == nil && n.wanted {
		n.wanted = false
		if err := os.RemoveAll(Dir(n.opts.DataDir)); err != nil {
			return 0, err
		}
	}
	n.wanted = n.wanted || request != nil
	switch {
	case request != nil && request.Ask:
		if upgrade.UnderWay(Dir(n.opts.DataDir)) { // of a command that was interrupted: the program may come or go
			return lookEvery, nil
		}
		status.ID, status.Has = request.ID, n.cannot == "" && upgrade.HasSum(n.service.Command()[0], request.SHA256)
	case request != nil:
		result, err := upgrade.ReadResult(Dir(n.opts.DataDir))
		if err != nil {
			return 0, err
		}
		if result.ID != request.ID {
			if again, err := n.work(ctx, request); err == nil {
				return again, nil
			} else if ctx.Err() != nil {
				return 0, nil
			} else {
				result = upgrade.Result{ID: request.ID, Error: oneline.Of(err.Error())}
			}
			if err := upgrade.WriteResult(Dir(n.opts.DataDir), result); err != nil {
				return 0, err
			}
		}
		status.ID, status.Error = result.ID, result.Error
	}
	return 0, n.report(ctx, object, status)
}

// work starts what the request asks for, unless it is under way.
func (n *node) work(ctx context.Context, r *Request) (time.Duration, error) {
	if err := os.MkdirAll(Dir(n.opts.DataDir), 0o700); err != nil {
		return 0, err
	}
	if upgrade.UnderWay(Dir(n.opts.DataDir)) {
		return lookEvery, nil
	}
	if n.cannot != "" {
		return 0, errors.New(n.cannot)
	}
	result, err := upgrade.ReadResult(Dir(n.opts.DataDir))
	if err != nil || result.ID == r.ID {
		return lookEvery, err // it has just ended
	}
	if n.launched != "" && n.launched != result.ID && time.Since(n.at) < startsWithin {
		return lookEvery, nil // it starts, or that of another command does
	}
	if n.launched == r.ID {
		return 0, fmt.Errorf("the upgrade ended without a result: see the log of %s", upgrade.Unit)
	}
	within, err := time.ParseDuration(r.Within)
	if err != nil || within <= 0 {
		return 0, fmt.Errorf("%q is not a duration such as 5m", r.Within)
	}
	file := File(n.opts.DataDir, r.SHA256)
	if err := n.get(ctx, file, r.SHA256); err != nil {
		return 0, err
	}
	n.opts.Log.Infof("upgrading this node to the program with the sha256 %s", r.SHA256)
	n.launched, n.at = r.ID, time.Now()
	return lookEvery, upgrade.Launch(ctx, Dir(n.opts.DataDir), n.service,
		"upgrade", file, "--sha256", r.SHA256, "--within", within.String(), "--result", r.ID)
}

// get makes sure that the file is here.
func (n *node) get(ctx context.Context, file, sum string) (err error) {
	if upgrade.HasSum(file, sum) {
		return nil
	}
	if err := n.removeOthers(); err != nil {
		return err
	}
	part := file + ".part"
	out, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o700)
	if err != nil {
		return err
	}
	defer os.Remove(part)
	if n.opts.Fetch != nil {
		err = n.opts.Fetch(ctx, sum, out)
	} else {
		err = n.fetch(ctx, sum, out)
	}
	if err = errors.Join(err, out.Sync(), out.Close()); err != nil {
		return fmt.Errorf("get the new program: %w", err)
	}
	if !upgrade.HasSum(part, sum) {
		return errors.New("get the new program: its sha256 is not the requested one")
	}
	return os.Rename(part, file)
}

// fetch gets the file over the connection to the API.
func (n *node) fetch(ctx context.Context, sum string, to io.Writer) error {
	body, err := n.client.CoreV1().RESTClient().Get().AbsPath(names.UpgradesPath + sum).Stream(ctx)
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.Copy(to, body)
	return err
}

// removeOthers removes programs of earlier upgrades.
func (n *node) removeOthers() error {
	entries, err := os.ReadDir(Dir(n.opts.DataDir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if isSum(strings.TrimSuffix(e.Name(), ".part")) {
			if err := os.Remove(filepath.Join(Dir(n.opts.DataDir), e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// report writes the status into the Node.
func (n *node) report(ctx context.Context, object *corev1.Node, s Status) error {
	text, err := json.Marshal(s)
	if err != nil || object.Annotations[StatusAnnotation] == string(text) {
		return err
	}
	err = nodepatch.Annotate(ctx, n.client, n.opts.NodeName, StatusAnnotation, string(text))
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
