package apiserver

import (
	"maps"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// markLabel is on the objects that Kubelith creates. A later release removes those that it no longer has.
const markLabel = "kubelith.io/bootstrapping"

// mark marks an object as ours. Labels is not changed in place.
func mark(o metav1.Object) {
	labels := map[string]string{markLabel: "true"}
	maps.Copy(labels, o.GetLabels())
	o.SetLabels(labels)
}

// dropped reports whether an object that is not wanted comes from an earlier release. A user keeps the object by
// removing the label, or by setting upstream's annotation against updates.
func dropped(kind string, o metav1.Object) bool {
	if o.GetAnnotations()[rbacv1.AutoUpdateAnnotationKey] == "false" {
		return false
	}
	return o.GetLabels()[markLabel] == "true" || slices.Contains(unmarked(), kind+" "+key(o))
}

// unmarked returns the objects of releases that did not label theirs.
func unmarked() []string {
	return []string{
		"ClusterRole kubelith:agent",
		"ClusterRole kubelith:agent-storage",
		"ClusterRole system:kubelith:approver",
		"ClusterRole system:kubelith:dns",
		"ClusterRole system:kubelith:metrics",
		"ClusterRole system:kubelith:plugins",
		"ClusterRole system:kubelith:servicelb",
		"ClusterRole system:kubelith:storage",
		"ClusterRoleBinding kubelith:agent",
		"ClusterRoleBinding kubelith:agent-storage",
		"ClusterRoleBinding kubelith:apiserver-kubelet-client",
		"ClusterRoleBinding kubelith:node-bootstrapper",
		"ClusterRoleBinding kubelith:node-proxier",
		"ClusterRoleBinding kubelith:node-rotation",
		"ClusterRoleBinding system:kubelith:approver",
		"ClusterRoleBinding system:kubelith:dns",
		"ClusterRoleBinding system:kubelith:manifests",
		"ClusterRoleBinding system:kubelith:metrics",
		"ClusterRoleBinding system:kubelith:plugins",
		"ClusterRoleBinding system:kubelith:servicelb",
		"ClusterRoleBinding system:kubelith:storage",
		"FlowSchema kubelith-loopback",
		"Role kube-public/kubelith:cluster-info",
		"Role kube-public/system:kubelith:token",
		"Role kube-system/kubelith:cluster-config",
		"Role kube-system/system:kubelith:approver",
		"Role kube-system/system:kubelith:dns",
		"Role kube-system/system:kubelith:storage",
		"Role kube-system/system:kubelith:token",
		"RoleBinding kube-public/kubelith:cluster-info",
		"RoleBinding kube-public/system:kubelith:token",
		"RoleBinding kube-system/kubelith:cluster-config",
		"RoleBinding kube-system/system:kubelith:approver",
		"RoleBinding kube-system/system:kubelith:dns",
		"RoleBinding kube-system/system:kubelith:storage",
		"RoleBinding kube-system/system:kubelith:token",
	}
}
