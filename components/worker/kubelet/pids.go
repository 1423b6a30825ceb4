package kubelet

import (
	"strconv"

	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/stats/pidlimit"
)

const (
	maxPodPIDs      = 16384 // of one pod
	maxReservedPIDs = 4096  // for the host and the control plane
)

// limitPIDs sets defaults that keep pods from using every process ID of the host: the threads of the control plane need
// them too. Upstream's default is no limit, so that a fork bomb in one pod ends the cluster.
func limitPIDs(c *kubeletconfig.KubeletConfiguration) {
	host, err := pidlimit.Stats()
	if err != nil || host.MaxPID == nil {
		return // the kubelet warns
	}
	if c.PodPidsLimit < 0 {
		c.PodPidsLimit = min(maxPodPIDs, *host.MaxPID/4)
	}
	if _, given := c.SystemReserved[string(pidlimit.PIDs)]; !given {
		if c.SystemReserved == nil {
			c.SystemReserved = map[string]string{}
		}
		c.SystemReserved[string(pidlimit.PIDs)] = strconv.FormatInt(min(maxReservedPIDs, *host.MaxPID/10), 10)
	}
}
