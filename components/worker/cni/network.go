// Package cni is the component "cni": it writes the CNI configuration with which containerd connects pods, and sets up
// what that configuration needs on the host.
//
// It has three modes. Bridge: the node's pods share a bridge and are masqueraded towards the outside; the
// controller-manager gave the Node their addresses. Noop: a configuration with which the node is Ready though only pods
// on the host's network can start. None: nothing is written. In every mode a third party's configuration in its usual
// directory takes precedence, at any time.
//
// components/worker/podlink connects the pods when containerd requests it. components/worker/network routes to the pods
// of other nodes; this component notifies it when a third party's network is in use.
package cni

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/netevents"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/base/watchdir"
)

// Mode is what to do when no third party provides a network.
type Mode string

// The modes; see the package comment.
const (
	Bridge Mode = "bridge"
	Noop   Mode = "noop"
	None   Mode = "none"
)

// Options of the component.
type Options struct {
	Mode              Mode
	ConfDir           string       // read by CRI; all of it is ours
	HostConfDir       string       // where a third party puts its configuration: /etc/cni/net.d
	DataDir           string       // which pod has which address; survives restarts
	Socket            string       // of podlink; bridge mode only
	ClusterCIDRs      []string     // all pods' addresses: traffic to them is not masqueraded
	ContainerdAddress string       // path of the CRI socket
	Client            *rest.Config // reads the Node; bridge mode only
	NodeName          string
	// MTU is that of the pods' interfaces, for the network as it is when it is called; 0 is the kernel's choice, and so
	// is nil.
	MTU func() int
	// ThirdParty is called with the result of each check for a third party's configuration. It may be nil.
	ThirdParty func(theirs bool)
	Log        logrus.FieldLogger // which network is in use, and what is retried
}

// Server is the component.
type Server struct {
	opts       Options
	newWatcher func() (*fsnotify.Watcher, error) // nil, except in a test
	poll       time.Duration                     // how often the host's directory is checked when it cannot be watched
	made       time.Time                         // addresses assigned before belong to existing sandboxes or are unused
	work       *lifecycle.Watchdog
	// hostFits is the bridge configuration for which one run has set sysctls and masquerading.
	hostFits string
	// handedOver: masquerading is left to a third party's network.
	handedOver bool
}

var (
	_ lifecycle.Component = (*Server)(nil)
	_ lifecycle.Health    = (*Server)(nil)
)

// New returns the component; nothing is touched before Run.
func New(opts Options) *Server {
	if opts.MTU == nil {
		opts.MTU = func() int { return 0 }
	}
	if opts.ThirdParty == nil {
		opts.ThirdParty = func(bool) {}
	}
	return &Server{opts: opts, poll: 10 * time.Second, made: time.Now(), work: &lifecycle.Watchdog{}}
}

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "cni" }

// Needs implements lifecycle.Component. Only the bridge waits for the apiserver: the Node there has the pods' CIDRs.
func (s *Server) Needs() []string {
	if s.opts.Mode == Bridge {
		return []string{"containerd", "apiserver", "podlink"}
	}
	return []string{"containerd"}
}

// RestartPolicy implements lifecycle.Restarter.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartBeside }

const (
	// settle is how long the host's directory must be unchanged: installers write several files, or one in parts.
	settle = 100 * time.Millisecond
	// retry is the time between attempts after a failure.
	retry = 5 * time.Second
	// check is how often the host's settings are checked, which other programs may change: sysctl --system does.
	check = time.Minute
)

// Healthy implements lifecycle.Health: it fails when one step takes too long.
func (s *Server) Healthy(ctx context.Context) error { return s.work.Healthy(ctx) }

// Run keeps the configuration right until ctx is cancelled. It is ready once it watches: the node becomes Ready when
// CRI has a configuration, which may be later, or never in mode None.
func (s *Server) Run(ctx context.Context, ready func()) error {
	s.work.Reset()
	run := *s // its own: an earlier run may have been abandoned
	return run.run(ctx, ready)
}

func (s *Server) run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	switch s.opts.Mode {
	case Bridge, Noop, None:
	default:
		return fmt.Errorf("unknown network mode %q: use bridge, noop or none", s.opts.Mode)
	}
	if err := os.MkdirAll(s.opts.ConfDir, 0o755); err != nil {
		return err
	}
	watched := watchdir.New(watchdir.Options{Settle: settle, Poll: s.poll, Log: s.opts.Log, New: s.newWatcher})
	defer watched.Close()
	var cidrs chan []string // stays nil, and silent, in the other modes
	if s.opts.Mode == Bridge {
		if err := releaseAddresses(ctx, s.opts.ContainerdAddress, s.addressDir(), s.made, s.opts.Log); err != nil {
			s.opts.Log.WithError(err).Warn("cannot release the addresses of deleted pods")
		}
		cidrs = make(chan []string)
		done, err := watchPodCIDRs(ctx, s.opts.Client, s.opts.NodeName, cidrs)
		if err != nil {
			return err
		}
		defer func() { cancel(); <-done }()
	}
	ready()
	removed := reconcile.NewSignal()
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		if err := netevents.TableRemovals(ctx, names.NFTable, removed.Send); err != nil {
			s.opts.Log.WithError(err).Warnf("cannot watch nftables: masquerading that another program removes comes back within %s", check)
		}
	})
	s.loop(ctx, watched, cidrs, removed)
	return nil
}

func (s *Server) loop(ctx context.Context, watched *watchdir.Watcher, cidrs <-chan []string, removed <-chan struct{}) {
	var known []string
	again := time.NewTimer(0)
	defer again.Stop()
	regularly := time.NewTicker(check)
	defer regularly.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case known = <-cidrs:
		case <-watched.Changed():
		case <-removed:
		case <-regularly.C:
		case <-again.C:
		}
		noticed := watched.Follow(s.opts.HostConfDir)
		err := s.reconcile(ctx, known)
		switch {
		case err != nil && ctx.Err() == nil:
			s.opts.Log.WithError(err).Errorf("cannot set up the pod network, retrying in %s", retry)
			again.Reset(retry)
		case !noticed:
			again.Reset(s.poll)
		}
	}
}

// reconcile writes the configuration that is now in use to ConfDir, and prepares the host for it.
func (s *Server) reconcile(ctx context.Context, podCIDRs []string) error {
	defer s.work.Begin("setting up the pod network")()
	theirs, err := thirdParty(s.opts.HostConfDir, s.opts.Log)
	if err != nil {
		return err
	}
	s.opts.ThirdParty(theirs != nil)
	switch {
	case theirs != nil:
		changed, err := install(s.opts.ConfDir, *theirs)
		if err != nil {
			return err
		}
		if changed {
			s.opts.Log.Infof("pods use the network of %s", theirs.origin)
		}
		if s.opts.Mode != Bridge || s.handedOver {
			return nil
		}
		if err := removeMasquerade(); err != nil {
			return err
		}
		s.handedOver, s.hostFits = true, ""
		return nil
	case s.opts.Mode == None:
		return removeOthers(s.opts.ConfDir, "")
	case s.opts.Mode == Noop:
		_, err := install(s.opts.ConfDir, noopConfig())
		return err
	case len(podCIDRs) == 0:
		return nil // not allocated yet; the configuration of an earlier run stays valid
	default:
		return s.setUpBridge(ctx, podCIDRs)
	}
}

func (s *Server) setUpBridge(ctx context.Context, podCIDRs []string) error {
	conf, err := bridgeConfig(podCIDRs, s.opts.DataDir, s.opts.Socket, s.opts.MTU())
	if err != nil {
		return err
	}
	if s.hostFits == string(conf.content) && installed(s.opts.ConfDir, conf) {
		changed := otherwise(podCIDRs)
		if !masquerades(ctx, podCIDRs) {
			changed = append(changed, "the nftables table "+names.NFTable)
		}
		if len(changed) == 0 {
			return nil
		}
		s.opts.Log.Warnf("another program has changed %s, which pods need: restoring it", strings.Join(changed, ", "))
	}
	if err := setSysctls(ctx, podCIDRs, s.opts.Log); err != nil {
		return err
	}
	if err := masquerade(ctx, podCIDRs, s.opts.ClusterCIDRs); err != nil {
		return err
	}
	if _, err := install(s.opts.ConfDir, conf); err != nil {
		return err
	}
	if s.hostFits != string(conf.content) {
		s.opts.Log.Infof("pods get addresses from %v on the bridge %s", podCIDRs, names.Bridge)
	}
	s.hostFits, s.handedOver = string(conf.content), false
	return nil
}
