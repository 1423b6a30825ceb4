package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"kubelith.io/kubelith/integration/harness"
)

// etcd is a client on the unix socket of the embedded etcd.
func etcd(t *testing.T, s *harness.Server) *clientv3.Client {
	t.Helper()
	socket := s.Path(harness.RunDir + "/etcd/etcd.sock")
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"http://etcd"}, DialTimeout: 5 * time.Second,
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// TestSecretsAreEncrypted reads what etcd stores.
func TestSecretsAreEncrypted(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	const plain = "correct-horse-battery-staple"
	s.Kubectl(t, "-n", ns, "create", "secret", "generic", "password", "--from-literal=a="+plain)
	s.Kubectl(t, "-n", ns, "create", "configmap", "open", "--from-literal=a="+plain)
	stored := func(key string) string {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		resp, err := etcd(t, s).Get(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.Kvs) != 1 {
			t.Fatalf("etcd has %d values of %s", len(resp.Kvs), key)
		}
		return string(resp.Kvs[0].Value)
	}
	if v := stored("/registry/configmaps/" + ns + "/open"); !strings.Contains(v, plain) {
		t.Fatalf("a ConfigMap is stored as %q: the test checks the wrong value", v)
	}
	v := stored("/registry/secrets/" + ns + "/password")
	if !strings.HasPrefix(v, "k8s:enc:secretbox:v1:") || strings.Contains(v, plain) || strings.Contains(v, "Y29ycmVjd") {
		t.Errorf("the Secret is stored as %.100q", v)
	}
	if info, err := os.Stat(s.Path(harness.RunDir + "/etcd/etcd.sock")); err != nil || info.Mode().Perm()&0o077 != 0 {
		if dir, derr := os.Stat(s.Path(harness.RunDir + "/etcd")); derr != nil || dir.Mode().Perm()&0o077 != 0 {
			t.Errorf("others can reach etcd: %v %v, %v %v", info.Mode(), err, dir.Mode(), derr)
		}
	}
	for _, file := range []string{"/server/cred/encryption.yaml", "/server/tls/cluster-ca.key", "/server/tls/admin.key"} {
		if info, err := os.Stat(s.Path(harness.DataDir + file)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", file, info.Mode(), err)
		}
	}
}

// TestWatch: events in order, bookmarks when asked for, an error for a version of the future.
func TestWatch(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	client := s.Client(t).CoreV1().ConfigMaps(ns)
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience(100*time.Second))
	defer cancel()
	// A bookmark comes about once a minute, and shortly before the time of a watch is over.
	yes, seconds := true, int64(30)
	w, err := client.Watch(ctx, metav1.ListOptions{TimeoutSeconds: &seconds, AllowWatchBookmarks: true, SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	next := func() watch.Event {
		t.Helper()
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				t.Fatal("the watch has ended")
			}
			return e
		case <-ctx.Done():
			t.Fatal("no event")
		}
		return watch.Event{}
	}
	for { // a bookmark marks the end of the initial state
		e := next()
		if e.Type == watch.Bookmark {
			if e.Object.(*corev1.ConfigMap).Annotations[metav1.InitialEventsAnnotationKey] != "true" {
				t.Errorf("the first bookmark: %v", e.Object)
			}
			break
		}
	}
	a := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	if a, err = client.Create(ctx, a, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	a.Labels = map[string]string{"b": "c"}
	if _, err = client.Update(ctx, a, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err = client.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for len(got) < 3 {
		if e := next(); e.Type != watch.Bookmark {
			got = append(got, fmt.Sprintf("%s %s", e.Type, e.Object.(*corev1.ConfigMap).Name))
		}
	}
	if fmt.Sprint(got) != "[ADDED a MODIFIED a DELETED a]" {
		t.Errorf("events: %v", got)
	}
	if e := next(); e.Type != watch.Bookmark || e.Object.(*corev1.ConfigMap).ResourceVersion == "" {
		t.Errorf("after the events: %v", e)
	}
	w.Stop()
	_, err = s.Client(t).CoreV1().RESTClient().Get().MaxRetries(0).Namespace(ns).Resource("configmaps").Param("resourceVersion", "999999999").DoRaw(t.Context())
	if !apierrors.IsTimeout(err) {
		t.Errorf("a version of the future: %v", err)
	}
}

// TestOldVersion: a client that requests a version that etcd has compacted gets 410, list again, and nothing else.
// The apiserver's watch caches of built-in resources know all versions of a cluster this young; that of a resource
// which is defined now does not.
func TestOldVersion(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience(60*time.Second))
	defer cancel()
	apply(t, s, "default", `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: olds.old.test.kubelith.io}
spec:
  group: old.test.kubelith.io
  names: {kind: Old, plural: olds}
  scope: Cluster
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
`)
	t.Cleanup(func() { s.TryKubectl(t, "delete", "crd", "olds.old.test.kubelith.io", "--timeout=30s") })
	client := s.Dynamic(t).Resource(schema.GroupVersionResource{Group: "old.test.kubelith.io", Version: "v1", Resource: "olds"})
	harness.Eventually(t, 30*time.Second, "the new resource", func() error {
		_, err := client.List(ctx, metav1.ListOptions{})
		return err
	})
	// The first revision alone: lists that other tests are reading stay.
	if _, err := etcd(t, s).Compact(ctx, 2); err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		t.Fatal(err)
	}
	list, err := client.List(ctx, metav1.ListOptions{ResourceVersion: "1", ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("list at an old version: %v, %v", list, err)
	}
	w, err := client.Watch(ctx, metav1.ListOptions{ResourceVersion: "1"})
	if err == nil { // the answer may come as the watch's first event
		defer w.Stop()
		select {
		case e := <-w.ResultChan():
			err = apierrors.FromObject(e.Object)
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("watch from an old version: %v", err)
	}
}
