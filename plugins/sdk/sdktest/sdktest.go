// Package sdktest runs a plugin of the SDK inside a test: over real gRPC, in memory, without a process. `kubelith
// plugin check` tests the executable.
package sdktest

import (
	"context"
	"encoding/json"
	"net"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"kubelith.io/kubelith/plugins/proto"
	admissionpb "kubelith.io/kubelith/plugins/proto/admission/v1"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// Connect serves what register adds until the test ends, and returns a connection to it. options are server options,
// such as an interceptor.
func Connect(t testing.TB, register func(*grpc.Server), options ...grpc.ServerOption) *grpc.ClientConn {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer(append(options, grpc.MaxRecvMsgSize(proto.MaxRequestSize))...)
	register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///plugin", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(proto.MaxResponseSize)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		<-served
	})
	return conn
}

// Describe requests a plugin's description as the host does; config is the operator's `config:` as JSON.
func Describe(t testing.TB, conn grpc.ClientConnInterface, name, config string) (*pluginv1.Description, error) {
	t.Helper()
	return pluginv1.NewPluginClient(conn).Describe(t.Context(), &pluginv1.DescribeRequest{
		Protocol: proto.Version, Name: name, NodeName: "node", DataDir: t.TempDir(), Config: []byte(config),
	})
}

// Review sends a request to a hook and returns the answer. object and old may be nil; missing fields of the request get
// defaults.
func Review(t testing.TB, conn grpc.ClientConnInterface, hook string, r admissionv1.AdmissionRequest, object, old any) *admissionv1.AdmissionResponse {
	t.Helper()
	if r.UID == "" {
		r.UID = types.UID(t.Name())
	}
	if r.Operation == "" {
		r.Operation = admissionv1.Create
	}
	r.Object, r.OldObject = raw(t, object), raw(t, old)
	review := admissionv1.AdmissionReview{Request: &r}
	data, err := review.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	answer, err := admissionpb.NewAdmissionClient(conn).Review(t.Context(), &admissionpb.ReviewRequest{
		Review:   data,
		Encoding: pluginv1.Encoding_ENCODING_PROTOBUF,
		Hook:     hook,
	})
	if err != nil {
		t.Fatalf("hook %s: %v", hook, err)
	}
	out := admissionv1.AdmissionReview{}
	if err := out.Unmarshal(answer.GetReview()); err != nil {
		t.Fatal(err)
	}
	if out.Response == nil || out.Response.UID != r.UID {
		t.Fatalf("hook %s does not answer the request: %+v", hook, out)
	}
	return out.Response
}

// raw returns an object as it is in a review.
func raw(t testing.TB, object any) runtime.RawExtension {
	t.Helper()
	if object == nil {
		return runtime.RawExtension{}
	}
	data, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return runtime.RawExtension{Raw: data}
}
