package scheduling

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/pluginstest"
	schedulingv1 "kubelith.io/kubelith/plugins/proto/scheduling/v1"
	"kubelith.io/kubelith/plugins/sdk"
)

// process is a plugin of the SDK that the test listens to.
type process struct {
	*pluginstest.Plugin
	mu       sync.Mutex
	requests []any                                                    // as they came in
	fault    func(method string, request any) (answer any, err error) // instead of the plugin; both nil: the plugin answers
	lose     func() error                                             // an answer is lost with this error
}

// patient is for a slow machine, which is no fault.
const patient = 20 * time.Second

func newProcess(name string) *process {
	return &process{Plugin: pluginstest.New(plugins.Scheduling, name, plugins.Settings{Timeout: patient})}
}

// start replaces what serves the plugin, as the host does with a new process.
func (p *process) start(t *testing.T, s sdk.Scheduling) {
	t.Helper()
	d, err := s.Describe(sdk.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := Validate(p.Name(), d); err != nil {
		t.Fatal(err)
	}
	p.SetDescription(d)
	p.Serve(t, func(server *grpc.Server) { s.Register(server) }, grpc.UnaryInterceptor(p.intercept))
}

func (p *process) intercept(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	p.mu.Lock()
	p.requests = append(p.requests, request)
	fault, lose := p.fault, p.lose
	p.mu.Unlock()
	if fault != nil {
		if answer, err := fault(method(request), request); answer != nil || err != nil {
			return answer, err
		}
	}
	answer, err := handler(ctx, request)
	if lose != nil {
		if lost := lose(); lost != nil {
			return nil, lost
		}
	}
	return answer, err
}

func method(request any) string {
	switch request.(type) {
	case *schedulingv1.FilterRequest:
		return "Filter"
	case *schedulingv1.FilterNodeRequest:
		return "FilterNode"
	}
	return "Score"
}

// breakWith makes calls fail; nil: no more.
func (p *process) breakWith(fault func(method string, request any) (any, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = fault
}

// took returns the requests since the last time.
func (p *process) took() []any {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.requests
	p.requests = nil
	return out
}

// rig is upstream's scheduler with its default profile and plugins, on objects that a test puts into its cache.
type rig struct {
	t      *testing.T
	ctx    context.Context
	stop   func()
	logger klog.Logger
	sched  *scheduler.Scheduler
	f      framework.Framework
	client *fake.Clientset
	pods   informers.SharedInformerFactory
	set    *pluginstest.Set
	lines  *logrustest.Hook
}

func newRig(t *testing.T, processes ...*process) *rig {
	t.Helper()
	defaults, err := latest.Default()
	if err != nil {
		t.Fatal(err)
	}
	return newRigOf(t, defaults.Profiles, processes...)
}

func newRigOf(t *testing.T, given []config.KubeSchedulerProfile, processes ...*process) *rig {
	t.Helper()
	var all []plugins.Plugin
	for _, p := range processes {
		all = append(all, p)
	}
	r := &rig{t: t, set: pluginstest.NewSet(all...), client: fake.NewClientset()}
	log, hook := logrustest.NewNullLogger()
	r.lines = hook
	extension := New(r.set, logrus.NewEntry(log))
	t.Cleanup(extension.Close)
	profiles, err := extension.Profiles(given)
	if err != nil {
		t.Fatal(err)
	}
	r.logger = klog.Background()
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), r.logger))
	t.Cleanup(cancel)
	r.ctx, r.stop = ctx, cancel
	r.pods = informers.NewSharedInformerFactory(r.client, 0)
	r.sched, err = scheduler.New(ctx, r.client, r.pods, nil, func(string) events.EventRecorderLogger { return events.NewFakeRecorder(1000) },
		scheduler.WithProfiles(profiles...), scheduler.WithFrameworkOutOfTreeRegistry(extension.Registry()))
	if err != nil {
		t.Fatal(err)
	}
	if r.sched.APIDispatcher != nil {
		r.sched.APIDispatcher.Run(r.logger)
		t.Cleanup(r.sched.APIDispatcher.Close)
	}
	r.f = r.sched.Profiles[profiles[0].SchedulerName]
	return r
}

// nodes adds nodes to the cluster.
func (r *rig) nodes(nodes ...*corev1.Node) {
	for _, n := range nodes {
		r.sched.Cache.AddNode(r.logger, n)
	}
}

// run adds pods that run on nodes.
func (r *rig) run(pods ...*corev1.Pod) {
	r.t.Helper()
	for _, p := range pods {
		r.know(p)
		if err := r.sched.Cache.AddPod(r.logger, p); err != nil {
			r.t.Fatal(err)
		}
	}
}

// know adds pods to the API and to what informers know.
func (r *rig) know(pods ...*corev1.Pod) {
	r.t.Helper()
	for _, p := range pods {
		if err := r.client.Tracker().Add(p); err != nil {
			r.t.Fatal(err)
		}
		if err := r.pods.Core().V1().Pods().Informer().GetStore().Add(p); err != nil {
			r.t.Fatal(err)
		}
	}
}

// snapshot brings the scheduler's snapshot up to date, as the beginning of a cycle does.
func (r *rig) snapshot() *cache.Snapshot {
	r.t.Helper()
	s := r.f.SnapshotSharedLister().(*cache.Snapshot)
	if err := r.sched.Cache.UpdateSnapshot(r.logger, s); err != nil {
		r.t.Fatal(err)
	}
	return s
}

// schedule runs the scheduling algorithm for a pod and returns the node; with the state of the cycle.
func (r *rig) schedule(pod *corev1.Pod) (node string, state fwk.CycleState, err error) {
	r.t.Helper()
	r.snapshot()
	state = framework.NewCycleState()
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		r.t.Fatal(err)
	}
	result, err := r.sched.SchedulePod(r.ctx, r.f, state, &framework.QueuedPodInfo{PodInfo: info})
	return result.SuggestedHost, state, err
}

// preempt lets upstream look for pods whose end makes room for a pod that did not fit, and returns the node.
func (r *rig) preempt(pod *corev1.Pod) (node string, status *fwk.Status) {
	r.t.Helper()
	r.know(pod)
	_, state, err := r.schedule(pod)
	var fit *framework.FitError
	if !errors.As(err, &fit) {
		r.t.Fatalf("scheduling ended with %v, want a pod that does not fit", err)
	}
	result, status := r.f.RunPostFilterPlugins(r.ctx, state, pod, fit.Diagnosis.NodeToStatus)
	if result == nil || result.NominatingInfo == nil {
		return "", status
	}
	return result.NominatedNodeName, status
}
