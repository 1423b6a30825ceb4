package containerd

import (
	"context"
	"errors"
	"slices"
	"testing"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"kubelith.io/kubelith/runtime/cgroups"
)

// oneContainer is a store with one container, whose specification names a cgroup.
type oneContainer struct{ containers.Store }

func (oneContainer) Get(_ context.Context, id string) (containers.Container, error) {
	if id != "c1" {
		return containers.Container{}, errors.New("not found")
	}
	return containers.Container{Spec: &anypb.Any{Value: []byte(`{"linux":{"cgroupsPath":"/kubepods/pod1/c1"}}`)}}, nil
}

type deleting struct {
	tasksapi.TasksClient
	log *[]string
}

func (d deleting) Delete(_ context.Context, r *tasksapi.DeleteTaskRequest, _ ...grpc.CallOption) (*tasksapi.DeleteResponse, error) {
	*d.log = append(*d.log, "delete "+r.ContainerID)
	return &tasksapi.DeleteResponse{}, nil
}

// TestEnds: memory is read while the task is still there, and what cannot be read holds up nothing.
func TestEnds(t *testing.T) {
	var log []string
	s := &tasksService{TasksClient: deleting{log: &log}, containers: oneContainer{},
		ended: func(id string, m cgroups.Memory) { log = append(log, "ended "+id) },
		read: func(path string) (cgroups.Memory, error) {
			log = append(log, "read "+path)
			return cgroups.Memory{}, nil
		}}
	for _, id := range []string{"c1", "unknown"} {
		if _, err := s.Delete(t.Context(), &tasksapi.DeleteTaskRequest{ContainerID: id}); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"read /kubepods/pod1/c1", "ended c1", "delete c1", "delete unknown"}; !slices.Equal(log, want) {
		t.Errorf("%q, want %q", log, want)
	}
}

// The service that is wrapped, and what the wrapper needs, are there under the names that it knows.
func TestTasksPlugin(t *testing.T) {
	found := false
	registry.Graph(func(r *plugin.Registration) bool {
		found = found || r.URI() == tasksPlugin && slices.Contains(r.Requires, plugin.Type("io.containerd.metadata.v1"))
		return false
	})
	if !found {
		t.Errorf("containerd has no plugin %s that requires its metadata", tasksPlugin)
	}
}
