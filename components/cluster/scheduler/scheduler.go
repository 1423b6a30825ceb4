// Package scheduler runs kube-scheduler in the process.
//
// It is composed from upstream's exported parts instead of its Setup and Run, which create clients from a kubeconfig
// and end the process with the lease.
//
// Informers: all are the shared ones. Upstream's Pod informer selects unfinished pods, and the scheduler's event
// handlers rely on it: otherwise finished Jobs would continue to use capacity. So the scheduler's view shows no others.
//
// Scheduling plugins join the registry and the profiles when the scheduler starts (plugins/scheduling).
//
// policy.go gives back the policy file and ConfigMap, which upstream removed.
package scheduler

import (
	"context"
	"fmt"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/scheduler"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"kubelith.io/kubelith/base/client"
	sharedinformers "kubelith.io/kubelith/base/informers"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/trace/record"
)

// Options configures the component.
type Options struct {
	// Args are "key=value" arguments named as kube-scheduler's own flags.
	Args []string
	// Plugins extend the scheduler with separate processes; nil: none.
	Plugins plugins.Set
	// Client gives the scheduler its identity.
	Client client.Identities
	// Informers returns the factory that the process shares; it is called when
	// the apiserver is ready.
	Informers func() informers.SharedInformerFactory
	// Log receives messages about plugins.
	Log logrus.FieldLogger
	// Record, when set, gets each attempt to schedule a pod and to bind it.
	Record *record.Store
}

// Server is the scheduler component.
type Server struct {
	opts     Options
	config   *schedulerconfig.KubeSchedulerConfiguration
	upstream *options.Options
	policy   policySource
	work     lifecycle.Watchdog
}

var (
	_ lifecycle.Component = (*Server)(nil)
	_ lifecycle.Health    = (*Server)(nil)
)

// New checks the options against upstream's flags; nothing is started.
func New(o Options) (*Server, error) {
	s := &Server{opts: o}
	if err := s.complete(); err != nil {
		return nil, err
	}
	return s, nil
}

// Upstream returns the options that upstream's scheduler is built from.
func (s *Server) Upstream() *options.Options { return s.upstream }

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "scheduler" }

// Needs implements lifecycle.Component.
func (s *Server) Needs() []string {
	if s.opts.Plugins == nil {
		return []string{"apiserver"}
	}
	return []string{"apiserver", "plugins"}
}

// RestartPolicy implements lifecycle.Restarter. Two would give away the same room.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartAlone }

// Healthy implements lifecycle.Health: no pod takes too long. What upstream does with it is bounded, extenders and
// plugins included.
func (s *Server) Healthy(ctx context.Context) error { return s.work.Healthy(ctx) }

// Run implements lifecycle.Component. It is ready when its caches are filled.
func (s *Server) Run(ctx context.Context, ready func()) error {
	s.work.Reset()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cfg := s.opts.Client.Config(client.Scheduler)
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	// Its Events have a client of their own, as upstream's: they must not delay bindings (client.Paced).
	eventClient, err := kubernetes.NewForConfig(s.opts.Client.Config(client.Scheduler))
	if err != nil {
		return err
	}
	c := s.followed(ctx, cs)
	if c == nil {
		return nil
	}
	factory := sharedinformers.NewView(s.opts.Informers())
	sharedinformers.Only(factory, unfinished)
	dynFactory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(dyn, 0, metav1.NamespaceAll, nil)
	defer func() {
		cancel()
		factory.Close()
		dynFactory.Shutdown()
	}()
	broadcaster := events.NewEventBroadcasterAdapterWithContext(ctx, eventClient)
	broadcaster.StartRecordingToSink(ctx.Done())
	defer broadcaster.Shutdown()

	profiles, registry, closePlugins, err := s.extended(c.Profiles)
	if err != nil {
		return err
	}
	defer closePlugins()
	sched, err := scheduler.New(ctx, cs, factory, dynFactory,
		func(name string) events.EventRecorderLogger { return broadcaster.NewRecorder(name) },
		scheduler.WithComponentConfigVersion(c.TypeMeta.APIVersion),
		scheduler.WithKubeConfig(cfg),
		scheduler.WithProfiles(profiles...),
		scheduler.WithPercentageOfNodesToScore(c.PercentageOfNodesToScore),
		scheduler.WithFrameworkOutOfTreeRegistry(registry),
		scheduler.WithPodMaxBackoffSeconds(c.PodMaxBackoffSeconds),
		scheduler.WithPodInitialBackoffSeconds(c.PodInitialBackoffSeconds),
		scheduler.WithPodMaxInUnschedulablePodsDuration(s.upstream.Deprecated.PodMaxInUnschedulablePodsDuration),
		scheduler.WithExtenders(c.Extenders...),
		scheduler.WithParallelism(c.Parallelism),
	)
	if err != nil {
		return err
	}
	recordTo(s.opts.Record, sched)
	sched.NextEntity = s.watched(sched.NextEntity)
	factory.Start(ctx.Done())
	dynFactory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	dynFactory.WaitForCacheSync(ctx.Done())
	if err := sched.WaitForHandlersSync(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("fill caches: %w", err)
	}
	ready()
	sched.Run(ctx)
	return nil
}

// unfinished reports whether a Pod is for the scheduler: upstream's informer selects
// status.phase!=Succeeded,status.phase!=Failed.
func unfinished(pod *corev1.Pod) bool {
	return pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// watched records what the scheduler is working on: from one entity to the next. Only upstream's loop calls it.
func (s *Server) watched(next func(klog.Logger) (framework.QueuedEntityInfo, error)) func(klog.Logger) (framework.QueuedEntityInfo, error) {
	done := func() {}
	return func(log klog.Logger) (framework.QueuedEntityInfo, error) {
		done()
		entity, err := next(log)
		done = s.work.Begin("scheduling a pod")
		return entity, err
	}
}
