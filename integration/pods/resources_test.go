package pods

import (
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"kubelith.io/kubelith/integration/harness"
)

// limits is a resource list; empty means unset.
func limits(cpu, memory string) corev1.ResourceList {
	list := corev1.ResourceList{}
	if cpu != "" {
		list[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		list[corev1.ResourceMemory] = resource.MustParse(memory)
	}
	return list
}

// TestCgroups reads the cgroup files of the container's process and of its pod.
func TestCgroups(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for _, tc := range []struct {
		name             string
		requests, limits corev1.ResourceList
		qos              corev1.PodQOSClass
		shares           int64  // v1: 1024 per CPU, at least 2
		quota            string // CPU time in microseconds per 100 ms; "" is no limit
		memory           int64  // bytes; 0 is no limit
	}{
		{"besteffort", nil, nil, corev1.PodQOSBestEffort, 2, "", 0},
		{"burstable", limits("100m", "16Mi"), limits("250m", "48Mi"), corev1.PodQOSBurstable, 102, "25000", 48 * mib},
		{"requests", limits("50m", "8Mi"), nil, corev1.PodQOSBurstable, 51, "", 0},
		{"guaranteed", limits("200m", "32Mi"), limits("200m", "32Mi"), corev1.PodQOSGuaranteed, 204, "20000", 32 * mib},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := cluster.Get(t)
			ns := s.Namespace(t)
			pod := harness.Pod(ns, tc.name, "/bin/probe", "sleep")
			pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: tc.requests, Limits: tc.limits}
			pod = s.Run(t, pod)
			if pod.Status.QOSClass != tc.qos {
				t.Errorf("QoS class %s", pod.Status.QOSClass)
			}
			pid := s.ContainerPID(t, pod, "main")

			if harness.CgroupV2() {
				if got := harness.CgroupFile(t, pid, "cpu", "", "cpu.weight"); tc.shares > 2 && (got == "1" || got == "0") {
					t.Errorf("cpu.weight is %s", got)
				}
				want := "max 100000"
				if tc.quota != "" {
					want = tc.quota + " 100000"
				}
				if got := harness.CgroupFile(t, pid, "cpu", "", "cpu.max"); got != want {
					t.Errorf("cpu.max is %q, not %q", got, want)
				}
			} else {
				if got := harness.CgroupNumber(t, pid, "cpu", "cpu.shares", ""); got != tc.shares {
					t.Errorf("cpu.shares is %d, not %d", got, tc.shares)
				}
				want := "-1"
				if tc.quota != "" {
					want = tc.quota
				}
				if got := harness.CgroupFile(t, pid, "cpu", "cpu.cfs_quota_us", ""); got != want {
					t.Errorf("cpu.cfs_quota_us is %s, not %s", got, want)
				}
			}
			memory := harness.CgroupNumber(t, pid, "memory", "memory.limit_in_bytes", "memory.max")
			if unlimited := memory < 0 || memory > 1<<60; tc.memory == 0 && !unlimited || tc.memory > 0 && memory != tc.memory {
				t.Errorf("the memory limit is %d, not %d", memory, tc.memory)
			}

			dir := harness.CgroupDir(t, pid, "memory")
			class := map[corev1.PodQOSClass]string{
				corev1.PodQOSBestEffort: "kubepods/besteffort/pod", corev1.PodQOSBurstable: "kubepods/burstable/pod", corev1.PodQOSGuaranteed: "kubepods/pod",
			}[tc.qos]
			_, id, _ := strings.Cut(harness.Status(pod, "main").ContainerID, "://")
			if want := filepath.Join(s.CgroupRoot(), class+string(pod.UID), id); !strings.HasSuffix(dir, want) {
				t.Errorf("the cgroup is %s, not %s", dir, want)
			}
		})
	}
}
