package api

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"kubelith.io/kubelith/integration/harness"
)

// TestIdentities: audit saw every component under its own name, and only the administrator's certificate is a
// member of system:masters.
func TestIdentities(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	// Give controllers, scheduler, kubelet, proxy and DNS something to do.
	s.Kubectl(t, "-n", ns, "create", "deployment", "work", "--image=docker.io/kubelith/hello:1")
	s.Kubectl(t, "-n", ns, "expose", "deployment", "work", "--port=80")
	node, err := s.Client(t).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wanted := []string{
		"system:apiserver", "system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy", "system:kubelith:dns", "system:kubelith:token",
		"system:node:" + node.Items[0].Name, "kubelith-admin",
	}
	for _, c := range []string{"deployment-controller", "replicaset-controller", "endpointslice-controller", "namespace-controller", "service-account-controller", "root-ca-cert-publisher"} {
		wanted = append(wanted, "system:serviceaccount:kube-system:"+c)
	}
	seen := map[string]bool{}
	harness.Eventually(t, 30*time.Second, "all identities in the audit log", func() error {
		for _, e := range auditEvents(t, s) {
			seen[e.User.Username] = true
		}
		for _, w := range wanted {
			if !seen[w] {
				return fmt.Errorf("%s was not seen", w)
			}
		}
		return nil
	})
	masters := map[string]bool{}
	inMemory := map[string]bool{}
	for _, e := range auditEvents(t, s) {
		if slices.Contains(e.User.Groups, "system:masters") {
			masters[e.User.Username] = true
		}
		if strings.HasPrefix(e.UserAgent, "kubelith/") {
			inMemory[e.User.Username] = true
		}
	}
	if len(masters) > 0 { // the administrator is in kubelith:admins, which RBAC can take rights from
		t.Errorf("members of system:masters: %v", masters)
	}
	if inMemory["kubelith-admin"] {
		t.Error("a component acts as the administrator")
	}
	names := []string{}
	for name := range seen {
		names = append(names, name)
	}
	slices.Sort(names)
	t.Logf("identities seen: %s", strings.Join(names, " "))
}

// TestNoLoopback: no socket of the process is connected to its own port 6443. The test's own connection shows
// that such a socket would be found.
func TestNoLoopback(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	conn, err := net.Dial("tcp", s.NodeIP+":6443")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, ours, _ := net.SplitHostPort(conn.LocalAddr().String())

	found := false
	harness.Consistently(t, 3*time.Second, "connections to 6443", func() error {
		inodes := map[string]bool{}
		fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", s.PID()))
		if err != nil || len(fds) < 20 {
			return fmt.Errorf("the process has %d files, %v", len(fds), err)
		}
		for _, fd := range fds {
			if link, err := os.Readlink(fd); err == nil && strings.HasPrefix(link, "socket:[") {
				inodes[strings.Trim(link, "socket:[]")] = true
			}
		}
		for _, file := range []string{"tcp", "tcp6"} {
			table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", s.PID(), file))
			if err != nil {
				return err
			}
			for _, line := range strings.Split(string(table), "\n")[1:] {
				f := strings.Fields(line)
				if len(f) < 10 || f[3] == "0A" || !inodes[f[9]] {
					continue
				}
				_, local, _ := strings.Cut(f[1], ":")
				_, remote, _ := strings.Cut(f[2], ":")
				if local == "192B" && fmt.Sprint(hex(remote)) == ours { // 6443
					found = true
				}
				if remote == "192B" {
					return fmt.Errorf("a socket of the process is connected to port 6443: %s", line)
				}
			}
		}
		return nil
	})
	if !found {
		t.Error("the test's own connection was not found: the test checks the wrong place")
	}
}

// TestNoLoopbackAtStart: nor does the process open such a connection while it starts, when its clients are created. A
// rule of the packet filter counts them, however short they are.
func TestNoLoopbackAtStart(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{NoTestImage: true})
	s.Exec(t, "nft", "add table inet loopback; add chain inet loopback out { type filter hook output priority 100; }; "+
		"add rule inet loopback out tcp dport 6443 tcp flags & (syn|ack) == syn counter")
	s.Launch(t)
	s.WaitReady(t)
	connections := func() int {
		_, counter, found := strings.Cut(s.Exec(t, "nft", "list", "chain", "inet", "loopback", "out"), "counter packets ")
		n := -1
		if _, err := fmt.Sscan(counter, &n); !found || err != nil {
			t.Fatalf("the rule has no counter: %v", err)
		}
		return n
	}
	if n := connections(); n != 0 {
		t.Errorf("%d connections from the server's host to its own port 6443", n)
	}
	conn, err := s.DialContext(t.Context(), "tcp", s.NodeIP+":6443")
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if n := connections(); n == 0 {
		t.Error("the test's own connection was not counted: the test checks the wrong place")
	}
}

// TestSharedInformers: the controllers and the scheduler watch nothing themselves that the apiserver's informers have.
func TestSharedInformers(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	s.Kubectl(t, "-n", ns, "create", "deployment", "d", "--image=none") // bound once all have their informers
	bound := false
	watchers := func() map[string]map[string]bool { // resources by user
		all := map[string]map[string]bool{}
		for _, e := range auditEvents(t, s) {
			if o := e.ObjectRef; o != nil && o.Namespace == ns && o.Subresource == "binding" && e.User.Username == "system:kube-scheduler" {
				bound = true
			}
			if e.Verb != "watch" || e.ObjectRef == nil || !scheme.Scheme.IsGroupRegistered(e.ObjectRef.APIGroup) || e.ObjectRef.Resource == "initializerconfigurations" {
				continue // the metadata of custom resources and the like is watched where it is needed
			}
			if all[e.User.Username] == nil {
				all[e.User.Username] = map[string]bool{}
			}
			all[e.User.Username][e.ObjectRef.Resource] = true
		}
		return all
	}
	harness.Eventually(t, 30*time.Second, "the watches of the shared informers, and a pod", func() error {
		all := watchers()
		for _, resource := range []string{"pods", "nodes", "deployments", "endpointslices", "persistentvolumeclaims"} {
			if !all["system:apiserver"][resource] {
				return fmt.Errorf("no shared informer watches %s", resource)
			}
		}
		if !bound {
			return fmt.Errorf("the pod of a Deployment is not bound")
		}
		return nil
	})
	for user, resources := range watchers() {
		if user == "system:serviceaccount:kube-system:kube-apiserver-serving-clustertrustbundle-publisher" {
			delete(resources, "clustertrustbundles") // upstream's controller creates an informer of one object
		}
		component := user == "system:kube-scheduler" || user == "system:kube-controller-manager" || strings.HasPrefix(user, "system:serviceaccount:kube-system:")
		if component && len(resources) > 0 {
			t.Errorf("%s has its own watches: %v", user, slices.Sorted(maps.Keys(resources)))
		}
	}
}

func hex(s string) (n int) {
	fmt.Sscanf(s, "%x", &n)
	return n
}

// TestSchedulerIsNotRoot: RBAC limits the components as in any cluster.
func TestSchedulerIsNotRoot(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	s.Kubectl(t, "-n", ns, "create", "secret", "generic", "password", "--from-literal=a=b")
	if got := allowed(t, s, "system:kube-scheduler", nil, ns, "get", "secrets", "password"); got {
		t.Error("the scheduler may read Secrets")
	}
	if got := allowed(t, s, "system:kube-scheduler", nil, ns, "list", "pods", ""); !got {
		t.Error("the scheduler may not list pods: the question is asked wrongly")
	}
	scheduler := as(t, s, "system:kube-scheduler")
	if _, err := scheduler.CoreV1().Secrets(ns).Get(t.Context(), "password", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the scheduler reads a Secret: %v", err)
	}
	if _, err := scheduler.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("the scheduler lists pods: %v", err)
	}
	for _, user := range []string{"system:kube-proxy", "system:kubelith:dns", "system:kube-controller-manager"} {
		if _, err := as(t, s, user).CoreV1().Pods(ns).Create(t.Context(), sleeper(ns, "x"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("%s makes a pod: %v", user, err)
		}
	}
}

// allowed asks for an access review.
func allowed(t *testing.T, s *harness.Server, user string, groups []string, ns, verb, resource, name string) bool {
	t.Helper()
	review, err := s.Client(t).AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: user, Groups: groups, ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: ns, Verb: verb, Resource: resource, Name: name,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return review.Status.Allowed
}

// TestNodeAuthorizer: a node reads what its own pods use and nothing of another node's.
func TestNodeAuthorizer(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	s.Kubectl(t, "-n", ns, "create", "secret", "generic", "used", "--from-literal=a=b")
	s.Kubectl(t, "-n", ns, "create", "secret", "generic", "unused", "--from-literal=a=b")
	pod := sleeper(ns, "user")
	pod.Spec.Volumes = []corev1.Volume{{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "used"}}}}
	pod = s.Run(t, pod)

	groups := []string{"system:nodes", "system:authenticated"}
	own := as(t, s, "system:node:"+pod.Spec.NodeName, groups...)
	other := as(t, s, "system:node:other", groups...)
	ctx := t.Context()
	if _, err := own.CoreV1().Secrets(ns).Get(ctx, "used", metav1.GetOptions{}); err != nil {
		t.Errorf("the pod's node reads the pod's Secret: %v", err)
	}
	if _, err := own.CoreV1().Secrets(ns).Get(ctx, "unused", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the pod's node reads another Secret: %v", err)
	}
	if _, err := other.CoreV1().Secrets(ns).Get(ctx, "used", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another node reads the pod's Secret: %v", err)
	}
	if _, err := other.CoreV1().Pods(ns).Get(ctx, pod.Name, metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another node reads the pod: %v", err)
	}
	if _, err := own.CoreV1().Pods(ns).Get(ctx, pod.Name, metav1.GetOptions{}); err != nil {
		t.Errorf("the pod's node reads the pod: %v", err)
	}
	onNode := metav1.ListOptions{FieldSelector: "spec.nodeName=" + pod.Spec.NodeName}
	if list, err := own.CoreV1().Pods(ns).List(ctx, onNode); err != nil || len(list.Items) != 1 {
		t.Errorf("the pod's node lists its pods: %v", err)
	}
	if _, err := other.CoreV1().Pods(ns).List(ctx, onNode); !apierrors.IsForbidden(err) {
		t.Errorf("another node lists the node's pods: %v", err)
	}
	if w, err := other.CoreV1().Pods(ns).Watch(ctx, onNode); !apierrors.IsForbidden(err) {
		t.Errorf("another node watches the node's pods: %v", err)
		if err == nil {
			w.Stop()
		}
	}
	if err := other.CoreV1().Pods(ns).Delete(ctx, pod.Name, metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another node deletes the pod: %v", err)
	}
	status := pod.DeepCopy()
	status.Status.Message = "changed"
	if _, err := other.CoreV1().Pods(ns).UpdateStatus(ctx, status, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another node writes the pod's status: %v", err)
	}
	if _, err := other.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{}); err != nil {
		t.Errorf("the other node can do nothing at all: %v", err)
	}
	node, err := s.Client(t).CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Labels["changed"] = "yes"
	if _, err := other.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another node changes the Node: %v", err)
	}
	for name, want := range map[string]bool{"system:node:" + pod.Spec.NodeName: true, "system:node:other": false} {
		if got := allowed(t, s, name, groups, ns, "get", "secrets", "used"); got != want {
			t.Errorf("access review: %s may read the Secret: %t", name, got)
		}
	}
}

// TestAnonymous: without credentials there is health and nothing else.
func TestAnonymous(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		if code, body := anonymous(t, s, path); code != 200 || body != "ok" {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	for _, path := range []string{"/", "/api", "/apis", "/api/v1/namespaces", "/api/v1/nodes", "/version", "/metrics", "/openapi/v2", "/debug/pprof/", "/logs", "/.well-known/openid-configuration"} {
		if code, body := anonymous(t, s, path); code != 401 {
			t.Errorf("%s: %d %.200s", path, code, body)
		}
	}
	if _, err := withToken(t, s, "guessed").CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("an invalid token: %v", err)
	}
}

// TestFrontProxy: the headers that name a user count only from the front proxy, which has its own CA.
func TestFrontProxy(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	claim := func(cfg *rest.Config) (string, error) {
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return transport.NewAuthProxyRoundTripper("claimed", "", []string{"claimed-group"}, nil, next)
		})
		review, err := clientFor(t, cfg).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			return "", err
		}
		return review.Status.UserInfo.Username, nil
	}
	if who, err := claim(rest.AnonymousClientConfig(s.RESTConfig(t))); !apierrors.IsUnauthorized(err) {
		t.Errorf("without a certificate: %s, %v", who, err)
	}
	if who, err := claim(s.RESTConfig(t)); err != nil || who != "kubelith-admin" {
		t.Errorf("with the administrator's certificate: %s, %v", who, err)
	}
	proxy := rest.AnonymousClientConfig(s.RESTConfig(t))
	proxy.CertFile, proxy.KeyFile = s.Path(harness.DataDir+"/server/tls/front-proxy-client.crt"), s.Path(harness.DataDir+"/server/tls/front-proxy-client.key")
	if who, err := claim(proxy); err != nil || who != "claimed" {
		t.Errorf("with the front proxy's certificate: %s, %v", who, err)
	}
}

// TestProfilingOff: the administrator may ask for anything, and there is no profiling to be found.
func TestProfilingOff(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap"} {
		_, err := s.Client(t).Discovery().RESTClient().Get().AbsPath(path).DoRaw(t.Context())
		if !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestTokenFile: a token authenticates as the user in the token file, who has no rights until RBAC or ABAC grants some.
func TestTokenFile(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	ctx := t.Context()
	client := withToken(t, s, "token-of-file")
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if u := review.Status.UserInfo; u.Username != "file-user" || u.UID != "1001" || !slices.Contains(u.Groups, "file-group") {
		t.Errorf("the token is that of %+v", u)
	}
	if _, err := client.CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("without rights: %v", err)
	}
	s.Kubectl(t, "-n", ns, "create", "rolebinding", "view", "--clusterrole=view", "--group=file-group")
	harness.Eventually(t, 10*time.Second, "the right to read", func() error {
		_, err := client.CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{})
		return err
	})
	abac := withToken(t, s, "token-of-abac")
	if _, err := abac.CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("a right of the ABAC policy: %v", err)
	}
	if err := abac.CoreV1().ConfigMaps(ns).Delete(ctx, "kube-root-ca.crt", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the ABAC policy is for reading: %v", err)
	}
}

// TestTokenReview: others ask the API server whose token it is, as webhooks and aggregated API servers do.
func TestTokenReview(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	client, ns := s.Client(t), s.Namespace(t)
	token, err := client.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{token.Status.Token: "system:serviceaccount:" + ns + ":default", "abcdef.0123456789abcdef": "", "x": ""} {
		review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: text}}
		review, err := client.AuthenticationV1().TokenReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err != nil || review.Status.User.Username != want || review.Status.Authenticated != (want != "") {
			t.Errorf("token of %q: %+v, %v", want, review, err)
		}
	}
}
