package library

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/cluster"
	"kubelith.io/kubelith/integration/harness"
)

// TestParallel: clusters of one test binary do not see each other, and each keeps its data over a restart, with the
// same clients.
func TestParallel(t *testing.T) {
	t.Parallel()
	clusters, clients := make([]*cluster.Cluster, 2), make([]kubernetes.Interface, 2)
	var both sync.WaitGroup
	for i := range clusters {
		both.Go(func() { clusters[i], clients[i] = start(t, cluster.Options{}) })
	}
	both.Wait()
	if t.Failed() {
		return
	}
	put(t, clients[0], "which", "first")
	put(t, clients[1], "which", "second")
	if a, b := value(t, clients[0], "which"), value(t, clients[1], "which"); a != "first" || b != "second" {
		t.Errorf("the clusters have %q and %q", a, b)
	}
	goes(t, clients[1])
	if err := clusters[0].Stop(); err != nil {
		t.Error(err)
	}
	if _, err := clients[0].CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a server that was stopped answers")
	}
	if err := clusters[0].Restart(); err != nil {
		t.Fatal(err)
	}
	if a, b := value(t, clients[0], "which"), value(t, clients[1], "which"); a != "first" || b != "second" {
		t.Errorf("after a restart the clusters have %q and %q", a, b)
	}
}

// TestManifests: Start returns when the definitions, and the objects in the same file, are there. Other users have the
// rights that RBAC gives them.
func TestManifests(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "below", "things.yaml")
	if err := os.Mkdir(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(`apiVersion: example.com/v1
kind: Thing
metadata: {name: one, namespace: default}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Thing, plural: things, singular: thing}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
`), 0o644); err != nil {
		t.Fatal(err)
	}
	c, _ := start(t, cluster.Options{Manifests: []string{dir}})
	things := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "things"}
	get := func(cfg *rest.Config) error {
		client, err := dynamic.NewForConfig(cfg)
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.Resource(things).Namespace("default").Get(t.Context(), "one", metav1.GetOptions{})
		return err
	}
	if err := get(c.Config()); err != nil {
		t.Error(err)
	}
	other := c.Config()
	other.Impersonate = rest.ImpersonationConfig{UserName: "jane"}
	if err := get(other); !apierrors.IsForbidden(err) {
		t.Errorf("a user without rights: %v", err)
	}
	if c.Config().Impersonate.UserName != "" {
		t.Error("a change of the configuration changed the cluster's")
	}
}

// TestRefused: a start that fails reports the reason in one line, and leaves nothing.
func TestRefused(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	wrong := filepath.Join(t.TempDir(), "wrong.yaml")
	if err := os.WriteFile(wrong, []byte("apiVersion: v1\nkind: Nothing\nmetadata: {name: a}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for want, opts := range map[string]cluster.Options{
		"the server ended (exit status 1): kubelith: --apiserver-arg": {Args: []string{"--apiserver-arg=no-such-flag=1"}},
		"apply " + wrong + ": ": {Manifests: []string{wrong}},
	} {
		c, err := cluster.New(opts)
		if err == nil {
			c.Close()
			t.Errorf("no error of the form %q", want)
			continue
		}
		if first, _, _ := strings.Cut(err.Error(), "\n"); !strings.HasPrefix(first, want) {
			t.Errorf("%q, want %q", first, want)
		}
	}
}

// TestOrdinaryUser: a cluster without a node needs no root, in a test binary that is not root's.
func TestOrdinaryUser(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	dir, err := os.MkdirTemp("", "kubelith-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(copyOf(t, self, filepath.Join(dir, "test")))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), childEnv+"=1", "KUBELITH_TEST_LOGS=", "HOME="+dir, "KUBELITH_BIN="+copyOf(t, os.Getenv("KUBELITH_BIN"), filepath.Join(dir, "kubelith")))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	kubeconfig, stdin := startChild(t, cmd)
	if pids := using(t, kubeconfig); len(pids) != 2 { // the test binary and the server
		t.Errorf("the processes %v", pids)
	} else if uid := harness.ProcStatus(t, atoi(t, pids[1]), "Uid"); !strings.HasPrefix(uid, "65534\t") {
		t.Errorf("the server runs as %s", uid)
	}
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("its end: %v: %s", err, cmd.Stderr)
	}
	if pids := using(t, kubeconfig); len(pids) > 0 {
		t.Errorf("processes %v remain", pids)
	}
	if _, err := os.Stat(filepath.Dir(kubeconfig)); !os.IsNotExist(err) {
		t.Errorf("its directory remains: %v", err)
	}
}

// TestNode: images are imported before the test begins, a pod of one runs, over a restart of the server too, and the
// API reaches a webhook of the test.
func TestNode(t *testing.T) {
	t.Parallel()
	c, client := start(t, cluster.Options{Node: true}) // with the test image
	listener, err := net.Listen("tcp", net.JoinHostPort(c.HostIP(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	webhook := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Result: &metav1.Status{Message: "the test says no"}}
		json.NewEncoder(w).Encode(review)
	}))
	webhook.Listener.Close()
	webhook.Listener = listener
	webhook.TLS = certificateFor(t, c.HostIP())
	webhook.StartTLS()
	defer webhook.Close()
	pod := harness.Pod("default", "a", "/bin/probe", "sleep")
	pod.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
	if _, err := client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	refuseConfigMaps(t, client, webhook)
	harness.Eventually(t, 30*time.Second, "a refusal by the webhook", func() error {
		_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}}, metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "the test says no") {
			return fmt.Errorf("the answer is %v", err)
		}
		return nil
	})
	running := func() (container string) {
		t.Helper()
		harness.Eventually(t, 60*time.Second, "the pod to run", func() error {
			pod, err := client.CoreV1().Pods("default").Get(t.Context(), "a", metav1.GetOptions{})
			if err == nil && pod.Status.Phase != corev1.PodRunning {
				err = fmt.Errorf("it is %s", pod.Status.Phase)
			}
			if err == nil {
				container = pod.Status.ContainerStatuses[0].ContainerID
			}
			return err
		})
		return container
	}
	before := running()
	if err := c.Restart(); err != nil {
		t.Fatal(err)
	}
	if after := running(); after != before {
		t.Errorf("the restart replaced the container %s by %s", before, after)
	}
}

// TestKilled: nothing runs on for a test binary that was killed, and the next start removes what it has left. So it is
// with a node.
func TestKilled(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var killed []string
	for _, kind := range []string{"none", "node"} {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), childEnv+"="+kind)
		kubeconfig, _ := startChild(t, cmd)
		killed = append(killed, kubeconfig)
		if using(t, kubeconfig) == nil {
			t.Error("no process uses the directory")
		}
		cmd.Process.Kill()
		cmd.Wait()
	}
	for _, kubeconfig := range killed {
		harness.Eventually(t, 60*time.Second, "the server to end", func() error {
			if pids := using(t, kubeconfig); len(pids) > 0 {
				return fmt.Errorf("processes %v", pids)
			}
			return unlocked(kubeconfig)
		})
	}
	start(t, cluster.Options{})
	for _, kubeconfig := range killed {
		if _, err := os.Stat(filepath.Dir(kubeconfig)); !os.IsNotExist(err) {
			t.Errorf("%s remains: %v", filepath.Dir(kubeconfig), err)
		}
	}
}
