package spans

import (
	"errors"
	"slices"
	"testing"

	"go.opentelemetry.io/otel/trace/noop"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/csi"
	"k8s.io/kubernetes/pkg/volume/emptydir"
)

// fakeCSI has upstream's name and interfaces, and mounts nothing.
type fakeCSI struct {
	csiPlugin // nil
	err       error
}

func (f *fakeCSI) GetPluginName() string { return csi.CSIPluginName }
func (f *fakeCSI) NewMounter(*volume.Spec, *core.Pod) (volume.Mounter, error) {
	return fakeMounter{f: f}, nil
}
func (f *fakeCSI) NewDeviceMounter() (volume.DeviceMounter, error) {
	return fakeDeviceMounter{f: f}, nil
}

type fakeMounter struct {
	volume.Mounter // nil
	f              *fakeCSI
}

func (m fakeMounter) SetUp(volume.MounterArgs) error { return m.f.err }

type fakeDeviceMounter struct {
	volume.DeviceMounter // nil
	f                    *fakeCSI
}

func (m fakeDeviceMounter) MountDevice(*volume.Spec, string, string, volume.DeviceMounterArgs) error {
	return m.f.err
}

// TestUpstreamPlugin: upstream's plugin for CSI is wrapped, and no other.
func TestUpstreamPlugin(t *testing.T) {
	n := newNode(noop.NewTracerProvider())
	upstream := slices.Concat(emptydir.ProbeVolumePlugins(), csi.ProbeVolumePlugins())
	got := n.source.VolumePlugins(upstream)
	if _, ok := got[1].(*mounts); !ok || len(got) != 2 || got[0] != upstream[0] {
		t.Errorf("the kubelet's plugins are %T", got)
	}
}

func TestMounts(t *testing.T) {
	n, fake := newNode(noop.NewTracerProvider()), &fakeCSI{}
	plugin := n.source.VolumePlugins([]volume.VolumePlugin{fake})[0].(volume.DeviceMountableVolumePlugin)
	spec := volume.NewSpecFromPersistentVolume(&core.PersistentVolume{
		ObjectMeta: meta.ObjectMeta{Name: "pvc-c1"},
		Spec: core.PersistentVolumeSpec{PersistentVolumeSource: core.PersistentVolumeSource{
			CSI: &core.CSIPersistentVolumeSource{Driver: "disk.example.com", VolumeHandle: "v1"},
		}},
	}, false)
	pod := &core.Pod{ObjectMeta: meta.ObjectMeta{Name: web.Name, Namespace: web.Namespace, UID: "u1"}}
	mount := func(failed error) {
		fake.err = failed
		m, err := plugin.NewMounter(spec, pod)
		if err != nil {
			t.Fatal(err)
		}
		d, err := plugin.NewDeviceMounter()
		if err != nil {
			t.Fatal(err)
		}
		if err := d.MountDevice(spec, "", "", volume.DeviceMounterArgs{}); err != failed {
			t.Errorf("MountDevice: %v", err)
		}
		if err := m.SetUp(volume.MounterArgs{}); err != failed {
			t.Errorf("SetUp: %v", err)
		}
	}
	mount(errors.New("busy"))
	n.want(t, "volume MountDevice: pvc-c1; busy", "volume SetUp: pvc-c1; busy")
	mount(nil)
	n.want(t, "volume MountDevice: pvc-c1", "volume SetUp: pvc-c1")
	if left := n.source.volumes.staged; len(left) != 0 {
		t.Errorf("a volume that is set up waits: %+v", left)
	}

	n.source.CSI("disk.example.com") // its calls are recorded
	mount(nil)
	n.want(t)
}
