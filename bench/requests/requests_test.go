package requests

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	basecompatibility "k8s.io/component-base/compatibility"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/bench/results"
	"kubelith.io/kubelith/components/controlplane/apiserver"
	"kubelith.io/kubelith/components/controlplane/etcd"
	"kubelith.io/kubelith/runtime/images"
)

// requests is how many make one sample.
const requests = 1000

// TestRequests stores ROUNDS samples of each metric, the two ways in turn.
func TestRequests(t *testing.T) {
	store, rounds := results.OpenRun(t, "bench")
	if store.Rounds("requests", results.Kubelith) >= rounds {
		t.Skip("done in an earlier run")
	}
	inProcess, overTLS := serve(t)
	// The first requests of a client build caches and connections.
	for _, c := range []kubernetes.Interface{inProcess, overTLS} {
		cpu(t, func(i int) error { return get(t.Context(), c) })
		cpu(t, func(i int) error { return update(t.Context(), c, i) })
	}
	for round := 1; round <= rounds; round++ {
		if store.Done("requests", round, results.Kubelith) {
			continue
		}
		samples := []results.Sample{
			{Figure: results.GetInProcess, Value: cpu(t, func(int) error { return get(t.Context(), inProcess) })},
			{Figure: results.GetTLS, Value: cpu(t, func(int) error { return get(t.Context(), overTLS) })},
			{Figure: results.PutInProcess, Value: cpu(t, func(i int) error { return update(t.Context(), inProcess, i) })},
			{Figure: results.PutTLS, Value: cpu(t, func(i int) error { return update(t.Context(), overTLS, i) })},
		}
		for _, s := range samples {
			t.Logf("%s: %.0f", s.Figure, s.Value)
		}
		if err := store.Add("requests", round, results.Kubelith, samples...); err != nil {
			t.Fatal(err)
		}
	}
}

func get(ctx context.Context, c kubernetes.Interface) error {
	_, err := c.CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, "bench", metav1.GetOptions{})
	return err
}

// update changes one label of a ConfigMap without reading it first.
func update(ctx context.Context, c kubernetes.Interface, i int) error {
	_, err := c.CoreV1().ConfigMaps(metav1.NamespaceDefault).Update(ctx, configMap(strconv.Itoa(i)), metav1.UpdateOptions{})
	return err
}

func configMap(value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "bench"}, Data: map[string]string{"value": value}}
}

// cpu is the CPU time of the process, in milliseconds, for a thousand requests one after the other.
func cpu(t *testing.T, request func(i int) error) float64 {
	t.Helper()
	runtime.GC() // what the other way left behind
	before := processTime(t)
	for i := range requests {
		if err := request(i); err != nil {
			t.Fatal(err)
		}
	}
	return float64((processTime(t) - before).Milliseconds())
}

func processTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// serve starts etcd and the apiserver in this process and returns clients of the same user, one for each way.
func serve(t *testing.T) (inProcess, overTLS kubernetes.Interface) {
	t.Helper()
	dir := t.TempDir()
	sockets, err := os.MkdirTemp("", "kb") // a short path: sockets have a limit of 108 characters
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(sockets) })
	log, err := logging.Setup(logging.Options{Format: "text", Level: "error", Out: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	defaultGates(t)
	bundle, err := pki.Ensure(pki.Options{
		Dir: filepath.Join(dir, "pki"), NodeName: "bench", NodeIPs: []net.IP{net.IPv4(127, 0, 0, 1)},
		ServiceIPs: []net.IP{net.IPv4(10, 43, 0, 1)}, ClusterDomain: "cluster.local",
	})
	if err != nil {
		t.Fatal(err)
	}
	encryption := filepath.Join(dir, "encryption.yaml")
	if err := pki.EnsureEncryption(encryption, false); err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	url := fmt.Sprintf("https://127.0.0.1:%d", port)
	ours := client.New(url, log)
	socket := filepath.Join(sockets, "etcd.sock")
	store, err := etcd.New(etcd.Options{
		DataDir: filepath.Join(dir, "db"), Socket: socket, Name: "default", Zap: logging.Zap(logrus.NewEntry(log)),
	})
	if err != nil {
		t.Fatal(err)
	}
	api, err := apiserver.New(apiserver.Options{
		BindAddress: "127.0.0.1", Port: port, AdvertiseAddress: "192.0.2.1", ServiceCIDRs: []string{"10.43.0.0/16"}, ClusterDomain: "cluster.local",
		EtcdEndpoint: etcd.Endpoint(socket), EncryptionConfig: encryption, PKI: bundle, Client: ours,
		// The test has no controller-manager that creates service accounts.
		Args: []string{"disable-admission-plugins=ServiceAccount"},
	})
	if err != nil {
		t.Fatal(err)
	}
	run(t, store, api)

	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := pki.WriteKubeconfig(kubeconfig, url, bundle.ClusterCA.Cert, bundle.Admin); err != nil {
		t.Fatal(err)
	}
	remote, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	local := ours.Config("kubelith-admin", "system:masters")
	remote.QPS, remote.ContentConfig, remote.DisableCompression = local.QPS, local.ContentConfig, local.DisableCompression
	inProcess, overTLS = clientFor(t, local), clientFor(t, remote)
	fill(t, inProcess)
	return inProcess, overTLS
}

func clientFor(t *testing.T, cfg *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// fill creates the pod and the ConfigMap of the requests. A goroutine of the apiserver creates the namespace.
func fill(t *testing.T, c kubernetes.Interface) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		_, err = c.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(t.Context(), configMap("0"), metav1.CreateOptions{})
		if err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "bench", Labels: map[string]string{"app": "bench"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: images.Hello}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// run starts the components one after the other and stops them with the test.
func run(t *testing.T, components ...lifecycle.Component) {
	t.Helper()
	for _, c := range components {
		ctx, cancel := context.WithCancel(context.Background())
		ready, ended := make(chan struct{}), make(chan error, 1)
		go func() { ended <- c.Run(ctx, func() { close(ready) }) }()
		t.Cleanup(func() {
			cancel()
			<-ended
		})
		select {
		case <-ready:
		case err := <-ended:
			ended <- nil
			t.Fatalf("%s: %v", c.Name(), err)
		}
	}
}

// defaultGates sets the process's feature gates to their defaults, which must happen once.
func defaultGates(t *testing.T) {
	t.Helper()
	registry := compatibility.DefaultComponentGlobalsRegistry
	if registry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent) == nil {
		if err := registry.Register(basecompatibility.DefaultKubeComponent, compatibility.DefaultBuildEffectiveVersion(), utilfeature.DefaultMutableFeatureGate); err != nil {
			t.Fatal(err)
		}
	}
	registry.AddFlags(pflag.NewFlagSet("process", pflag.ContinueOnError))
	if err := registry.Set(); err != nil {
		t.Fatal(err)
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
