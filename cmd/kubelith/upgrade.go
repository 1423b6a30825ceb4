package kubelith

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/components/controlplane/etcd"
	"kubelith.io/kubelith/components/controlplane/servers"
	"kubelith.io/kubelith/components/controlplane/snapshot"
	"kubelith.io/kubelith/components/worker/join"
	"kubelith.io/kubelith/components/worker/upgrader"
	"kubelith.io/kubelith/host/upgrade"
)

// releaseKey is where the public key of the files' publisher is expected.
const releaseKey = "/etc/kubelith/release.pub"

// allowRemoved is the flag that lets an upgrade remove APIs that are in use.
const allowRemoved = "allow-removed-apis"

func upgradeCommand() *cli.Command {
	return &cli.Command{
		Name:      "upgrade",
		ArgsUsage: "FILE",
		Usage:     "replace the program of this machine's service; roll back if the new one does not become ready",
		Description: "FILE is another version of kubelith. It is verified and checked, a snapshot is saved, and the service is started with it; pods keep\n" +
			"running. If its node is not Ready in time, the command restores the former program and its data, and fails.\n" +
			"To resume an interrupted upgrade, run the same command again. With --cluster, on a server, all nodes are upgraded, one\n" +
			"after the other, until one is rolled back.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "sha256", Usage: "checksum that FILE must have"},
			&cli.StringFlag{Name: "sig", Usage: "minisign signature of FILE"},
			&cli.StringFlag{Name: "key", Usage: "file with the public key for --sig", Value: releaseKey},
			&cli.DurationFlag{Name: "within", Usage: "how long the node may take to become Ready", Value: 5 * time.Minute},
			&cli.BoolFlag{Name: "cluster", Usage: "upgrade all nodes of the cluster: the other servers one at a time, this one, then agents"},
			&cli.IntFlag{Name: "batch", Usage: "with --cluster: how many agents are upgraded at the same time", Value: 1},
			&cli.BoolFlag{Name: "drain", Usage: "with --cluster: move the pods of an agent elsewhere before it is upgraded"},
			&cli.StringFlag{Name: "result", Hidden: true, Usage: "request of the cluster under which the result is stored"},
			&cli.BoolFlag{Name: allowRemoved, Usage: "upgrade even if the new version lacks APIs that are in use"},
		},
		OnUsageError: usageError,
		Action:       runUpgrade,
	}
}

func runUpgrade(c *cli.Context) error {
	file, err := fileBeforeFlags(c)
	if err != nil {
		return err
	}
	if c.Duration("within") <= 0 {
		return fmt.Errorf("--within %s: use a duration above 0, such as 5m", c.Duration("within"))
	}
	if os.Geteuid() != 0 {
		return errors.New("kubelith upgrade needs root: run it with sudo")
	}
	if err := quiet(); err != nil {
		return err
	}
	service, err := upgrade.FindService(c.Context)
	if err != nil {
		return err
	}
	o := upgrade.Options{
		File: file, Proof: upgrade.Proof{SHA256: c.String("sha256"), Signature: c.String("sig"), PublicKey: c.String("key")},
		Service: service, Within: c.Duration("within"), Out: c.App.Writer,
	}
	kubeconfig := "" // of a server
	role, flags := service.Command()[1], service.Command()[2:]
	switch role {
	case names.RoleServer:
		kubeconfig, err = upgradeServer(&o, flags, c.Bool(allowRemoved))
	case names.RoleAgent:
		err = upgradeAgent(&o, flags)
	default:
		err = fmt.Errorf("the service %s runs %s %s, which is neither a server nor an agent", service.Name(), service.Command()[0], role)
	}
	if err != nil {
		return err
	}
	o.Adopted = func() (string, error) { return datadir.Adopted(o.DataDir) }
	outliveTerminal()
	switch id := c.String("result"); {
	case c.Bool("cluster") && role != names.RoleServer:
		return errors.New("this machine is an agent: run kubelith upgrade --cluster on a server")
	case c.Bool("cluster"):
		return upgradeCluster(c.Context, o, kubeconfig, c.Int("batch"), c.Bool("drain"))
	case id != "":
		return upgrade.Reporting(upgrader.Dir(o.DataDir), id, func() error { return upgrade.Run(c.Context, o) })
	}
	return upgrade.Run(c.Context, o)
}

// outliveTerminal has the command go on when its terminal or the reader of its output goes away: the service is stopped
// meanwhile, and nothing else would start it again. The signals are caught, not ignored, since the programs that it
// executes would inherit that.
func outliveTerminal() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGPIPE)
}

// fileBeforeFlags returns the one argument, and sets the flags that follow it: the library takes only those before.
func fileBeforeFlags(c *cli.Context) (string, error) {
	if !c.Args().Present() {
		return "", errors.New("upgrade needs a file: kubelith upgrade FILE, see kubelith upgrade --help")
	}
	set := flag.NewFlagSet(c.Command.Name, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	for _, f := range c.Command.Flags {
		if err := f.Apply(set); err != nil {
			return "", err
		}
	}
	if err := set.Parse(c.Args().Tail()); err != nil {
		return "", fmt.Errorf("%w: see kubelith upgrade --help", err)
	}
	if set.NArg() > 0 {
		return "", fmt.Errorf("upgrade takes one file, got %q as well: see kubelith upgrade --help", set.Arg(0))
	}
	var errs []error
	set.Visit(func(f *flag.Flag) { errs = append(errs, c.Set(f.Name, f.Value.String())) })
	return c.Args().First(), errors.Join(errs...)
}

// serviceConfig loads the configuration that the service's flags name.
func serviceConfig[T any](flags []cli.Flag, args []string, load func(*cli.Context) (T, error)) (cfg T, err error) {
	app := &cli.App{
		Flags: flags, HideHelp: true, HideVersion: true, Writer: io.Discard, ErrWriter: io.Discard,
		ExitErrHandler: func(*cli.Context, error) {},
		Action: func(c *cli.Context) (err error) {
			cfg, err = load(c)
			return err
		},
	}
	if err := app.Run(append([]string{"service"}, args...)); err != nil {
		return cfg, fmt.Errorf("the service's configuration: %w", err)
	}
	return cfg, nil
}

// serverUpgrade is what an upgrade asks of a server.
type serverUpgrade struct {
	cfg          *config.Server
	allowRemoved bool
}

func upgradeServer(o *upgrade.Options, flags []string, allowRemoved bool) (kubeconfig string, err error) {
	cfg, err := serviceConfig(config.Flags(), flags, config.Load)
	if err != nil {
		return "", err
	}
	if cfg.Witness {
		return "", errors.New("a witness has no node, which kubelith upgrade waits for: run install.sh with the new program")
	}
	u := &serverUpgrade{cfg, allowRemoved}
	o.DataDir, o.Data, o.Ready, o.Check, o.Save, o.Renew = cfg.DataDir, u.data, u.ready, u.check, u.save, u.renew
	return cfg.WriteKubeconfig, nil
}

const (
	// askTimeout bounds a request to an API that may have just started, or be ending.
	askTimeout = 20 * time.Second
	// busyTimeout is how long a server that does not answer may be busy, and busyRetry the time between two requests.
	busyTimeout = time.Minute
	busyRetry   = 2 * time.Second
)

func (u *serverUpgrade) client() (kubernetes.Interface, error) {
	return administrator(u.cfg.WriteKubeconfig)
}

// serversOf returns the servers of the cluster; none from a release that knows one server only.
func serversOf(ctx context.Context, cs kubernetes.Interface) ([]servers.Status, error) {
	v, err := serversView(ctx, cs)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	case v.Space == nil:
		return nil, errors.New("etcd does not answer")
	}
	return v.Servers, nil
}

// awaitServersOf is serversOf, repeated while a busy server does not answer: an upgrade that one slow moment refuses
// has to be started again by the user.
func awaitServersOf(ctx context.Context, cs kubernetes.Interface) (all []servers.Status, err error) {
	_ = wait.PollUntilContextTimeout(ctx, busyRetry, busyTimeout, true, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, askTimeout) // one that hangs is not all there is time for
		defer cancel()
		all, err = serversOf(ctx, cs)
		return err == nil || utilnet.IsConnectionRefused(err), nil // refused: it does not run
	})
	return all, err
}

// settings are those with which the cluster began. A release that does not store them has what is configured.
func (u *serverUpgrade) settings() (datadir.Settings, error) {
	s, err := datadir.ReadSettings(u.cfg.DataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return datadir.Settings{NodeName: u.cfg.NodeName, ClusterCIDR: u.cfg.ClusterCIDR, ServiceCIDR: u.cfg.ServiceCIDR, ClusterDomain: u.cfg.ClusterDomain}, nil
	}
	return s, err
}

// versionFile is of the data directory's format; an older program refuses a newer one.
const versionFile = "version"

// data returns what comes back with the former program. Of a server among others that is not etcd's data: the others
// have it too, and a member must not forget what it has acknowledged.
func (u *serverUpgrade) data(ctx context.Context) ([]string, error) {
	cs, err := u.client()
	if err != nil {
		return nil, err
	}
	all, err := awaitServersOf(ctx, cs)
	if err != nil {
		return nil, fmt.Errorf("the server does not answer: %w", err)
	}
	if len(all) > 1 {
		return []string{versionFile}, nil
	}
	return []string{versionFile, datadir.Etcd, datadir.SettingsFile, "server/tls", "server/cred", "server/token", "server/profile"}, nil
}

// check implements upgrade.Options.Check.
func (u *serverUpgrade) check(ctx context.Context, from, to upgrade.Program) error {
	cs, err := u.client()
	if err != nil {
		return err
	}
	settings, err := u.settings()
	if err != nil {
		return err
	}
	all, err := awaitServersOf(ctx, cs)
	if err != nil {
		return err
	}
	for _, s := range all {
		switch {
		case s.Role == servers.RoleJoining:
			return fmt.Errorf("the server %s is joining: wait until it has a vote (kubelith etcd status)", orNone(s.Name))
		case !s.Missing.IsZero():
			return fmt.Errorf("the server %s does not answer, and the others are needed while this one restarts: "+
				"bring it back, or remove it with kubelith etcd remove", s.Name)
		}
	}
	nodes, err := cs.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range nodes.Items {
		if n.Name == settings.NodeName {
			continue
		}
		if err := upgrade.CheckNode(to, n.Name, n.Status.NodeInfo.KubeletVersion, n.Labels[names.RoleLabel] == names.RoleServer); err != nil {
			return err
		}
	}
	used, err := removedAPIs(ctx, cs, u.cfg.WriteKubeconfig, from, to)
	if err != nil {
		return err
	}
	return refuseRemoved(used, to, u.allowRemoved)
}

// save implements upgrade.Options.Save. A release before snapshots does not have all keys that are in one.
func (u *serverUpgrade) save(ctx context.Context, p upgrade.Program) (string, error) {
	if _, err := os.Stat(filepath.Join(pki.Dir(u.cfg.DataDir), "kubelet-ca.crt")); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	settings, err := u.settings()
	if err != nil {
		return "", err
	}
	source, err := sourceWith(u.cfg, settings)
	if err != nil {
		return "", err
	}
	source.Kubelith, source.Kubernetes = p.Release, p.Kubernetes
	dir := u.cfg.SnapshotDir
	if dir == "" {
		dir = snapshot.Dir(u.cfg.DataDir)
	}
	f, err := snapshot.SaveUpgrade(ctx, source, dir)
	return f.Path, err
}

// renew implements upgrade.Options.Renew.
func (u *serverUpgrade) renew(ctx context.Context, from, to string) error {
	settings, err := u.settings()
	if err != nil {
		return err
	}
	o := etcd.Options{Name: settings.NodeName, DataDir: to, Socket: u.cfg.EtcdSocket(), Zap: zap.NewNop()}
	stored, err := servers.Load(u.cfg.DataDir)
	if err != nil {
		return err
	}
	if stored != nil { // it is open to others
		o.Peer = &etcd.Peer{URL: stored.PeerURL}
	}
	return etcd.Renew(ctx, from, o)
}

// ready implements upgrade.Options.Ready: the API, the node and, among several servers, etcd.
func (u *serverUpgrade) ready(ctx context.Context, p upgrade.Program, since time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	settings, err := u.settings()
	if err != nil {
		return err
	}
	cs, err := u.client()
	if err != nil {
		return err
	}
	if _, err := cs.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
		return fmt.Errorf("the API is not ready: %w", err)
	}
	if err := nodeReady(ctx, cs, settings.NodeName, p, since); err != nil {
		return err
	}
	all, err := serversOf(ctx, cs)
	if err != nil {
		return err
	}
	for _, s := range all {
		if !s.Missing.IsZero() || s.Role == servers.RoleJoining {
			return fmt.Errorf("the etcd of server %s does not answer yet", orNone(s.Name))
		}
	}
	return nil
}

// nodeReady returns why a node has not reported since a time that it is Ready, with the version of the program. A
// server without a kubelet has no node.
func nodeReady(ctx context.Context, cs kubernetes.Interface, name string, p upgrade.Program, since time.Time) error {
	node, err := cs.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if got := node.Status.NodeInfo.KubeletVersion; got != p.Kubernetes {
		return fmt.Errorf("the node %s reports Kubernetes %s instead of %s", name, got, p.Kubernetes)
	}
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	switch {
	case i < 0 || node.Status.Conditions[i].LastHeartbeatTime.Time.Before(since.Truncate(time.Second)):
		return fmt.Errorf("the kubelet of node %s has not reported yet", name)
	case node.Status.Conditions[i].Status != corev1.ConditionTrue:
		return fmt.Errorf("the node %s is not Ready: %s", name, node.Status.Conditions[i].Message)
	}
	return nil
}

// agentUpgrade is what an upgrade asks of an agent.
type agentUpgrade struct{ cfg *config.Agent }

func upgradeAgent(o *upgrade.Options, flags []string) error {
	cfg, err := serviceConfig(config.AgentFlags(), flags, config.LoadAgent)
	if err != nil {
		return err
	}
	u := &agentUpgrade{cfg}
	o.DataDir, o.Ready, o.Check = cfg.DataDir, u.ready, u.check
	o.Data = func(context.Context) ([]string, error) { return []string{versionFile}, nil }
	return nil
}

// check implements upgrade.Options.Check.
func (u *agentUpgrade) check(ctx context.Context, _, to upgrade.Program) error {
	answered := false
	var failed error
	for _, server := range join.Servers(u.cfg.DataDir, u.cfg.Server) {
		cs, err := u.client(server)
		if err != nil {
			return err
		}
		v, err := cs.Discovery().ServerVersion()
		if err != nil { // one that is away is upgraded before it answers again
			failed = errors.Join(failed, err)
			continue
		}
		answered = true
		if err := upgrade.CheckAgent(to, server, v.GitVersion); err != nil {
			return err
		}
	}
	if !answered {
		return fmt.Errorf("no server answers, and a node must not be newer than the servers: %w", failed)
	}
	return nil
}

func (u *agentUpgrade) client(server string) (kubernetes.Interface, error) {
	cfg := join.NodeConfig(u.cfg.DataDir, server)
	cfg.Timeout = askTimeout
	return kubernetes.NewForConfig(rest.AddUserAgent(cfg, "upgrade"))
}

// ready implements upgrade.Options.Ready: a server reports the node Ready.
func (u *agentUpgrade) ready(ctx context.Context, p upgrade.Program, since time.Time) error {
	var last error
	for _, server := range join.Servers(u.cfg.DataDir, u.cfg.Server) {
		cs, err := u.client(server)
		if err != nil {
			return err
		}
		if last = nodeReady(ctx, cs, u.cfg.NodeName, p, since); last == nil {
			return nil
		}
	}
	return last
}
