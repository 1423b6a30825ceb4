// Package cni is the component "cni": it writes the CNI configuration by which containerd connects pods,
// and sets up what that configuration needs of the host.
//
// It has three modes. Bridge: the node's pods share a bridge and are masqueraded towards the outside; the
// addresses are those that the controller-manager gave the Node. Noop: a configuration with which the node
// is Ready though only pods on the host's network can start. None: nothing is written. In every mode a
// configuration that a third party puts into its usual directory wins, whenever it comes.
//
// containerd executes the plugins, which are programs of runtime/payload. The way to the pods of other nodes is
// components/network's; it is told here when a third party's network counts.
package cni

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/components/lifecycle"
)

// Mode is what is done when no third party brings a network.
type Mode string

// The modes; the package comment says what each does.
const (
	Bridge Mode = "bridge"
	Noop   Mode = "noop"
	None   Mode = "none"
)

// Names of what bridge mode makes on the host.
const (
	BridgeName = "cni0"             // the bridge; the name that most tools expect
	Table      = "kubelith_network" // the nftables table (family inet) with the masquerading rules
)

// Options of the component.
type Options struct {
	Mode              Mode
	ConfDir           string       // what CRI reads; all of it is ours
	HostConfDir       string       // where a third party puts its configuration: /etc/cni/net.d
	DataDir           string       // which pod has which address; survives restarts
	ClusterCIDRs      []string     // all pods' addresses: traffic to them is not masqueraded
	ContainerdAddress string       // path of the CRI socket
	Client            *rest.Config // reads the Node; bridge mode only
	NodeName          string
	// MTU is that of the pods' interfaces, for the network as it is when it is called; 0 is the kernel's choice, and so is nil.
	MTU func() int
	// ThirdParty is told whether a third party's configuration counts, whenever that was looked at. It may be nil.
	ThirdParty func(theirs bool)
	Log        logrus.FieldLogger // who brings the network, and what is tried again
}

// Server is the component.
type Server struct {
	opts       Options
	newWatcher func() (*fsnotify.Watcher, error)
	poll       time.Duration // how often the host's directory is looked at when it cannot be watched
	made       time.Time     // addresses that were given out before belong to existing sandboxes or to nobody
	work       *lifecycle.Watchdog
	// hostFits is the bridge configuration for which one run has set sysctls and masquerading.
	hostFits string
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
	return &Server{opts: opts, newWatcher: fsnotify.NewWatcher, poll: 10 * time.Second, made: time.Now(), work: &lifecycle.Watchdog{}}
}

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "cni" }

// Needs implements lifecycle.Component. Only the bridge waits for the apiserver: the Node there has the pods' CIDRs.
func (s *Server) Needs() []string {
	if s.opts.Mode == Bridge {
		return []string{"containerd", "apiserver"}
	}
	return []string{"containerd"}
}

const (
	// settle is how long the host's directory must be quiet: installers write several files, or one in parts.
	settle = 100 * time.Millisecond
	// retry is the time between attempts at something that failed.
	retry = 5 * time.Second
)

// Healthy implements lifecycle.Health: nothing takes too long.
func (s *Server) Healthy(ctx context.Context) error { return s.work.Healthy(ctx) }

// Run keeps the configuration right until ctx is cancelled. It is ready once it watches: the node becomes
// Ready when CRI has a configuration, which may be later, or never in mode None.
func (s *Server) Run(ctx context.Context, ready func()) error {
	s.work.Reset()
	run := *s // of its own: an earlier run may have been abandoned
	return run.run(ctx, ready)
}

func (s *Server) run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	switch s.opts.Mode {
	case Bridge, Noop, None:
	default:
		return fmt.Errorf("unknown network mode %q: want bridge, noop or none", s.opts.Mode)
	}
	if err := os.MkdirAll(s.opts.ConfDir, 0o755); err != nil {
		return err
	}
	watched := s.watch()
	defer watched.close()
	var cidrs chan []string // stays nil, and silent, in the other modes
	if s.opts.Mode == Bridge {
		if err := releaseAddresses(ctx, s.opts.ContainerdAddress, s.addressDir(), s.made, s.opts.Log); err != nil {
			s.opts.Log.WithError(err).Warn("addresses of pods that are gone stay reserved")
		}
		cidrs = make(chan []string)
		done, err := watchPodCIDRs(ctx, s.opts.Client, s.opts.NodeName, cidrs)
		if err != nil {
			return err
		}
		defer func() { cancel(); <-done }()
	}
	ready()
	return s.loop(ctx, watched, cidrs)
}

func (s *Server) loop(ctx context.Context, watched *watched, cidrs <-chan []string) error {
	var known []string
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case known = <-cidrs:
			again.Reset(0)
		case _, ok := <-watched.events:
			if !ok {
				return fmt.Errorf("watch %s: closed", s.opts.HostConfDir)
			}
			again.Reset(settle)
		case err := <-watched.errors: // an overflow, say: look again
			s.opts.Log.WithError(err).Warnf("watch %s", s.opts.HostConfDir)
			again.Reset(settle)
		case <-again.C:
			// Directories come and go; watching one that is watched already does nothing.
			polling := watched.renew()
			err := s.reconcile(ctx, known)
			switch {
			case err != nil && ctx.Err() == nil:
				s.opts.Log.WithError(err).Errorf("set up the pod network, next attempt in %s", retry)
				again.Reset(retry)
			case polling:
				again.Reset(s.poll)
			}
		}
	}
}

// reconcile makes ConfDir hold the configuration that counts now, and the host fit it.
func (s *Server) reconcile(ctx context.Context, podCIDRs []string) error {
	defer s.work.Begin("the set-up of the pod network")()
	theirs, err := thirdParty(s.opts.HostConfDir, s.opts.Log)
	if err != nil {
		return err
	}
	s.opts.ThirdParty(theirs != nil)
	switch {
	case theirs != nil:
		changed, err := install(s.opts.ConfDir, *theirs)
		if err != nil || !changed {
			return err
		}
		s.opts.Log.Infof("pods are connected by %s", theirs.origin)
		if s.opts.Mode == Bridge {
			return removeMasquerade(ctx)
		}
		return nil
	case s.opts.Mode == None:
		return removeOthers(s.opts.ConfDir, "")
	case s.opts.Mode == Noop:
		_, err := install(s.opts.ConfDir, noopConfig())
		return err
	case len(podCIDRs) == 0:
		return nil // not allocated yet; the configuration of an earlier run stays good
	default:
		return s.setUpBridge(ctx, podCIDRs)
	}
}

func (s *Server) setUpBridge(ctx context.Context, podCIDRs []string) error {
	conf, err := bridgeConfig(podCIDRs, s.opts.DataDir, s.opts.MTU())
	if err != nil {
		return err
	}
	if s.hostFits == string(conf.content) && installed(s.opts.ConfDir, conf) {
		return nil
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
	s.hostFits = string(conf.content)
	s.opts.Log.Infof("pods get addresses of %v on the bridge %s", podCIDRs, BridgeName)
	return nil
}
