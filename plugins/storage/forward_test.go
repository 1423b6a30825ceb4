package storage

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/pluginstest"
	"kubelith.io/kubelith/plugins/storage/storagetest"
)

// forwarded returns a connection to the plugin through a forwarder.
func forwarded(t *testing.T, p *pluginstest.Plugin) *grpc.ClientConn { return observed(t, p, nil) }

func observed(t *testing.T, p *pluginstest.Plugin, calls stats.Handler) *grpc.ClientConn {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "csi.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server, served := NewForwarder(p, calls), make(chan struct{})
	go func() { defer close(served); server.Serve(l) }()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); server.Stop(); <-served })
	return conn
}

// callee answers with what it was asked, and how.
type callee struct {
	csi.UnimplementedNodeServer
	csi.UnimplementedSnapshotMetadataServer
	answer string
}

func (c callee) register(s *grpc.Server) {
	csi.RegisterNodeServer(s, c)
	csi.RegisterSnapshotMetadataServer(s, c)
}

func (c callee) NodeGetInfo(ctx context.Context, _ *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	grpc.SetHeader(ctx, metadata.Pairs("head", "h"))
	grpc.SetTrailer(ctx, metadata.Pairs("tail", "t"))
	return &csi.NodeGetInfoResponse{NodeId: c.answer + strings.Join(md.Get("word"), ",")}, nil
}

func (c callee) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	s, err := status.New(codes.FailedPrecondition, "not "+r.GetVolumeId()).WithDetails(&errdetails.ErrorInfo{Reason: "because"})
	if err != nil {
		return nil, err
	}
	return nil, s.Err()
}

func (c callee) NodePublishVolume(ctx context.Context, _ *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if _, ok := ctx.Deadline(); !ok {
		return nil, status.Error(codes.Internal, "it may take for ever")
	}
	<-ctx.Done()
	return nil, status.FromContextError(ctx.Err()).Err()
}

func (c callee) GetMetadataAllocated(r *csi.GetMetadataAllocatedRequest, s csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
	for i := range int64(r.GetMaxResults()) {
		if err := s.Send(&csi.GetMetadataAllocatedResponse{VolumeCapacityBytes: i, BlockMetadata: []*csi.BlockMetadata{{SizeBytes: 1 << 20}}}); err != nil {
			return err
		}
	}
	return status.Error(codes.Aborted, "enough")
}

// observer is a handler that notes the volume of NodeStageVolume, and how a call ended.
type observer struct {
	stats.Handler
	volume chan string
	err    chan error
}

func (o observer) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (o observer) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (o observer) HandleConn(context.Context, stats.ConnStats)                       {}
func (o observer) HandleRPC(_ context.Context, s stats.RPCStats) {
	switch s := s.(type) {
	case *stats.InPayload:
		var m csi.NodeStageVolumeRequest
		if message, ok := s.Payload.(*mem.BufferSlice); ok && proto.Unmarshal(message.Materialize(), &m) == nil {
			o.volume <- m.GetVolumeId()
		}
	case *stats.End:
		o.err <- s.Error
	}
}

func TestObserved(t *testing.T) {
	p := pluginstest.New(plugins.Storage, "p", plugins.Settings{})
	p.Serve(t, callee{}.register)
	o := observer{volume: make(chan string, 1), err: make(chan error, 1)}
	_, err := csi.NewNodeClient(observed(t, p, o)).NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: "v"})
	if seen := <-o.err; <-o.volume != "v" || status.Convert(seen).Message() != "not v" || status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a call that fails with %v is seen to fail with %v", err, seen)
	}
}

func TestForward(t *testing.T) {
	p := pluginstest.New(plugins.Storage, "p", plugins.Settings{})
	p.Serve(t, callee{answer: "one "}.register)
	conn := forwarded(t, p)
	node := csi.NewNodeClient(conn)

	var header, trailer metadata.MD
	ctx := metadata.AppendToOutgoingContext(t.Context(), "word", "please")
	info, err := node.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
	if err != nil || info.GetNodeId() != "one please" {
		t.Errorf("%v, %v", info, err)
	}
	if strings.Join(header.Get("head"), "") != "h" || strings.Join(trailer.Get("tail"), "") != "t" {
		t.Errorf("header %v, trailer %v", header, trailer)
	}

	_, err = node.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: "v"})
	if s := status.Convert(err); s.Code() != codes.FailedPrecondition || s.Message() != "not v" || len(s.Details()) != 1 {
		t.Errorf("an error arrives as %v with %v", err, s.Details())
	}
	if _, err := node.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a call that the driver does not have: %v", err)
	}
	if _, err := csi.NewGroupControllerClient(conn).GroupControllerGetCapabilities(t.Context(), &csi.GroupControllerGetCapabilitiesRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a service that the driver does not have: %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := node.NodePublishVolume(short, &csi.NodePublishVolumeRequest{}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a call without an end: %v", err)
	}

	// Many messages in one direction, then an error: what streams do.
	stream, err := csi.NewSnapshotMetadataClient(conn).GetMetadataAllocated(t.Context(), &csi.GetMetadataAllocatedRequest{MaxResults: 300})
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(300) {
		if m, err := stream.Recv(); err != nil || m.GetVolumeCapacityBytes() != i || m.GetBlockMetadata()[0].GetSizeBytes() != 1<<20 {
			t.Fatalf("message %d: %v, %v", i, m, err)
		}
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Aborted {
		t.Errorf("the end of a stream: %v", err)
	}
	if got := strings.Join(p.Called()[:2], " "); got != "NodeGetInfo NodeStageVolume" {
		t.Errorf("counted as %s", got)
	}
}

// TestForwardOverReplacement: a connection outlives the process; a call waits for the next one, and not for ever.
func TestForwardOverReplacement(t *testing.T) {
	p := pluginstest.New(plugins.Storage, "p", plugins.Settings{})
	node := csi.NewNodeClient(forwarded(t, p))
	answer := make(chan string, 1)
	go func() {
		info, err := node.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
		if err != nil {
			answer <- err.Error()
			return
		}
		answer <- info.GetNodeId()
	}()
	storagetest.Eventually(t, "the call finds no process", func() bool { return len(p.Called()) > 0 })
	p.Serve(t, callee{answer: "first "}.register)
	if got := <-answer; got != "first " {
		t.Errorf("the call that waited: %s", got)
	}
	p.Serve(t, callee{answer: "second "}.register)
	if info, err := node.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{}); err != nil || info.GetNodeId() != "second " {
		t.Errorf("after a replacement: %v, %v", info, err)
	}
	p.Kill()
	_, err := node.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	if s := status.Convert(err); s.Code() != codes.Unavailable || !strings.Contains(s.Message(), "ended with status 2") {
		t.Errorf("without a process: %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := node.NodeGetInfo(short, &csi.NodeGetInfoRequest{}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("without a process and without time: %v", err)
	}
}
