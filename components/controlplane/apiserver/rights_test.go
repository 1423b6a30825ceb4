package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/client"
)

// admin is a client with all rights, as the loopback identity has them.
func admin(t *testing.T) kubernetes.Interface { return clientFor(t, serve(t).Config(client.APIServer)) }

// namespace is a new one, which the tests of the package do not share.
func namespace(t *testing.T, name string) string {
	t.Helper()
	if _, err := admin(t).CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return name
}

func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	err := f()
	for deadline := time.Now().Add(time.Minute); err != nil && time.Now().Before(deadline); err = f() {
		time.Sleep(20 * time.Millisecond)
	}
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// TestInMemoryIdentities: the apiserver knows each caller of the in-process client by its own name and groups.
func TestInMemoryIdentities(t *testing.T) {
	c := serve(t)
	for _, identity := range []struct {
		config *rest.Config
		name   string
		groups []string
	}{
		{c.Config(client.APIServer), "system:apiserver", nil},
		{c.Config(client.Scheduler), "system:kube-scheduler", nil},
		{c.Config(client.ControllerManager), "system:kube-controller-manager", nil},
		{c.Config(client.Proxy), "system:kube-proxy", nil},
		{c.Config(client.DNS), "system:kubelith:dns", nil},
		{c.Config(client.Manifests), "system:kubelith:manifests", nil},
		{c.NodeConfig("a"), "system:node:a", []string{user.NodesGroup}},
		{c.ServiceAccountConfig("kube-system", "job-controller"), "system:serviceaccount:kube-system:job-controller", []string{"system:serviceaccounts", "system:serviceaccounts:kube-system"}},
	} {
		review, err := clientFor(t, identity.config).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			t.Errorf("%s: %v", identity.name, err)
			continue
		}
		got := review.Status.UserInfo
		if want := append(identity.groups, user.AllAuthenticated); got.Username != identity.name || !slices.Equal(got.Groups, want) {
			t.Errorf("got %s %v, want %s %v", got.Username, got.Groups, identity.name, want)
		}
	}
}

// TestSchedulerInMemory: RBAC denies the scheduler what its role does not have, though its requests are in memory.
func TestSchedulerInMemory(t *testing.T) {
	ns := namespace(t, "scheduler-in-memory")
	ctx, scheduler := t.Context(), clientFor(t, serve(t).Config(client.Scheduler))
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "password"}, StringData: map[string]string{"a": "b"}}
	if _, err := admin(t).CoreV1().Secrets(ns).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := scheduler.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("the scheduler may not list pods: %v", err)
	}
	for what, f := range map[string]func() error{
		"gets a Secret": func() error {
			_, err := scheduler.CoreV1().Secrets(ns).Get(ctx, "password", metav1.GetOptions{})
			return err
		},
		"lists Secrets":    func() error { _, err := scheduler.CoreV1().Secrets(ns).List(ctx, metav1.ListOptions{}); return err },
		"watches Secrets":  func() error { _, err := scheduler.CoreV1().Secrets(ns).Watch(ctx, metav1.ListOptions{}); return err },
		"deletes a Secret": func() error { return scheduler.CoreV1().Secrets(ns).Delete(ctx, "password", metav1.DeleteOptions{}) },
		"changes a Role":   func() error { return scheduler.RbacV1().ClusterRoles().Delete(ctx, "view", metav1.DeleteOptions{}) },
		"creates a pod": func() error {
			_, err := scheduler.CoreV1().Pods(ns).Create(ctx, pod("x", "a"), metav1.CreateOptions{})
			return err
		},
		"becomes root": func() error {
			_, err := scheduler.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "root"},
				RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
				Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: client.Scheduler}}}, metav1.CreateOptions{})
			return err
		},
		"impersonates another user": func() error {
			cfg := serve(t).Config(client.Scheduler)
			cfg.Impersonate = rest.ImpersonationConfig{UserName: "kubelith-admin", Groups: []string{user.SystemPrivilegedGroup}}
			_, err := clientFor(t, cfg).CoreV1().Secrets(ns).Get(ctx, "password", metav1.GetOptions{})
			return err
		},
	} {
		if err := f(); !apierrors.IsForbidden(err) {
			t.Errorf("the scheduler %s: %v", what, err)
		}
	}
}

func pod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "kubelith/hello:1"}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "of-" + name}}}},
		},
	}
}

// TestNodesInMemory: a node with requests in memory gets its own pods and what they use, and nothing of another node's.
func TestNodesInMemory(t *testing.T) {
	ns := namespace(t, "nodes-in-memory")
	ctx := t.Context()
	pods := map[string]*corev1.Pod{}
	for _, node := range []string{"a", "b"} {
		if _, err := clientFor(t, serve(t).NodeConfig(node)).CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{}); err != nil {
			t.Fatalf("node %s registers: %v", node, err)
		}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "of-on-" + node}}
		if _, err := admin(t).CoreV1().Secrets(ns).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		made, err := admin(t).CoreV1().Pods(ns).Create(ctx, pod("on-"+node, node), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pods[node] = made
	}
	for node, other := range map[string]string{"a": "b", "b": "a"} {
		t.Run("node "+node, func(t *testing.T) {
			cs := clientFor(t, serve(t).NodeConfig(node))
			on := func(node string) metav1.ListOptions {
				return metav1.ListOptions{FieldSelector: "spec.nodeName=" + node}
			}
			requests := func(of string) map[string]func() error {
				return map[string]func() error{
					"gets the pod":                  func() error { _, err := cs.CoreV1().Pods(ns).Get(ctx, "on-"+of, metav1.GetOptions{}); return err },
					"lists the pods":                func() error { _, err := cs.CoreV1().Pods(metav1.NamespaceAll).List(ctx, on(of)); return err },
					"watches the pods":              func() error { return watched(ctx, cs, metav1.NamespaceAll, on(of)) },
					"lists the pods of a namespace": func() error { _, err := cs.CoreV1().Pods(ns).List(ctx, on(of)); return err },
					"reads the pod's Secret":        func() error { _, err := cs.CoreV1().Secrets(ns).Get(ctx, "of-on-"+of, metav1.GetOptions{}); return err },
					"writes the pod's status": func() error {
						changed := pods[of].DeepCopy()
						changed.Status.Message, changed.ResourceVersion = "changed", ""
						_, err := cs.CoreV1().Pods(ns).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
						return err
					},
				}
			}
			for what, f := range requests(node) {
				// The authorizer's graph follows the pods with informers.
				eventually(t, "the pod's own node "+what, f)
			}
			for what, f := range requests(other) {
				if err := f(); !apierrors.IsForbidden(err) {
					t.Errorf("another node %s: %v", what, err)
				}
			}
			if _, err := cs.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
				t.Errorf("the node lists the pods of all nodes: %v", err)
			}
			if err := watched(ctx, cs, metav1.NamespaceAll, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
				t.Errorf("the node watches the pods of all nodes: %v", err)
			}
			if err := cs.CoreV1().Pods(ns).Delete(ctx, "on-"+other, metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
				t.Errorf("the node deletes another node's pod: %v", err)
			}
		})
	}
}

// TestProtobuf: clients of the process send and get protobuf, where the API has it.
func TestProtobuf(t *testing.T) {
	const protobuf = "application/vnd.kubernetes.protobuf"
	ns := namespace(t, "protobuf")
	c := serve(t)
	for name, cfg := range map[string]*rest.Config{
		"component": c.Config(client.APIServer), "node": c.NodeConfig("protobuf"), "service account": c.ServiceAccountConfig("kube-system", "root-ca-cert-publisher"),
	} {
		var seen recorder
		cfg.Wrap(seen.wrap)
		cs := clientFor(t, cfg)
		var err error
		if name == "node" {
			_, err = cs.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "protobuf"}}, metav1.CreateOptions{})
		} else {
			_, err = cs.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"}}, metav1.CreateOptions{})
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if want := []string{protobuf + " -> " + protobuf}; !slices.Equal(seen.types, want) {
			t.Errorf("%s: bodies are %v, want %v", name, seen.types, want)
		}
	}
}

// recorder notes the content types of requests and responses.
type recorder struct {
	mu    sync.Mutex
	types []string
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func (r *recorder) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(req)
		if err == nil {
			r.mu.Lock()
			r.types = append(r.types, fmt.Sprintf("%s -> %s", req.Header.Get("Content-Type"), resp.Header.Get("Content-Type")))
			r.mu.Unlock()
		}
		return resp, err
	})
}

// watched opens a watch and ends it.
func watched(ctx context.Context, cs kubernetes.Interface, ns string, opts metav1.ListOptions) error {
	w, err := cs.CoreV1().Pods(ns).Watch(ctx, opts)
	if err == nil {
		w.Stop()
	}
	return err
}
