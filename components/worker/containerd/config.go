package containerd

import (
	"path/filepath"

	srvconfig "github.com/containerd/containerd/v2/cmd/containerd/server/config"
	"github.com/containerd/containerd/v2/version"

	"kubelith.io/kubelith/runtime/images"
	"kubelith.io/kubelith/runtime/oci"
	"kubelith.io/kubelith/runtime/payload"
	"kubelith.io/kubelith/runtime/tasks"
)

// table is a section of containerd's configuration, in the form of its TOML file. The plugins' own configuration types
// are internal to containerd; the names are those of docs/cri/config.md, version 4.
type table = map[string]any

const criRuntime = "io.containerd.cri.v1.runtime"

// statsPeriod is how often the CPU time of every container and sandbox is read, so that the CRI can report a rate
// (crictl stats). The default of a second is half of a node's work with ten idle pods. Ten seconds is also the period
// of the kubelet's own measurement (cAdvisor), which the metrics API, kubectl top and evictions use.
const statsPeriod = "10s"

// config returns the content of a containerd configuration file.
func config(o Options, h host) *srvconfig.Config {
	return &srvconfig.Config{
		Version:         version.ConfigVersion,
		Root:            o.Root,
		State:           o.State,
		DisabledPlugins: disabled(o),
		// Without these, containerd would start and serve nothing useful.
		RequiredPlugins: []string{"io.containerd.grpc.v1.cri", "io.containerd.snapshotter.v1." + h.snapshotter},
		Timeouts: map[string]string{
			// Otherwise opening the database waits for its lock without limit, for example when another process uses
			// Root.
			"io.containerd.timeout.bolt.open": "10s",
			// A shim that does not answer in this time counts as dead, and its containers are killed. The default of
			// 5 s is too little for a machine that is short of CPU.
			"io.containerd.timeout.shim.load": "30s",
		},
		Plugins: table{
			"io.containerd.server.v1.grpc":  table{"address": o.Socket},
			"io.containerd.server.v1.ttrpc": table{"address": o.Socket + ".ttrpc"},
			"io.containerd.shim.v1.manager": table{"socket_dir": shimSocketDir(o.State)},
			"io.containerd.transfer.v1.local": table{
				"config_path": o.RegistriesDir,
				"unpack_config": []table{{
					"platform":    h.platform,
					"snapshotter": h.snapshotter,
					"differ":      "walking",
				}},
			},
			"io.containerd.cri.v1.images": table{
				"snapshotter":   h.snapshotter,
				"pinned_images": table{"sandbox": images.Pause},
				"registry":      table{"config_path": o.RegistriesDir},
			},
			criRuntime: table{
				"cni": table{
					"bin_dirs":              o.CNIBinDirs,
					"conf_dir":              o.CNIConfDir,
					"use_internal_loopback": true, // one exec less per pod
				},
				"containerd":                   table{"runtimes": runtimes(o, h), "default_runtime_name": o.DefaultRuntime},
				"enable_selinux":               h.selinux,
				"restrict_oom_score_adj":       !h.capSysResource,
				"netns_mounts_under_state_dir": true, // separates several nodes on one host
				// Devices belong to the user of the pod; otherwise only root could open the devices of a device plugin.
				"device_ownership_from_security_context": true,
				"stats_collect_period":                   statsPeriod,
			},
		},
	}
}

// runtimes returns the handlers: the payload's runc, and the host's. All have the same shim.
func runtimes(o Options, h host) table {
	handler := func(name, path string) table {
		return table{
			"runtime_type": runtimeType,
			"runtime_path": filepath.Join(o.BinDir, payload.Shim),
			"options": table{
				"BinaryName":    path,
				"SystemdCgroup": h.systemdCgroup,
				"Root":          filepath.Join(o.State, name), // its default is outside our directories
			},
		}
	}
	all := table{oci.Runc: handler(oci.Runc, filepath.Join(o.BinDir, payload.Runc))}
	for _, r := range h.runtimes {
		all[r.Name] = handler(r.Name, r.Path)
	}
	return all
}

// callsPlugin has the handler of the gRPC server's calls, see observeCalls.
const callsPlugin = "io.containerd.metrics.v1.grpc-otel"

// runtimePlugin runs containers, see runTasks.
const runtimePlugin = "io.containerd.runtime.v2.task"

// criPlugin is the container runtime of the kubelet, see keepService.
const criPlugin = "io.containerd.grpc.v1.cri"

// tasksPlugin deletes what has ended, see observeEnds.
const tasksPlugin = "io.containerd.service.v1.tasks-service"

// disabled returns the plugins of upstream's that do not run.
func disabled(o Options) []string {
	// Its gRPC metrics have the same names as etcd's, and registering them twice panics.
	names := []string{"io.containerd.metrics.v1.grpc-prometheus"}
	if o.Calls == nil {
		names = append(names, callsPlugin)
	}
	return names
}

// tasksOptions configures runtime/tasks, beside upstream's own runtime.
func tasksOptions(o Options) tasks.Options {
	return tasks.Options{
		Root:   filepath.Join(o.Root, tasksDir),
		State:  filepath.Join(o.State, tasksDir),
		Socket: o.State + keeperSockets,
		Keeper: filepath.Join(o.BinDir, payload.Keeper),
		Pause:  filepath.Join(o.BinDir, payload.Pause),
		Server: o.Socket,
		Ours:   []string{runtimeType, filepath.Join(o.BinDir, payload.Shim)},
		Trial:  o.Trial,
	}
}

const (
	tasksDir      = "io.kubelith.tasks"
	keeperSockets = "/k"
	runtimeType   = "io.containerd.runc.v2"
)

// shimSocketDir is where the shims listen. Its default is outside our directories.
func shimSocketDir(state string) string { return state + shimSockets }

const shimSockets = "/s"
