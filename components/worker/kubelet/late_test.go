package kubelet

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/volume"

	"kubelith.io/kubelith/base/lifecycle"
)

// plugin is a volume plugin that tells when it is initialised.
type plugin struct {
	volume.VolumePlugin
	initialised chan struct{}
}

func (plugin) GetPluginName() string          { return "kubelith.io/test" }
func (p plugin) Init(volume.VolumeHost) error { close(p.initialised); return nil }

// noPlugins is a prober that finds none.
type noPlugins struct{}

func (noPlugins) Init() error                         { return nil }
func (noPlugins) Probe() ([]volume.ProbeEvent, error) { return nil, nil }

// TestLateProber: upstream initialises the prober before its plugins, so that one that waits keeps it from them.
func TestLateProber(t *testing.T) {
	waiting, ready := make(chan struct{}), make(chan struct{})
	prober := &lateProber{DynamicPluginProber: noPlugins{}, await: func() error {
		close(waiting)
		<-ready
		return nil
	}}
	p := plugin{initialised: make(chan struct{})}
	ended := make(chan error, 1)
	go func() { ended <- new(volume.VolumePluginMgr).InitPlugins([]volume.VolumePlugin{p}, prober, nil) }()
	<-waiting
	select {
	case <-p.initialised:
		t.Error("the plugin was initialised before all that the kubelet needs was ready")
	case <-time.After(50 * time.Millisecond):
	}
	close(ready)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	<-p.initialised
}

// TestLateProberStops: a kubelet that stops while it waits goes no further.
func TestLateProberStops(t *testing.T) {
	p := plugin{initialised: make(chan struct{})}
	prober := &lateProber{DynamicPluginProber: noPlugins{}, await: func() error { return context.Canceled }}
	defer func() {
		if got := recover(); got != context.Canceled || !prober.left {
			t.Errorf("recovered %v, left %v", got, prober.left)
		}
		select {
		case <-p.initialised:
			t.Error("the plugin was initialised")
		default:
		}
	}()
	_ = new(volume.VolumePluginMgr).InitPlugins([]volume.VolumePlugin{p}, prober, nil)
	t.Error("upstream went on")
}

// needy is a component with a request that it sends at once.
type needy struct {
	send func(context.Context) error
	sent chan error
}

func (needy) Name() string          { return "kubelet" }
func (needy) Needs() []string       { return []string{"apiserver"} }
func (needy) StartsAfter() []string { return nil }

func (n needy) Run(ctx context.Context, ready func()) error {
	n.sent <- n.send(ctx)
	ready()
	<-ctx.Done()
	return nil
}

// TestLate: a request waits until all is ready, and ends with the component or its own context.
func TestLate(t *testing.T) {
	for _, end := range []string{"ready", "the component stops", "the request is cancelled"} {
		t.Run(end, func(t *testing.T) {
			requested, withdraw := context.WithCancel(context.Background())
			defer withdraw()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			open := make(chan struct{})
			arrived := make(chan struct{}, 1)
			answer := roundTripper(func(*http.Request) (*http.Response, error) {
				arrived <- struct{}{}
				return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
			})
			n := needy{sent: make(chan error, 1), send: func(ctx context.Context) error {
				rt, err := rest.TransportFor(late(ctx, &rest.Config{Host: "https://192.0.2.1", Transport: answer}))
				if err != nil {
					return err
				}
				request, err := http.NewRequestWithContext(requested, http.MethodGet, "https://192.0.2.1/", nil)
				if err != nil {
					return err
				}
				_, err = rt.RoundTrip(request) //nolint:bodyclose // it has none
				return err
			}}
			group, err := lifecycle.NewGroup(lifecycle.Options{}, n, server{open})
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- group.Run(ctx) }()
			select {
			case <-arrived:
				t.Error("the request was sent before the apiserver was ready")
			case err := <-n.sent:
				t.Errorf("the request did not wait: %v", err)
			case <-time.After(50 * time.Millisecond):
			}
			var want error
			switch end {
			case "ready":
				close(open)
			case "the component stops":
				want = context.Canceled
				cancel()
			default:
				want = context.Canceled
				withdraw()
			}
			if err := <-n.sent; !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// server is ready when it is told so.
type server struct{ open chan struct{} }

func (server) Name() string    { return "apiserver" }
func (server) Needs() []string { return nil }

func (s server) Run(ctx context.Context, ready func()) error {
	select {
	case <-s.open:
		ready()
	case <-ctx.Done():
	}
	<-ctx.Done()
	return nil
}
