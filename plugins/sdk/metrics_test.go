package sdk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// serveCounting is a plugin of a kind whose metrics count how often they were requested, and fail at the third time.
func serveCounting(kind string) {
	asked := 0
	count := func(w io.Writer) error {
		if asked++; asked == 3 {
			return errors.New("the counters are away")
		}
		_, err := fmt.Fprintf(w, "# TYPE asked_total counter\nasked_total{kind=%q} %d\n", kind, asked)
		return err
	}
	switch kind {
	case "admission":
		ServeAdmission(Admission{Metrics: count})
	case "scheduling":
		ServeScheduling(Scheduling{Metrics: count, Filter: func(context.Context, *Pod, *Node) string { return "" }})
	case "storage":
		ServeStorage(Storage{Metrics: count, Node: csi.UnimplementedNodeServer{}, CSIDriver: &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "a.example.com"}}})
	}
}

// TestMetrics: the host gets what the plugin writes, each time again; an error is the plugin's own.
func TestMetrics(t *testing.T) {
	for _, kind := range []string{"admission", "scheduling", "storage"} {
		t.Run(kind, func(t *testing.T) {
			client := startAs(t, kind)
			for n := 1; n <= 2; n++ {
				answer, err := client.Metrics(t.Context(), &pluginv1.MetricsRequest{})
				if want := fmt.Sprintf("# TYPE asked_total counter\nasked_total{kind=%q} %d\n", kind, n); err != nil || string(answer.GetText()) != want {
					t.Errorf("%q, %v; want %q", answer.GetText(), err, want)
				}
			}
			if _, err := client.Metrics(t.Context(), &pluginv1.MetricsRequest{}); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "the counters are away") {
				t.Errorf("metrics that fail: %v", err)
			}
		})
	}
}
