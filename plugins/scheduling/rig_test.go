package scheduling

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
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
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	schedulingv1 "kubelith.io/kubelith/plugins/proto/scheduling/v1"
	"kubelith.io/kubelith/plugins/sdk"
)

// process is a plugin without the process: a server of the SDK's behind real gRPC in memory.
type process struct {
	name        string
	mu          sync.Mutex
	settings    plugins.Settings
	description *pluginv1.Description
	conn        *grpc.ClientConn
	generation  uint64
	requests    []any                                                    // as they came in
	fault       func(method string, request any) (answer any, err error) // instead of the plugin; both nil: the plugin answers
	lose        func() error                                             // an answer is lost with this error
}

// start replaces what serves the plugin, as the host does with a new process.
func (p *process) start(t *testing.T, s sdk.Scheduling) {
	t.Helper()
	d, err := s.Describe(sdk.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := Validate(p.name, d); err != nil {
		t.Fatal(err)
	}
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer(grpc.UnaryInterceptor(p.intercept))
	s.Register(server)
	var served sync.WaitGroup
	served.Go(func() { server.Serve(listener) })
	conn, err := grpc.NewClient("passthrough:plugin", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); server.Stop(); served.Wait() })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.description, p.conn = d, conn
	p.generation++
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

// Name, Kind, Settings, Description, Generation and Call implement plugins.Plugin.
func (p *process) Name() string       { return p.name }
func (p *process) Kind() plugins.Kind { return plugins.Scheduling }

func (p *process) Settings() plugins.Settings {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.settings
}

func (p *process) Description() *pluginv1.Description {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.description
}

func (p *process) Generation() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil {
		return 0
	}
	return p.generation
}

func (p *process) Call(ctx context.Context, _ string, f func(context.Context, plugins.Instance) error) error {
	p.mu.Lock()
	conn, generation := p.conn, p.generation
	p.mu.Unlock()
	if conn == nil {
		return &plugins.NotRunningError{Plugin: p.name, Reason: "it ended with status 2"}
	}
	return f(ctx, plugins.Instance{Conn: conn, Generation: generation})
}

// set implements plugins.Set.
type set struct {
	plugins []plugins.Plugin
	changed func()
}

func (s *set) Plugins(plugins.Kind) []plugins.Plugin { return slices.Clone(s.plugins) }

func (s *set) Subscribe(_ plugins.Kind, changed func()) func() {
	s.changed = changed
	return func() {}
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
	set    *set
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
	r := &rig{t: t, set: &set{}, client: fake.NewClientset()}
	for _, p := range processes {
		r.set.plugins = append(r.set.plugins, p)
	}
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
