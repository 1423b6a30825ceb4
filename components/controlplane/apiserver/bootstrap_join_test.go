package apiserver

import (
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/names"
)

// allowed queries the API server's authorizers as the client's user.
func allowed(t *testing.T, cs kubernetes.Interface, verb, group, resource, namespace, name string) bool {
	t.Helper()
	resource, subresource, _ := strings.Cut(resource, "/")
	review, err := cs.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Group: group, Resource: resource, Subresource: subresource, Namespace: namespace, Name: name,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return review.Status.Allowed
}

// TestRightsToJoin: the rights of a machine that joins, of its node and of the components that admit it.
func TestRightsToJoin(t *testing.T) {
	c := serve(t)
	machine := clientFor(t, c.Config("system:bootstrap:abc123", "system:bootstrappers", names.JoiningAgents))
	foreign := clientFor(t, c.Config("system:bootstrap:abc123", "system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token"))
	node, token, approver := clientFor(t, c.NodeConfig("joined")), clientFor(t, c.Config(client.Token)), clientFor(t, c.Config(client.Approver))
	if who, err := machine.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{}); err != nil || who.Status.UserInfo.Username != "system:bootstrap:abc123" {
		t.Fatalf("%v, %v", who, err)
	}
	const csrs, certificates = "certificatesigningrequests", "certificates.k8s.io"
	for _, tc := range []struct {
		who                                    string
		client                                 kubernetes.Interface
		verb, group, resource, namespace, name string
		want                                   bool
	}{
		{"a machine", machine, "create", certificates, csrs, "", "", true},
		{"a machine", machine, "watch", certificates, csrs, "", "", true},
		{"a machine", machine, "get", "", "configmaps", "kube-system", "kubelith-cluster", true},
		{"a machine", machine, "get", "", "configmaps", "kube-system", "kubelith-node.a", false},
		{"a machine", machine, "create", certificates, csrs + "/nodeclient", "", "", false},
		{"a machine", machine, "create", certificates, csrs + "/selfnodeclient", "", "", false},
		{"a machine", machine, "list", "", "nodes", "", "", false},
		{"a machine", machine, "get", "", "secrets", "kube-system", "bootstrap-token-abc123", false},
		{"with a token of others", foreign, "create", certificates, csrs, "", "", false},
		{"with a token of others", foreign, "get", "", "configmaps", "kube-system", "kubelith-cluster", false},
		{"a node", node, "create", certificates, csrs, "", "", true},
		{"a node", node, "create", certificates, csrs + "/selfnodeclient", "", "", false}, // upstream would renew it for ever
		{"a node", node, "create", certificates, csrs + "/nodeclient", "", "", false},
		{"a node", node, "list", "", "nodes", "", "", true},
		{"a node", node, "watch", "discovery.k8s.io", "endpointslices", "", "", true},
		{"a node", node, "list", "", "services", "", "", true},
		{"a node", node, "list", "", "namespaces", "", "", true},
		{"a node", node, "list", "networking.k8s.io", "servicecidrs", "", "", true},
		{"a node", node, "watch", "policy.networking.k8s.io", "clusternetworkpolicies", "", "", true},
		{"a node", node, "update", "policy.networking.k8s.io", "clusternetworkpolicies", "", "x", false},
		{"a node", node, "watch", "apiextensions.k8s.io", "customresourcedefinitions", "", "clusternetworkpolicies.policy.networking.k8s.io", true},
		{"a node", node, "watch", "apiextensions.k8s.io", "customresourcedefinitions", "", "x", false},
		{"a node", node, "list", "apiextensions.k8s.io", "customresourcedefinitions", "", "", false},
		{"a node", node, "watch", "", "configmaps", "kube-system", "kubelith-cluster", true},
		{"a node", node, "patch", "discovery.k8s.io", "endpointslices", "kube-system", "x", false},
		{"a node", node, "update", "", "services", "kube-system", "kube-dns", false},
		{"a node", node, "list", "", "secrets", "", "", false},
		{"a node", node, "list", "", "configmaps", "kube-system", "", false},
		{"a node", node, "update", certificates, csrs + "/approval", "", "x", false},
		{"token", token, "create", "", "secrets", "kube-system", "", true},
		{"token", token, "list", "", "secrets", "kube-system", "", false},
		{"token", token, "create", "", "secrets", "default", "", false},
		{"token", token, "patch", "", "configmaps", "kube-public", "cluster-info", true},
		{"token", token, "patch", "", "configmaps", "kube-system", "extension-apiserver-authentication", false},
		{"approver", approver, "approve", certificates, "signers", "", "kubernetes.io/kubelet-serving", true},
		{"approver", approver, "approve", certificates, "signers", "", "kubernetes.io/kube-apiserver-client-kubelet", true},
		{"approver", approver, "approve", certificates, "signers", "", "kubernetes.io/kube-apiserver-client", false},
		{"approver", approver, "sign", certificates, "signers", "", "kubernetes.io/kubelet-serving", false},
		{"approver", approver, "get", "", "secrets", "kube-system", "bootstrap-token-abc123", false},
		{"approver", approver, "delete", "", "secrets", "kube-system", "kubelith-removed-x", true},
		{"approver", approver, "patch", "", "nodes", "", "x", true},
		{"approver", approver, "patch", "", "nodes/status", "", "x", true},
		{"approver", approver, "create", "", "events", "default", "", true},
		{"approver", approver, "delete", "", "nodes", "", "", false},
	} {
		if got := allowed(t, tc.client, tc.verb, tc.group, tc.resource, tc.namespace, tc.name); got != tc.want {
			t.Errorf("%s may %s %s %s/%s: %v, want %v", tc.who, tc.verb, tc.resource, tc.namespace, tc.name, got, tc.want)
		}
	}
}
