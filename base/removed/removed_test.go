package removed

import (
	"context"
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var now = time.Now().Truncate(time.Second)

func recorded(name, node string, at time.Time) *corev1.Secret {
	r := record(node)
	r.Name, r.GenerateName, r.CreationTimestamp = name, "", metav1.NewTime(at)
	return r
}

// TestSet: a certificate issued before a removal is refused, for that node, for as long as there is a record of it.
func TestSet(t *testing.T) {
	var noticed []string
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Secret{}, 0, nil)
	s, err := Follow(informer, func(node string) { noticed = append(noticed, node) })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	if cache.IsDone(s.Synced()) {
		t.Error("an informer that does not run has synced")
	}
	first, second := recorded("1", "a", now.Add(-time.Hour)), recorded("2", "a", now)
	for _, r := range []*corev1.Secret{first, second} {
		s.add(r)
	}
	for _, tc := range []struct {
		node   string
		issued time.Duration
		want   bool
	}{
		{"a", -2 * time.Hour, true},
		{"a", -time.Second, true},
		{"a", 0, true},
		{"a", Settle - time.Second, true}, // approved before, signed after
		{"a", Settle, false},
		{"a", time.Hour, false},
		{"b", -time.Hour, false},
		{"", -time.Hour, false},
	} {
		if got := s.Refuses(tc.node, now.Add(tc.issued)); got != tc.want {
			t.Errorf("%q, issued %s after: refused %v, want %v", tc.node, tc.issued, got, tc.want)
		}
	}
	if got := s.OlderThan(now.Add(-time.Minute)); !slices.Equal(got, []string{"1"}) {
		t.Errorf("old records: %v", got)
	}
	s.remove(second)
	if s.Refuses("a", now.Add(-time.Minute)) || !s.Refuses("a", now.Add(-2*time.Hour)) {
		t.Error("the later record was deleted, not the earlier one")
	}
	s.remove(first)
	if s.Refuses("a", now.Add(-2*time.Hour)) || len(s.records) > 0 {
		t.Errorf("no record is left, but %v", s.records)
	}
}

// A Secret of another type, or in another namespace, removes no node: other users may write Secrets elsewhere.
func TestRecordOf(t *testing.T) {
	good := recorded("1", "a", now)
	with := func(f func(*corev1.Secret)) *corev1.Secret {
		s := good.DeepCopy()
		f(s)
		return s
	}
	for name, tc := range map[string]struct {
		object any
		want   bool
	}{
		"a record":             {good, true},
		"a tombstone":          {cache.DeletedFinalStateUnknown{Obj: good}, true},
		"of another type":      {with(func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }), false},
		"in another namespace": {with(func(s *corev1.Secret) { s.Namespace = "default" }), false},
		"no Secret":            {&corev1.ConfigMap{}, false},
		"nothing":              {nil, false},
	} {
		if got := recordOf(tc.object) != nil; got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestIssued(t *testing.T) {
	if got := Issued(&x509.Certificate{NotBefore: now.Add(-5 * time.Minute)}); !got.Equal(now) {
		t.Errorf("issued at %s, want %s", got, now)
	}
}

// TestFollow: a record created while the set follows is known and reported.
func TestFollow(t *testing.T) {
	cs := fake.NewClientset(recorded("before", "a", now))
	factory := informers.NewSharedInformerFactory(cs, 0)
	noticed := make(chan string, 2)
	s, err := Follow(factory.Core().V1().Secrets().Informer(), func(node string) { noticed <- node })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer factory.Shutdown()
	defer cancel()
	factory.Start(ctx.Done())
	cache.WaitFor(ctx, "", s.Synced())
	if got := <-noticed; got != "a" || !s.Refuses("a", now) {
		t.Errorf("noticed %q, refused %v", got, s.Refuses("a", now))
	}
	s.Stop()
}

func pod(name, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: node}}
}

func request(name, user string) *certificatesv1.CertificateSigningRequest {
	return &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: certificatesv1.CertificateSigningRequestSpec{Username: user}}
}

// TestRemove: a removed node leaves its record, and nothing else. It is shut out before anything is deleted, or it
// could create it again.
func TestRemove(t *testing.T) {
	a := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	server := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "server", Labels: map[string]string{ServerLabel: ""}}}
	reserved := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kubelith-node.a"}, Data: map[string]string{"token": "abc123"}}
	all := []runtime.Object{a, server, reserved, pod("p", "a"), pod("q", "server"), request("ours", "system:node:a"), request("other", "system:node:ab")}
	for name, tc := range map[string]struct {
		objects []runtime.Object
		node    string
		force   bool
		want    string // error
		left    int    // of the seven
	}{
		"an agent":           {all, "a", false, "", 3},
		"no node":            {all[1:], "a", false, ErrNoNode.Error(), 6},
		"no node, by force":  {all[1:], "a", true, "", 3},
		"a server":           {all, "server", false, "the node server is a server: ", 7},
		"a server, by force": {all, "server", true, "the node server is a server: ", 7},
		"no name":            {all, "a/b", true, `"a/b" cannot be a node's name`, 7},
	} {
		t.Run(name, func(t *testing.T) {
			objects := make([]runtime.Object, 0, len(tc.objects))
			for _, o := range tc.objects {
				objects = append(objects, o.DeepCopyObject())
			}
			objects = append(objects, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-abc123"}})
			cs := fake.NewClientset(objects...)
			// The fake cluster knows no field selectors for pods.
			cs.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
				if got := action.(clienttesting.ListAction).GetListRestrictions().Fields.String(); got != "spec.nodeName="+tc.node {
					t.Errorf("pods were listed by %q", got)
				}
				return true, &corev1.PodList{Items: []corev1.Pod{*pod("p", "a")}}, nil
			})
			token, err := Remove(t.Context(), cs, tc.node, tc.force)
			if (err == nil) != (tc.want == "") || err != nil && !strings.HasPrefix(err.Error(), tc.want) {
				t.Fatalf("error %v, want %q", err, tc.want)
			}
			var writes []string
			for _, action := range cs.Actions() {
				if verb := action.GetVerb(); verb == "create" || verb == "delete" {
					writes = append(writes, verb+" "+action.GetResource().Resource)
				}
			}
			if tc.want != "" {
				if len(writes) > 0 {
					t.Errorf("it was refused, but there was %v", writes)
				}
				return
			}
			if token != "abc123" {
				t.Errorf("it has joined with the token %q", token)
			}
			if len(writes) < 5 || writes[0] != "create secrets" || writes[1] != "delete nodes" {
				t.Errorf("what was done: %v", writes)
			}
			if left := count(t, cs); left != tc.left {
				t.Errorf("%d objects are left, want %d", left, tc.left)
			}
			secrets, err := cs.CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{})
			secrets.Items = slices.DeleteFunc(secrets.Items, func(s corev1.Secret) bool { return s.Name == "bootstrap-token-abc123" })
			if err != nil || len(secrets.Items) != 1 {
				t.Fatalf("records: %v, %v", secrets, err)
			}
			if r := secrets.Items[0]; string(r.Data["node"]) != "a" || r.Type != "kubelith.io/removed-node" || r.Immutable == nil || !*r.Immutable {
				t.Errorf("the record: %v", r)
			}
		})
	}
}

// count counts the remaining objects, except records.
func count(t *testing.T, cs *fake.Clientset) int {
	t.Helper()
	nodes, err1 := cs.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	configMaps, err2 := cs.CoreV1().ConfigMaps("").List(t.Context(), metav1.ListOptions{})
	requests, err3 := cs.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	pods := 0
	for _, name := range []string{"p", "q"} {
		if _, err := cs.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{}); err == nil {
			pods++
		}
	}
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	return len(nodes.Items) + len(configMaps.Items) + len(requests.Items) + pods
}

// A node that creates its Node again before the API server refuses it loses it again.
func TestRemoveAgain(t *testing.T) {
	a := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	cs := fake.NewClientset(a)
	deletions := 0
	cs.PrependReactor("delete", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		deletions++
		if deletions == 1 {
			return true, nil, nil // and the Node is there again
		}
		return false, nil, nil
	})
	if token, err := Remove(t.Context(), cs, "a", false); err != nil || token != "" {
		t.Fatalf("token %q, %v", token, err)
	}
	if _, err := cs.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{}); err == nil || deletions < 3 {
		t.Errorf("after %d deletions: %v", deletions, err)
	}
}

// A failure says that the node is shut out already, and how to go on.
func TestRemoveFails(t *testing.T) {
	cs := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	cs.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("etcd is away") })
	_, err := Remove(t.Context(), cs, "a", false)
	const want = "the credentials of node a are revoked, but it is not removed: delete the pods of the node: etcd is away: run kubelith node remove --force a"
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}
