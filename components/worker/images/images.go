// Package images is the component "images": it fills containerd's image store from archives, so that a cluster without
// a registry can run pods.
//
// It first imports the images embedded in the executable: pause, without which no pod starts, and hello. They are
// pinned: the kubelet does not delete them. Then it imports, in the background, the user's archives in a directory. It
// pulls nothing; the kubelet and containerd do that. runtime/images has the embedded images.
//
//	start -> drop what an interrupted import left -> embedded -> ready -> the user's archives -> wait for the end
package images

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/runtime/images"
)

// Options of the component.
type Options struct {
	ContainerdAddress string             // path of containerd's socket
	ArchiveDir        string             // .tar, .tar.gz, .tgz and .tar.zst files here are imported; created when missing
	Snapshotter       func() string      // the one CRI uses, see containerd.Snapshotter
	Log               logrus.FieldLogger // archives imported, and those that cannot be
}

// Server is the component.
type Server struct {
	opts Options
}

var _ lifecycle.Component = (*Server)(nil)

// New returns the component; nothing is touched before Run.
func New(opts Options) *Server { return &Server{opts: opts} }

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "images" }

// Needs implements lifecycle.Component.
func (s *Server) Needs() []string { return []string{"containerd"} }

// RestartPolicy implements lifecycle.Restarter.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartBeside }

// Run imports, is ready after the embedded images, and returns when ctx is cancelled.
func (s *Server) Run(ctx context.Context, ready func()) error {
	c, err := client.New(s.opts.ContainerdAddress, client.WithDefaultNamespace(names.ContainerdNamespace))
	if err != nil {
		return fmt.Errorf("connect to containerd: %w", err)
	}
	defer c.Close()
	store := &store{client: c, snapshotter: s.opts.Snapshotter()}
	if err := store.dropInterrupted(ctx); err != nil {
		return stopped(ctx, err)
	}
	if err := s.importEmbedded(ctx, store); err != nil {
		return stopped(ctx, err)
	}
	ready()
	s.importArchives(ctx, store)
	<-ctx.Done()
	return nil
}

// stopped returns nil when err is a consequence of ctx being cancelled.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (s *Server) importEmbedded(ctx context.Context, store *store) error {
	e, err := images.Open()
	if err != nil {
		return err
	}
	defer e.Close()
	missing, err := store.missing(ctx, e.Digests)
	if err != nil {
		return err
	}
	if missing {
		if _, err := store.importArchive(ctx, e, "embedded"); err != nil {
			return fmt.Errorf("import the embedded images: %w", err)
		}
	}
	if err := store.pin(ctx, e.Digests); err != nil {
		return err
	}
	conn, ok := store.client.Conn().(grpc.ClientConnInterface)
	if !ok {
		return fmt.Errorf("the connection to containerd is a %T, not a gRPC client", store.client.Conn())
	}
	return awaitCRI(ctx, runtimeapi.NewImageServiceClient(conn), images.Pause)
}

// awaitCRI waits until CRI, which learns of new images by events, knows this one: otherwise it would try to pull the
// pause image. It waits without limit, because a disk may be slow.
func awaitCRI(ctx context.Context, cri runtimeapi.ImageServiceClient, ref string) error {
	for delay := 5 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		resp, err := cri.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
		if err == nil && resp.Image != nil {
			return nil
		}
		if !reconcile.Sleep(ctx, delay) {
			return fmt.Errorf("CRI does not list %s after its import (%v): %w", ref, err, ctx.Err())
		}
	}
}
