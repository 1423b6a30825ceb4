package host

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"kubelith.io/kubelith/plugins/proto"
	admissionpb "kubelith.io/kubelith/plugins/proto/admission/v1"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	"kubelith.io/kubelith/plugins/sdk"
	"kubelith.io/kubelith/plugins/sdk/sdktest"
)

// counted counts the streams that are opened.
type counted struct {
	grpc.ClientConnInterface
	streams atomic.Int32
}

func (c *counted) NewStream(ctx context.Context, d *grpc.StreamDesc, method string, o ...grpc.CallOption) (grpc.ClientStream, error) {
	c.streams.Add(1)
	return c.ClientConnInterface.NewStream(ctx, d, method, o...)
}

// newLanes serves a plugin with one hook, and returns how it is called.
func newLanes(t *testing.T, review sdk.Review) (*lanes, *counted) {
	t.Helper()
	plugin := sdk.Admission{Validating: []sdk.ValidatingHook{{Webhook: admissionregistrationv1.ValidatingWebhook{Name: "hook"}, Review: review}}}
	way := &counted{ClientConnInterface: sdktest.Connect(t, func(s *grpc.Server) { plugin.Register(s) })}
	return &lanes{ClientConnInterface: way}, way
}

// review asks the hook about a request of this name, and returns the first warning.
func review(ctx context.Context, l *lanes, name string) (string, error) {
	message := admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{UID: "1", Name: name}}
	data, err := message.Marshal()
	if err != nil {
		return "", err
	}
	answer, err := admissionpb.NewAdmissionClient(l).Review(ctx, &admissionpb.ReviewRequest{Review: data, Encoding: pluginv1.Encoding_ENCODING_PROTOBUF, Hook: "hook"})
	if err != nil {
		return "", err
	}
	var out admissionv1.AdmissionReview
	if err := out.Unmarshal(answer.GetReview()); err != nil || len(out.Response.Warnings) == 0 {
		return "", errors.Join(errors.New("no warning in the answer"), err)
	}
	return out.Response.Warnings[0], nil
}

// echo answers with the name of the request.
func echo(_ context.Context, r *admissionv1.AdmissionRequest) sdk.Response {
	answer := sdk.Allow()
	answer.Warnings = []string{r.Name}
	return answer
}

func wantEcho(t *testing.T, l *lanes) {
	t.Helper()
	if got, err := review(t.Context(), l, "again"); got != "again" || err != nil {
		t.Errorf("the next call: %q, %v", got, err)
	}
}

func TestLanesKeepTheirStreams(t *testing.T) {
	l, way := newLanes(t, echo)
	for range 10 {
		wantEcho(t, l)
	}
	if n := way.streams.Load(); n != 1 {
		t.Errorf("%d streams for calls one after the other, want 1", n)
	}
}

func TestLanesAtTheSameTime(t *testing.T) {
	const many = 2 * maxIdleLanes
	var here sync.WaitGroup
	here.Add(many)
	l, _ := newLanes(t, func(ctx context.Context, r *admissionv1.AdmissionRequest) sdk.Response {
		here.Done()
		here.Wait() // until all of them are under way
		return echo(ctx, r)
	})
	var group sync.WaitGroup
	for i := range many {
		group.Go(func() {
			name := strings.Repeat("x", i)
			if got, err := review(t.Context(), l, name); got != name || err != nil {
				t.Errorf("call %d: %q, %v", i, got, err)
			}
		})
	}
	group.Wait()
	if n := len(l.idle); n != maxIdleLanes {
		t.Errorf("%d lanes stay open, want %d", n, maxIdleLanes)
	}
}

func TestLanesCarryFailures(t *testing.T) {
	l, way := newLanes(t, func(ctx context.Context, r *admissionv1.AdmissionRequest) sdk.Response {
		switch r.Name {
		case "fail":
			return sdk.Fail(errors.New("no way"))
		case "panic":
			panic("mind the gap")
		}
		return echo(ctx, r)
	})
	for name, want := range map[string]string{"fail": "no way", "panic": "panic: mind the gap"} {
		if _, err := review(t.Context(), l, name); status.Convert(err).Message() != want {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if err := l.Invoke(t.Context(), "/kubelith.plugin.v1.Plugin/None", &pluginv1.MetricsRequest{}, &pluginv1.MetricsResponse{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a method that there is not: %v", err)
	}
	wantEcho(t, l)
	if n := way.streams.Load(); n != 1 {
		t.Errorf("failed calls opened %d streams, want that of all calls", n)
	}
}

func TestLanesOfCallsThatAreGivenUp(t *testing.T) {
	ended := make(chan error, 1)
	l, _ := newLanes(t, func(ctx context.Context, r *admissionv1.AdmissionRequest) sdk.Response {
		if r.Name == "hang" {
			<-ctx.Done()
			ended <- ctx.Err()
			time.Sleep(50 * time.Millisecond) // its answer comes too late in any case
		}
		return echo(ctx, r)
	})
	within, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := review(within, l, "hang"); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("the deadline is over: %v", err)
	}
	<-ended
	wantEcho(t, l)

	giveUp, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := review(giveUp, l, "hang"); status.Code(err) != codes.Canceled {
		t.Errorf("the caller has gone: %v", err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the plugin's call ended with %v", err)
	}
	if _, err := review(giveUp, l, "too late"); status.Code(err) != codes.Canceled {
		t.Errorf("a caller that has gone before: %v", err)
	}
	wantEcho(t, l)
}

func TestLanesOfMessagesThatAreTooLarge(t *testing.T) {
	l, _ := newLanes(t, func(ctx context.Context, r *admissionv1.AdmissionRequest) sdk.Response {
		if r.Name == "more" {
			r.Name = strings.Repeat("x", proto.MaxResponseSize+1)
		}
		return echo(ctx, r)
	})
	for _, name := range []string{"more", strings.Repeat("x", proto.MaxRequestSize+1)} {
		if _, err := review(t.Context(), l, name); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a name of %d bytes: %.200v", len(name), err)
		}
		wantEcho(t, l)
	}
}

func TestLanesLeaveOtherServicesAlone(t *testing.T) {
	l, _ := newLanes(t, echo)
	_, err := grpc_health_v1.NewHealthClient(l).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "unknown service grpc.health.v1.Health") {
		t.Errorf("gRPC itself is to answer, not Calls: %v", err)
	}
}
