package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Options describe a cluster. The zero value is a control plane: etcd, the API, the controllers and the scheduler.
type Options struct {
	// Node adds a node, on which pods run. It needs root, and what `kubelith check` checks.
	Node bool
	// Executable is the path of kubelith. Empty: the environment variable KUBELITH_BIN, else `kubelith` in PATH.
	Executable string
	// Args are further flags of `kubelith server`, such as "--apiserver-arg=feature-gates=SomeGate=true". The file
	// /etc/kubelith/config.yaml is not read; "--config=FILE" names another, for example with plugins.
	Args []string
	// Manifests are files and directories of objects that Start applies, in the order given; it waits until the
	// CustomResourceDefinitions among them are established.
	Manifests []string
	// Images are archives of container images (OCI layout or docker save) that Start imports. They need Node.
	Images []string
	// StartTimeout is how long the start may take. Zero: two minutes.
	StartTimeout time.Duration
}

// Cluster is a cluster that New or Start has started.
type Cluster struct {
	opts   Options
	binary string
	dir    *directory
	box    *sandbox // of a node; nil without
	addr   address
	server *process
	config *rest.Config
}

// Start starts a cluster that ends with the test. It fails the test when the cluster cannot start; when the test has
// failed, the last lines of the server's log are shown.
func Start(t testing.TB, opts Options) *Cluster {
	t.Helper()
	c, err := prepare(opts, t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last lines of the server's log:\n%s", lastLines(c.LogFile(), shownLines))
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := c.start(); err != nil {
		t.Fatal(err)
	}
	return c
}

// New is Start for what outlives a test, such as a cluster that TestMain shares among the tests of a package. The
// caller closes it.
func New(opts Options) (*Cluster, error) {
	c, err := prepare(opts, filepath.Base(os.Args[0]))
	if err != nil {
		return nil, err
	}
	if err := c.start(); err != nil {
		err = fmt.Errorf("%w; last lines of its log:\n%s", err, lastLines(c.LogFile(), shownLines))
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// shownLines of the log are shown with a failure.
const shownLines = 50

// prepare creates what the server needs, and starts nothing. name is part of the log's name.
func prepare(opts Options, name string) (*Cluster, error) {
	if err := opts.check(); err != nil {
		return nil, err
	}
	if opts.StartTimeout == 0 {
		opts.StartTimeout = 2 * time.Minute
	}
	binary, err := executable(opts.Executable)
	if err != nil {
		return nil, err
	}
	dir, err := newDirectory(name)
	if err != nil {
		return nil, err
	}
	return &Cluster{opts: opts, binary: binary, dir: dir}, nil
}

// start runs the server for the first time.
func (c *Cluster) start() error {
	deadline := time.Now().Add(c.opts.StartTimeout)
	var err error
	if c.opts.Node {
		if c.box, err = newSandbox(c.binary, c.dir); err != nil {
			return err
		}
		c.addr = c.box.address()
	} else if c.addr, err = freeAddress(); err != nil {
		return err
	}
	if err := c.launch(deadline); err != nil {
		return err
	}
	for _, archive := range c.opts.Images {
		if err := c.load(deadline, archive); err != nil {
			return fmt.Errorf("import %s: %w", archive, err)
		}
	}
	return c.apply(deadline)
}

// load imports an archive of images; the sandbox may hide its path.
func (c *Cluster) load(deadline time.Time, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd := c.box.command(c.binary, "ctr", "images", "import", "-")
	cmd.Stdin = f
	_, err = run(deadline, cmd)
	return err
}

// launch starts the server's process and waits until the cluster is ready.
func (c *Cluster) launch(deadline time.Time) error {
	notices, err := listenNotices(c.dir.path("notify"))
	if err != nil {
		return err
	}
	defer notices.Close()
	cmd := c.box.command(c.binary, c.serverArgs()...)
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+notices.path)
	if c.server, err = startProcess(cmd, c.dir.log, c.dir.lock); err != nil {
		return err
	}
	if err := notices.wait(deadline, c.server); err != nil {
		return err
	}
	if c.config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig()); err != nil {
		return fmt.Errorf("admin kubeconfig: %w", err)
	}
	// Tests send requests faster than the controllers for which client-go's defaults are.
	c.config.QPS, c.config.Burst = 1000, 2000
	return c.usable(deadline)
}

// Config returns a configuration for clients, with the rights of cluster-admin. The caller may change it: with
// Impersonate it acts as another user.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Kubeconfig returns the path of the admin kubeconfig, for kubectl and for programs under test. Close removes it.
func (c *Cluster) Kubeconfig() string { return c.dir.path("kubeconfig") }

// HostIP returns the address of this machine as the cluster sees it: a webhook that the test serves listens there.
func (c *Cluster) HostIP() string {
	if c.box == nil {
		return "127.0.0.1"
	}
	return c.box.HostIP
}

// LogFile returns the path of the server's log. Close removes it unless the environment variable KUBELITH_TEST_LOGS
// names a directory: then the logs of all servers are there, and stay.
func (c *Cluster) LogFile() string { return c.dir.log }

// Stop ends the server's process in order and keeps the data: an API that is away. Pods go on running.
func (c *Cluster) Stop() error { return c.server.stop() }

// Restart stops the server if it runs, starts it again on the same data, address and credentials, and waits until it is
// ready.
func (c *Cluster) Restart() error {
	if err := c.Stop(); err != nil {
		return err
	}
	return c.launch(time.Now().Add(c.opts.StartTimeout))
}

// Close ends the cluster and removes everything it has created. It reports a server that had ended by itself. A second
// call does nothing.
func (c *Cluster) Close() error {
	return errors.Join(c.server.end(), c.box.close(), c.dir.remove())
}
