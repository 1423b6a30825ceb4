package token

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/pem"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/cluster-bootstrap/token/jws"

	"kubelith.io/kubelith/base/jointoken"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// example has the form of a token.
const example = "kl1_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef_abc123_0123456789abcdef"

// secrets returns those of the tokens.
func secrets(t *testing.T, cs kubernetes.Interface) []corev1.Secret {
	t.Helper()
	list, err := cs.CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// node is a data directory with a CA, and the cluster that it belongs to.
type node struct {
	dir     string
	cluster *fake.Clientset
	log     *test.Hook
	noToken bool // the server keeps no token in a file
}

func newNode(t *testing.T, objects ...runtime.Object) *node {
	t.Helper()
	n := &node{dir: t.TempDir(), cluster: fake.NewClientset(objects...)}
	n.newCA(t)
	return n
}

// watches returns a function that waits for the two watches of the component: the fake cluster sends a watch only what
// comes after it.
func (n *node) watches() (await func()) {
	watching := make(chan struct{}, 2)
	n.cluster.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		w, err := n.cluster.Tracker().Watch(a.GetResource(), a.GetNamespace())
		watching <- struct{}{}
		return true, w, err
	})
	return func() { <-watching; <-watching }
}

// processInformers end with the process, as those of base/informers.
type processInformers struct {
	informers.SharedInformerFactory
	stop <-chan struct{}
}

func (p processInformers) Start(<-chan struct{}) { p.SharedInformerFactory.Start(p.stop) }

func (n *node) newCA(t *testing.T) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: "ca"}, key)
	if err != nil {
		t.Fatal(err)
	}
	if err := certutil.WriteCert(filepath.Join(n.dir, "ca.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})); err != nil {
		t.Fatal(err)
	}
}

func (n *node) file() string { return filepath.Join(n.dir, "token") }

// run runs the component until it is ready and then f.
func (n *node) run(t *testing.T, f func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stop := make(chan struct{})
	shared := processInformers{informers.NewSharedInformerFactory(n.cluster, 0), stop}
	log, hook := test.NewNullLogger()
	n.log = hook
	s := newServer(Options{
		File: n.file(), Reusable: !n.noToken, CA: func() ([]byte, error) { return os.ReadFile(filepath.Join(n.dir, "ca.crt")) }, CADir: n.dir, Server: "https://192.0.2.1:6443",
		Cluster:   Document{Namespace: "kube-system", Name: "kubelith-cluster", Key: "cluster.json", Value: `{"kind":"ClusterInfo"}`},
		Informers: func() informers.SharedInformerFactory { return shared },
		Log:       log,
	}, n.cluster)
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- s.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
		f()
	case <-time.After(20 * time.Second):
		t.Error("not ready")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	close(stop)
	shared.Shutdown()
}

func (n *node) token(t *testing.T) jointoken.Token {
	t.Helper()
	text, err := os.ReadFile(n.file())
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := jointoken.Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func (n *node) data(t *testing.T, namespace, name string) map[string]string {
	t.Helper()
	cm, err := n.cluster.CoreV1().ConfigMaps(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return cm.Data
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after 20 s", what)
		}
	}
}

// When the component is ready a machine can join with what it finds: the token in the file, the CA that the token
// names, the signature of the token, and what there is to know of the cluster.
func TestPublished(t *testing.T) {
	n := newNode(t)
	n.run(t, func() {
		made := n.token(t)
		if mode, err := os.Stat(n.file()); err != nil || mode.Mode().Perm() != 0o600 {
			t.Errorf("the file has mode %v, %v", mode.Mode(), err)
		}
		all := secrets(t, n.cluster)
		if len(all) != 1 || !made.Valid(&all[0], time.Now(), 23*time.Hour) {
			t.Errorf("Secrets %v", all)
		}
		info := n.data(t, "kube-public", "cluster-info")
		if !jws.DetachedTokenIsValid(info["jws-kubeconfig-"+made.ID], info["kubeconfig"], made.ID, made.Secret) {
			t.Errorf("the signature is wrong: %v", slices.Collect(maps.Keys(info)))
		}
		config, err := clientcmd.Load([]byte(info["kubeconfig"]))
		if err != nil || len(config.AuthInfos) != 0 || config.Clusters[""].Server != "https://192.0.2.1:6443" {
			t.Errorf("%v: %s", err, info["kubeconfig"])
		}
		if got, err := jointoken.CAHash(t.Context(), n.cluster); err != nil || got != made.CAHash {
			t.Errorf("the CA's hash is %s, %v; the token has %s", got, err, made.CAHash)
		}
		if got := n.data(t, "kube-system", "kubelith-cluster"); !maps.Equal(got, map[string]string{"cluster.json": `{"kind":"ClusterInfo"}`}) {
			t.Errorf("kubelith-cluster: %v", got)
		}
		line := n.log.LastEntry()
		if line == nil || line.Level != logrus.InfoLevel || !strings.Contains(line.Message, "kubelith token create --once >token; then run there, with that file: kubelith agent --server https://192.0.2.1:6443 --token-file token") ||
			strings.Contains(line.Message, made.Secret) {
			t.Errorf("logged: %+v", line)
		}
	})
}

// A token that is valid stays; one that a machine could not use any more is replaced.
func TestKept(t *testing.T) {
	change := func(f func(*corev1.Secret)) func(*testing.T, *node) {
		return func(t *testing.T, n *node) {
			s := secrets(t, n.cluster)[0]
			f(&s)
			if _, err := n.cluster.CoreV1().Secrets("kube-system").Update(t.Context(), &s, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	content := func(text string) func(*testing.T, *node) {
		return func(t *testing.T, n *node) {
			if err := os.WriteFile(n.file(), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, tc := range map[string]struct {
		between func(*testing.T, *node)
		kept    bool
	}{
		"nothing": {func(*testing.T, *node) {}, true},
		"an hour": {change(func(s *corev1.Secret) {
			s.Data["expiration"] = []byte(time.Now().Add(62 * time.Minute).UTC().Format(time.RFC3339))
		}), true},
		"nearly over": {change(func(s *corev1.Secret) {
			s.Data["expiration"] = []byte(time.Now().Add(58 * time.Minute).UTC().Format(time.RFC3339))
		}), false},
		"no signing": {change(func(s *corev1.Secret) { delete(s.Data, "usage-bootstrap-signing") }), false},
		"another CA": {func(t *testing.T, n *node) { n.newCA(t) }, false},
		"crash":      {content(""), false},
		"by hand":    {content(example), false},
		"no file": {func(t *testing.T, n *node) {
			if err := os.Remove(n.file()); err != nil {
				t.Fatal(err)
			}
		}, false},
		"deleted": {func(t *testing.T, n *node) {
			if err := jointoken.Delete(t.Context(), n.cluster, n.token(t).ID); err != nil {
				t.Fatal(err)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			var first jointoken.Token
			n.run(t, func() { first = n.token(t) })
			tc.between(t, n)
			n.run(t, func() {
				second := n.token(t)
				if (first == second) != tc.kept {
					t.Errorf("%v, then %v", first, second)
				}
				info := n.data(t, "kube-public", "cluster-info")
				if !jws.DetachedTokenIsValid(info["jws-kubeconfig-"+second.ID], info["kubeconfig"], second.ID, second.Secret) {
					t.Error("the token is not signed")
				}
			})
			left, err := filepath.Glob(n.file() + ".*")
			if err != nil || len(left) != 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// An object that is deleted while the server runs is created again at once.
func TestMadeAgain(t *testing.T) {
	n := newNode(t)
	awaitWatches := n.watches()
	n.run(t, func() {
		awaitWatches()
		first := n.token(t)
		if err := jointoken.Delete(t.Context(), n.cluster, first.ID); err != nil {
			t.Fatal(err)
		}
		eventually(t, "another token in the file", func() bool { return n.token(t) != first })
		if all := secrets(t, n.cluster); len(all) != 1 || !n.token(t).Valid(&all[0], time.Now(), time.Hour) {
			t.Errorf("%d Secrets", len(all))
		}
		for namespace, name := range map[string]string{"kube-public": "cluster-info", "kube-system": "kubelith-cluster"} {
			if err := n.cluster.CoreV1().ConfigMaps(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			eventually(t, name, func() bool {
				_, err := n.cluster.CoreV1().ConfigMaps(namespace).Get(t.Context(), name, metav1.GetOptions{})
				return err == nil
			})
		}
	})
}

// The server reverts another client's change of its data at once, because agents would follow it. Other clients' keys
// stay.
func TestRestored(t *testing.T) {
	n := newNode(t)
	awaitWatches := n.watches()
	n.run(t, func() {
		awaitWatches()
		for _, tc := range []struct{ namespace, name, key string }{
			{"kube-system", "kubelith-cluster", "cluster.json"},
			{"kube-public", "cluster-info", "kubeconfig"},
			{"kube-public", "cluster-info", "jws-kubeconfig-" + n.token(t).ID},
		} {
			before := n.data(t, tc.namespace, tc.name)[tc.key]
			for _, forged := range []func(map[string]string){
				func(data map[string]string) { data[tc.key] = "forged" },
				func(data map[string]string) { delete(data, tc.key) },
			} {
				configMaps := n.cluster.CoreV1().ConfigMaps(tc.namespace)
				c, err := configMaps.Get(t.Context(), tc.name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				forged(c.Data)
				c.Data["theirs"] = "stays"
				if _, err := configMaps.Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				eventually(t, tc.name+" "+tc.key, func() bool { return n.data(t, tc.namespace, tc.name)[tc.key] == before })
				if n.data(t, tc.namespace, tc.name)["theirs"] != "stays" {
					t.Error("what others have written is gone")
				}
			}
		}
	})
}

// Without a reusable token there is no file and no valid Secret, even if an earlier start created them; machines still
// find the server.
func TestNoReusableToken(t *testing.T) {
	n := newNode(t)
	var before jointoken.Token
	n.run(t, func() { before = n.token(t) })
	n.noToken = true
	n.run(t, func() {
		if _, err := os.Stat(n.file()); !os.IsNotExist(err) {
			t.Errorf("the file: %v", err)
		}
		for _, s := range secrets(t, n.cluster) {
			if before.Valid(&s, time.Now(), 0) {
				t.Errorf("the token %s is valid until %s", before.ID, s.Data["expiration"])
			}
		}
		info := n.data(t, "kube-public", "cluster-info")
		if info["kubeconfig"] == "" || info["jws-kubeconfig-"+before.ID] != "" || n.data(t, "kube-system", "kubelith-cluster")["cluster.json"] == "" {
			t.Errorf("published: %v", info)
		}
		if _, err := jointoken.CAHash(t.Context(), n.cluster); err != nil {
			t.Errorf("no token can be created: %v", err)
		}
	})
	n.noToken = false
	n.run(t, func() {
		if again := n.token(t); again.ID == before.ID {
			t.Error("the token that was ended is the token again")
		}
	})
}

// The signatures of other tokens are the bootstrap-signer's.
func TestOthersSignatures(t *testing.T) {
	n := newNode(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"},
		Data: map[string]string{"kubeconfig": "old", "jws-kubeconfig-zzzzzz": "theirs"}})
	n.run(t, func() {
		if info := n.data(t, "kube-public", "cluster-info"); info["jws-kubeconfig-zzzzzz"] != "theirs" || info["kubeconfig"] == "old" || len(info) != 3 {
			t.Errorf("%v", info)
		}
	})
}

// While a new cluster creates its namespaces, the server creates one token, not one at each try.
func TestNamespaceLater(t *testing.T) {
	n := newNode(t)
	left := 3
	n.cluster.PrependReactor("patch", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetNamespace() != "kube-public" || left == 0 {
			return false, nil, nil
		}
		left--
		return true, nil, apierrors.NewNotFound(corev1.Resource("namespaces"), "kube-public")
	})
	n.run(t, func() {
		if all := secrets(t, n.cluster); left != 0 || len(all) != 1 {
			t.Errorf("%d tries left, %d Secrets", left, len(all))
		}
		for _, e := range n.log.AllEntries() {
			if e.Level < logrus.InfoLevel {
				t.Errorf("logged: %s", e.Message)
			}
		}
	})
}
