package reset

import (
	"slices"
	"strings"
	"testing"

	"kubelith.io/kubelith/host/hosttest"
)

func TestLoopsOfOthersStay(t *testing.T) {
	h := hosttest.New(t)
	for name, file := range map[string]string{
		"loop0": "/var/lib/kubelith/plugins/data/local/volumes/a/image",
		"loop1": "/var/lib/kubelith/plugins/data/local/trash/b/image (deleted)",
		"loop2": "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/pvc-a/dev/1234",
		"loop3": "/var/lib/snapd/snaps/core.snap",
		"loop4": "/var/lib/kubelith-other/image",
	} {
		h.Write("/sys/block/"+name+"/loop/backing_file", file+"\n")
	}
	h.Write("/sys/block/loop5/size", "0")
	h.Write("/sys/block/sda/size", "1")
	h.Write("/var/lib/kubelith/version", "1")
	h.Write("/var/lib/kubelet/.kubelith", "/var/lib/kubelith")
	r := &Reset{
		opts:  Options{DataDir: "/var/lib/kubelith", RunDir: "/run/kubelith", KubeletRootDir: "/var/lib/kubelet"},
		files: h.Tree, nets: &fakeNetwork{}, neighbour: func() bool { return false },
	}
	r.findOwned()
	if got, want := r.loops(), []string{"/dev/loop0", "/dev/loop1", "/dev/loop2"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if plan := strings.Join(r.Plan(), "\n"); !strings.Contains(plan, "detach 3 loop devices") {
		t.Errorf("the plan does not list them:\n%s", plan)
	}
}
