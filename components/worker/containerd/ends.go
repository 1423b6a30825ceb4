package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"

	"kubelith.io/kubelith/runtime/cgroups"
)

// Ended takes the ID of a container that has ended, and what its cgroup counted. It is called before CRI reports the
// end, and must not block.
type Ended func(id string, m cgroups.Memory)

// observeEnds passes to ended the memory of each container that has ended. Its cgroup goes with its task, so the
// service that deletes tasks is wrapped: CRI calls it in this process, and whatever reads an event may come too late.
func observeEnds(ended Ended) {
	wrap(tasksPlugin, func(ic *plugin.InitContext, service any) (any, error) {
		db, err := ic.GetSingle(plugins.MetadataPlugin) // the service requires it, too
		if err != nil {
			return nil, err
		}
		return &tasksService{service.(tasksapi.TasksClient), metadata.NewContainerStore(db.(*metadata.DB)), ended, cgroups.ContainerMemory}, nil
	})
}

// tasksService is containerd's service of that name.
type tasksService struct {
	tasksapi.TasksClient
	containers containers.Store
	ended      Ended
	read       func(cgroupsPath string) (cgroups.Memory, error)
}

// Delete implements tasksapi.TasksClient: of a task that has ended.
func (t *tasksService) Delete(ctx context.Context, r *tasksapi.DeleteTaskRequest, opts ...grpc.CallOption) (*tasksapi.DeleteResponse, error) {
	// Without an answer there is nothing to report: the cgroup is gone, or the kernel does not count memory.
	if m, err := t.memory(ctx, r.ContainerID); err == nil {
		t.ended(r.ContainerID, m)
	}
	return t.TasksClient.Delete(ctx, r, opts...)
}

func (t *tasksService) memory(ctx context.Context, id string) (m cgroups.Memory, err error) {
	c, err := t.containers.Get(ctx, id)
	if err != nil {
		return m, err
	}
	if c.Spec == nil {
		return m, errors.New("the container has no specification")
	}
	var spec struct {
		Linux *specs.Linux `json:"linux"`
	}
	if err := json.Unmarshal(c.Spec.GetValue(), &spec); err != nil {
		return m, fmt.Errorf("decode the specification: %w", err)
	}
	if spec.Linux == nil || spec.Linux.CgroupsPath == "" {
		return m, errors.New("the container has no cgroup")
	}
	return t.read(spec.Linux.CgroupsPath)
}
