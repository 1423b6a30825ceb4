// Package policy is the component "network-policy": it enforces network policies for the pods of this node.
//
// Package rules turns the objects of the API into a table; package kernel writes it. This one follows the objects, and
// podlink calls it before it connects a new pod: the pod's rules are in the kernel before its first packet. While what
// applies to a pod is not known, because the API is away, no connection of the pod is allowed.
//
// Without policies there is no table, and only the policies are followed. A stop leaves the table: the kernel goes on.
package policy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/components/worker/policy/kernel"
	"kubelith.io/kubelith/components/worker/policy/rules"
)

// Options of the component.
type Options struct {
	NodeName string
	NodeIPs  []net.IP
	// ClusterCIDRs are all pods' addresses, one per family, and ClusterDNS the addresses of the DNS Service.
	ClusterCIDRs []string
	ClusterDNS   []net.IP
	// Dir has a file for each pod of this node that is connected. It is empty after the machine was restarted.
	Dir string
	// Objects come from the factory that the process shares (it is called when the apiserver is ready) or, if it is
	// nil, from the API through Client, which may list and watch networkpolicies, namespaces, pods and nodes.
	// ClusterNetworkPolicies always come from there.
	Informers func() informers.SharedInformerFactory
	Client    *rest.Config
	// LogDrops is how many dropped packets are logged a second at most; 0: none.
	LogDrops int
	Log      logrus.FieldLogger
}

// mode is what the component knows about a pod's rules.
type mode int

const (
	starting  mode = iota // the policies are not known yet
	idle                  // there are none
	enforcing             // the table is written
	off                   // the network is a third party's
)

// Server is the component.
type Server struct {
	opts    Options
	changed reconcile.Signal
	moved   reconcile.Broadcast                               // mode, written or an object has changed
	shut    func(ctx context.Context, ips []netip.Addr) error // closes a pod in the kernel

	mu       sync.Mutex
	mode     mode
	third    bool
	pods     *podFiles
	compiler *rules.Compiler // of the current run; nil outside one
	wanted   uint64          // counts the changes that Connect waits for
	written  uint64          // of them, those that are in the kernel
	failure  error           // why they are not
}

var (
	_ lifecycle.Component = (*Server)(nil)
	_ lifecycle.Restarter = (*Server)(nil)
)

// New returns the component; nothing is started.
func New(o Options) *Server {
	s := &Server{opts: o, changed: reconcile.NewSignal(), pods: &podFiles{dir: o.Dir}}
	s.shut = func(ctx context.Context, ips []netip.Addr) error { return kernel.New(s.families()).Close(ctx, ips) }
	return s
}

// Name implements lifecycle.Component.
func (*Server) Name() string { return "network-policy" }

// Needs implements lifecycle.Component.
func (*Server) Needs() []string { return []string{"apiserver"} }

// RestartPolicy implements lifecycle.Restarter.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartBeside }

// ThirdParty sets whether a third party's CNI configuration is in use: its policies are its own.
func (s *Server) ThirdParty(theirs bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.third != theirs {
		s.third = theirs
		s.changed.Send()
	}
}

func (s *Server) setMode(m mode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = m
	s.moved.Send()
}

// families returns of which families the pods' addresses are.
func (s *Server) families() (v4, v6 bool) {
	for _, c := range s.opts.ClusterCIDRs {
		if p, err := netip.ParsePrefix(c); err == nil {
			v4, v6 = v4 || p.Addr().Is4(), v6 || p.Addr().Is6()
		}
	}
	return v4, v6
}

// retry is the time between attempts to write the table.
const retry = time.Second

// Run implements lifecycle.Component. It is ready at once; pods wait for their rules by themselves.
func (s *Server) Run(ctx context.Context, ready func()) error {
	r, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer r.end()
	metrics := &drops{r}
	if err := legacyregistry.Registerer().Register(metrics); err == nil { // not in a process with two nodes
		defer legacyregistry.Registerer().Unregister(metrics)
	}
	ready()
	r.loop(ctx)
	return nil
}

// patience is how long a new pod waits for its rules.
const patience = 3 * time.Second

// Connect returns when the rules for a new pod of this node are in the kernel: its sandbox has these addresses, and
// nothing has been sent yet. If they are not known in time it is closed, until they are.
func (s *Server) Connect(ctx context.Context, pod Pod) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.pods.add(pod); err != nil {
		return fmt.Errorf("remember the pod's addresses for network policies: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for s.mode == starting || s.mode == enforcing && !s.compiler.Knows(pod.UID) {
		if !s.wait(ctx) {
			break
		}
	}
	switch s.mode {
	case starting:
		s.opts.Log.Warnf("pod %s/%s may not use the network until its network policies are known", pod.Namespace, pod.Name)
		if s.compiler != nil { // otherwise begin finds the pod's file
			s.compiler.AddLocal(pod.UID, pod.IPs)
		}
		return s.shut(context.WithoutCancel(ctx), pod.IPs)
	case off:
		return nil
	case idle:
		s.compiler.AddLocal(pod.UID, pod.IPs) // for the first policy
		return nil
	}
	s.compiler.AddLocal(pod.UID, pod.IPs)
	s.wanted++
	mine := s.wanted
	s.changed.Send()
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	for s.written < mine && s.mode == enforcing {
		if !s.wait(ctx) {
			return errors.Join(errors.New("the pod's network policies could not be written to the kernel in time"), s.failure)
		}
	}
	return nil
}

// wait waits for a change without the lock. It reports false when ctx has ended.
func (s *Server) wait(ctx context.Context) bool {
	moved := s.moved.Next()
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-moved:
	case <-ctx.Done():
		return false
	}
	return true
}

// Disconnect forgets a sandbox. Its addresses may then be given to another pod.
func (s *Server) Disconnect(sandbox string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	pod, current, err := s.pods.remove(sandbox)
	if err != nil {
		return fmt.Errorf("forget the pod's addresses for network policies: %w", err)
	}
	if current && s.compiler != nil {
		s.compiler.DeleteLocal(pod.UID)
		s.changed.Send()
	}
	return nil
}

// services are those that this node answers itself. Policies see them as the pods that other clusters have.
func (s *Server) services() []rules.Service {
	return []rules.Service{rules.ClusterDNS(addressesOf(s.opts.NodeIPs), addressesOf(s.opts.ClusterDNS))}
}

func addressesOf(ips []net.IP) (out []netip.Addr) {
	for _, ip := range ips {
		if a, ok := netip.AddrFromSlice(ip); ok {
			out = append(out, a.Unmap())
		}
	}
	return out
}
