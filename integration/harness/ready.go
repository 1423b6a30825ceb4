package harness

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	images "github.com/containerd/containerd/api/services/images/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/integration/testimage"
)

// WaitAPI waits until /readyz returns ok, for a server without a node.
func (s *Server) WaitAPI(t testing.TB) {
	t.Helper()
	Eventually(t, readyTimeout, "the server to be ready", func() error {
		client, err := s.client()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), Patience(5*time.Second))
		defer cancel()
		return isReady(ctx, client)
	})
}

// WaitReady waits until /readyz returns ok, the node is Ready and the test image is there.
func (s *Server) WaitReady(t testing.TB) {
	t.Helper()
	if err := s.ready(readyTimeout); err != nil {
		t.Fatal(err)
	}
}

func (s *Server) ready(timeout time.Duration) error {
	exited := s.Exited()
	return poll(timeout, "the node to be Ready", func() error {
		select {
		case <-exited:
			return permanent{fmt.Errorf("the server ended with exit code %d", s.process.ProcessState.ExitCode())}
		default:
		}
		client, err := s.client()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), Patience(5*time.Second))
		defer cancel()
		if _, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return err
		}
		if err := isReady(ctx, client); err != nil {
			return err
		}
		node, err := s.node(ctx, client)
		if err != nil {
			return err
		}
		if err := nodeReady(node); err != nil || s.opts.NoTestImage {
			return err
		}
		return s.testImageThere(ctx)
	})
}

// Containerd returns a connection to the server's containerd, to be closed by the caller.
func (s *Server) Containerd() (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+s.Path(RunDir+"/containerd/containerd.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// testImageThere returns an error unless this server's containerd, as it runs now, has the test image.
func (s *Server) testImageThere(ctx context.Context) error {
	conn, err := s.Containerd()
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", "k8s.io")
	if _, err := images.NewImagesClient(conn).Get(ctx, &images.GetImageRequest{Name: testimage.Ref}); err != nil {
		return fmt.Errorf("%s is not imported: %w", testimage.Ref, err)
	}
	return nil
}

// isReady returns an error unless /readyz returns ok.
func isReady(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	return err
}

// node returns the Node of this server.
func (s *Server) node(ctx context.Context, client kubernetes.Interface) (*corev1.Node, error) {
	if name := s.NodeName(); name != "" {
		return client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	if len(nodes.Items) == 0 {
		return nil, errors.New("no node yet")
	}
	return &nodes.Items[0], nil
}

// nodeReady requires what a scheduler requires: the condition, and no remaining not-ready taint.
func nodeReady(node *corev1.Node) error {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			if c.Status != corev1.ConditionTrue {
				return fmt.Errorf("node %s is not Ready: %s", node.Name, c.Message)
			}
			for _, taint := range node.Spec.Taints {
				if taint.Key == corev1.TaintNodeNotReady {
					return fmt.Errorf("node %s has the taint %s", node.Name, taint.Key)
				}
			}
			return nil
		}
	}
	return fmt.Errorf("node %s has no Ready condition", node.Name)
}

// AllUp returns an error that names the components that are not ready, by the metrics of their process.
func AllUp(metrics string) error {
	var known, down []string
	for line := range strings.Lines(metrics) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(name, "kubelith_component_up{") {
			known = append(known, name)
			if value != "1" {
				down = append(down, name)
			}
		}
	}
	if len(known) == 0 {
		return errors.New("there is no kubelith_component_up")
	}
	if len(down) > 0 {
		return errors.New(strings.Join(down, ", "))
	}
	return nil
}
