package spans

import (
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/csi"

	"kubelith.io/kubelith/trace/record"
)

// VolumePlugins returns the kubelet's volume plugins, of which the one for CSI records how it mounts the volumes of
// drivers whose calls CSI does not see: those of drivers in pods, which have their own sockets.
func (s *Source) VolumePlugins(plugins []volume.VolumePlugin) []volume.VolumePlugin {
	all := make([]volume.VolumePlugin, len(plugins))
	for i, p := range plugins {
		if upstream, ok := p.(csiPlugin); ok && p.GetPluginName() == csi.CSIPluginName {
			p = &mounts{csiPlugin: upstream, source: s}
		}
		all[i] = p
	}
	return all
}

// csiPlugin is what upstream finds in its plugin for CSI by type assertions.
//
// Source: k8s.io/kubernetes/pkg/volume/csi (csi_plugin.go, expander.go).
type csiPlugin interface {
	volume.AttachableVolumePlugin
	volume.BlockVolumePlugin
	volume.NodeExpandableVolumePlugin
}

// mounts is upstream's plugin for CSI, recorded.
type mounts struct {
	csiPlugin
	source *Source
}

// NewMounter implements volume.VolumePlugin.
func (m *mounts) NewMounter(spec *volume.Spec, pod *core.Pod) (volume.Mounter, error) {
	next, err := m.csiPlugin.NewMounter(spec, pod)
	if err != nil {
		return nil, err
	}
	return &mounter{Mounter: next, source: m.source, spec: spec, pod: record.Ref{
		UID: string(pod.UID), Resource: pods, Namespace: pod.Namespace, Name: pod.Name,
	}}, nil
}

// NewDeviceMounter implements volume.DeviceMountableVolumePlugin.
func (m *mounts) NewDeviceMounter() (volume.DeviceMounter, error) {
	next, err := m.csiPlugin.NewDeviceMounter()
	if err != nil {
		return nil, err
	}
	return &deviceMounter{DeviceMounter: next, source: m.source}, nil
}

// mounter mounts a volume for a pod.
type mounter struct {
	volume.Mounter
	source *Source
	spec   *volume.Spec
	pod    record.Ref
}

// SetUp implements volume.Mounter.
func (m *mounter) SetUp(args volume.MounterArgs) error {
	start := time.Now()
	err := m.Mounter.SetUp(args)
	m.source.mounted("SetUp", m.spec, m.pod, start, err)
	return err
}

// deviceMounter mounts a volume on the node, for all pods.
type deviceMounter struct {
	volume.DeviceMounter
	source *Source
}

// MountDevice implements volume.DeviceMounter.
func (m *deviceMounter) MountDevice(spec *volume.Spec, device, path string, args volume.DeviceMounterArgs) error {
	start := time.Now()
	err := m.DeviceMounter.MountDevice(spec, device, path, args)
	m.source.mounted("MountDevice", spec, record.Ref{}, start, err)
	return err
}

// mounted records an operation of the kubelet on a volume. One for no pod waits for the SetUp of one, as
// NodeStageVolume waits for NodePublishVolume.
func (s *Source) mounted(operation string, spec *volume.Spec, pod record.Ref, start time.Time, err error) {
	driver, unknown := csi.GetCSIDriverName(spec)
	if unknown != nil {
		return
	}
	r := record.Record{Object: pod, Stage: record.Volume, Name: operation, Actor: driver, Message: spec.Name(),
		Start: s.clock.At(start), Duration: time.Since(start)}
	if err != nil {
		r.Error = err.Error()
	}
	s.mu.Lock()
	if s.volumes.forwarded[driver] {
		s.mu.Unlock()
		return
	}
	key := driver + "\x00" + spec.Name()
	var due []record.Record
	if pod.UID == "" {
		s.volumes.stage(key, r)
	} else {
		due = s.volumes.staged[key]
		delete(s.volumes.staged, key)
	}
	s.mu.Unlock()
	for _, staged := range due {
		staged.Object = pod
		s.sink.Add(staged)
	}
	if pod.UID != "" {
		s.sink.Add(r)
	}
}
