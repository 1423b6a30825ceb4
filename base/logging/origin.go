package logging

import (
	"runtime"
	"strings"
)

// unknown is the component of a Kubernetes line whose component cannot be found.
const unknown = "kubernetes"

// origins maps the import path of the code that logs to the component of a line, if it is not logged through the
// component's context. The longest prefix wins.
var origins = map[string]string{
	"k8s.io/kubernetes/cmd/kubelet/":                    "kubelet",
	"k8s.io/kubernetes/pkg/kubelet":                     "kubelet",
	"k8s.io/kubernetes/pkg/util/oom":                    "kubelet",
	"k8s.io/cri-client/":                                "kubelet",
	"github.com/google/cadvisor/":                       "kubelet",
	"k8s.io/kubernetes/pkg/proxy":                       "proxy",
	"k8s.io/kubernetes/cmd/kube-scheduler/":             "scheduler",
	"k8s.io/kubernetes/pkg/scheduler":                   "scheduler",
	"k8s.io/kubernetes/cmd/kube-controller-manager/":    "controller-manager",
	"k8s.io/kubernetes/pkg/controller/":                 "controller-manager",
	"k8s.io/controller-manager/":                        "controller-manager",
	"k8s.io/cloud-provider/":                            "controller-manager",
	"k8s.io/endpointslice/":                             "controller-manager",
	"k8s.io/kubernetes/cmd/kube-apiserver/":             "apiserver",
	"k8s.io/kubernetes/pkg/controlplane":                "apiserver",
	"k8s.io/kubernetes/pkg/kubeapiserver":               "apiserver",
	"k8s.io/kubernetes/pkg/registry/":                   "apiserver",
	"k8s.io/kubernetes/pkg/routes":                      "apiserver",
	"k8s.io/kubernetes/plugin/":                         "apiserver",
	"k8s.io/apiserver/":                                 "apiserver",
	"k8s.io/kube-aggregator/":                           "apiserver",
	"k8s.io/apiextensions-apiserver/":                   "apiserver",
	"github.com/kubernetes-csi/":                        "storage",
	"sigs.k8s.io/sig-storage-lib-external-provisioner/": "storage",
	"kubelith.io/kubelith/plugins/storage":              "storage",
	"kubelith.io/kubelith/plugins/scheduling":           "scheduler",
	"kubelith.io/kubelith/plugins/admission":            "apiserver",
	"github.com/flannel-io/flannel/":                    "network",
	"github.com/coredns/":                               "dns",
	"github.com/containerd/":                            "containerd",
	"go.etcd.io/etcd/client/":                           "apiserver",
	"go.etcd.io/etcd/server/":                           "etcd",

	// Our packages whose name is not their component's, or that are none.
	"kubelith.io/kubelith/components/cluster/controllermanager":  "controller-manager",
	"kubelith.io/kubelith/components/controlplane/carotation":    "ca-rotation",
	"kubelith.io/kubelith/components/worker/catrust":             "ca-trust",
	"kubelith.io/kubelith/components/controlplane/metrics":       "metrics-server",
	"kubelith.io/kubelith/components/cluster/dnspublisher":       "dns-publisher",
	"kubelith.io/kubelith/components/cluster/metricspublisher":   "metrics-publisher",
	"kubelith.io/kubelith/components/cluster/storagecontrollers": "storage-controllers",
	"kubelith.io/kubelith/components/worker/hostports":           "host-ports",
	"kubelith.io/kubelith/components/worker/policy":              "network-policy",
	"kubelith.io/kubelith/components/controlplane/snapshot":      "snapshots",
	"kubelith.io/kubelith/components/node":                       "",
}

const ourComponents = "kubelith.io/kubelith/components/"

// origin returns what the stack shows about the current log line: its component, "" when there is none, and whether it
// was logged by klog.V(n).Infof, which klog itself does not say.
func origin() (component string, verbose bool) {
	var pcs [48]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		frame, more := frames.Next()
		if strings.HasPrefix(frame.Function, "k8s.io/klog/v2.Verbose.") {
			verbose = true
		}
		if component = componentOf(frame.Function); component != "" || !more {
			return component, verbose
		}
	}
}

// componentOf returns the component that a function belongs to, or "".
func componentOf(function string) string {
	longest, component := "", ""
	for prefix, name := range origins {
		if len(prefix) > len(longest) && strings.HasPrefix(function, prefix) {
			longest, component = prefix, name
		}
	}
	if rest, ok := strings.CutPrefix(function, ourComponents); ok && longest == "" {
		_, component, _ = strings.Cut(rest, "/") // its scope comes first
		component, _, _ = strings.Cut(component, ".")
		component, _, _ = strings.Cut(component, "/")
	}
	return component
}
