// Package library tests kubelith.io/kubelith/cluster, with which other modules start clusters in their tests: what it
// promises about root, parallel clusters, the end of a test and what remains. Its examples, in cluster/example_test.go,
// have the rest. It also has tests that need an API and nothing of the harness's sandboxes.
package library

import (
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"

	"kubelith.io/kubelith/cluster"
	"kubelith.io/kubelith/integration/harness"
)

// childEnv makes this test binary one that starts a cluster, reports where it is, and waits.
const childEnv = "KUBELITH_LIBRARY_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := child(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	harness.Main(m)
}

// start starts a cluster for one test.
func start(t *testing.T, opts cluster.Options) (*cluster.Cluster, kubernetes.Interface) {
	t.Helper()
	c := harness.StartLibrary(t, opts)
	return c.Cluster, c.Client(t)
}

// child is another user's test binary: it has one cluster. When its standard input ends, it closes the cluster and
// exits; a test may also kill it.
func child() error {
	c, err := cluster.New(cluster.Options{Node: os.Getenv(childEnv) == "node"})
	if err != nil {
		return err
	}
	fmt.Println(c.Kubeconfig())
	io.Copy(io.Discard, os.Stdin)
	return c.Close()
}

// using returns the ids of the processes that keep a cluster's directory: the test binary, the server and what keeps a
// node's sandbox.
func using(t *testing.T, kubeconfig string) (pids []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if target, _ := os.Readlink(file); strings.HasPrefix(target, filepath.Dir(kubeconfig)+"/cluster-of-") {
			pids = append(pids, strings.Split(file, "/")[2])
		}
	}
	return pids
}

// unlocked returns why a cluster's directory cannot be swept yet. A process that ends has no files in /proc any more
// while the kernel still closes them.
func unlocked(kubeconfig string) error {
	f, err := os.Open(filepath.Join(filepath.Dir(kubeconfig), "cluster-of-a-go-test"))
	if errors.Is(err, fs.ErrNotExist) { // another test has swept it
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
}

// startChild starts a command whose program is child, and returns the kubeconfig of its cluster.
func startChild(t *testing.T, cmd *exec.Cmd) (kubeconfig string, stdin io.Closer) {
	t.Helper()
	var err error
	stderr := &strings.Builder{}
	cmd.Stderr = stderr
	if stdin, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscanln(stdout, &kubeconfig); err != nil {
		cmd.Process.Kill()
		t.Fatal(errors.Join(err, cmd.Wait()), stderr)
	}
	return kubeconfig, stdin
}

// put writes a ConfigMap with a value, and value reads it.
func put(t *testing.T, client kubernetes.Interface, name, value string) {
	t.Helper()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": value}}
	if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func value(t *testing.T, client kubernetes.Interface, name string) string {
	t.Helper()
	object, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return object.Data["value"]
}

// goes deletes a namespace with content, which the controllers must empty.
func goes(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	ns, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "goes-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.CoreV1().Namespaces().Delete(t.Context(), ns.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 30*time.Second, "the namespace to be gone", func() error {
		if _, err := client.CoreV1().Namespaces().Get(t.Context(), ns.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %v", err)
		}
		return nil
	})
}

// copyOf copies a program to where another user may execute it.
func copyOf(t *testing.T, program, to string) string {
	t.Helper()
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, content, 0o755); err != nil {
		t.Fatal(err)
	}
	return to
}

func atoi(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// certificateFor returns what serves an address.
func certificateFor(t *testing.T, ip string) *tls.Config {
	t.Helper()
	cert, key, err := certutil.GenerateSelfSignedCertKey(ip, []net.IP{net.ParseIP(ip)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}}
}

// refuseConfigMaps asks a webhook about each new ConfigMap of the namespace default.
func refuseConfigMaps(t *testing.T, client kubernetes.Interface, webhook *httptest.Server) {
	t.Helper()
	var ca []byte
	for _, der := range webhook.TLS.Certificates[0].Certificate {
		ca = append(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	fail, none := registrationv1.Fail, registrationv1.SideEffectClassNone
	_, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "no"},
		Webhooks: []registrationv1.ValidatingWebhook{{
			Name:                    "no.example.com",
			ClientConfig:            registrationv1.WebhookClientConfig{URL: &webhook.URL, CABundle: ca},
			AdmissionReviewVersions: []string{"v1"},
			FailurePolicy:           &fail,
			SideEffects:             &none,
			NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "default"}},
			Rules: []registrationv1.RuleWithOperations{{
				Operations: []registrationv1.OperationType{registrationv1.Create},
				Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// BenchmarkStart measures cluster.New; the cluster's end is not part of it.
func BenchmarkStart(b *testing.B) {
	for name, opts := range map[string]cluster.Options{"without-node": {}, "node": {Node: true}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				c, err := cluster.New(opts)
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := c.Close(); err != nil {
					b.Error(err)
				}
				b.StartTimer()
			}
		})
	}
}
