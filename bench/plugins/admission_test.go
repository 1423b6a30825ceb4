package plugins

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	webhooktesting "k8s.io/apiserver/pkg/admission/plugin/webhook/testing"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"

	"kubelith.io/kubelith/bench/results"
	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/plugins"
	pluginadmission "kubelith.io/kubelith/plugins/admission"
	"kubelith.io/kubelith/plugins/host"
	"kubelith.io/kubelith/plugins/process"
)

const (
	objectSize = 4096 // of the Pod, as JSON
	calls      = 4000 // of one sample
	idle       = 30 * time.Second
)

// side is one of the two ways to the same logic.
type side struct {
	way      string
	validate admission.ValidationInterface
	pid      int // of the process that has the logic
}

// sample is what some calls cost, in microseconds.
type sample struct {
	p50, p99 float64
	cpu      float64 // of one call, in both processes
}

// TestAdmission measures both ways ROUNDS times, in turn, and stores the samples in the file BENCH_RESULTS.
//
// A call is Validate of the admission plugin in the apiserver, for a Pod of 4 KiB, with everything that upstream does
// for one: rules, encoding, the round trip to the other process, decoding. The plugin is run by Kubelith's host; the
// webhook is a Go server on 127.0.0.1 with HTTP/2 and TLS connections that stay. The process of the benchmark stands in
// for the apiserver.
func TestAdmission(t *testing.T) {
	store, rounds := results.OpenRun(t, "bench-plugins")
	program := build(t, "reviewer")
	sides := []side{pluginSide(t, program), webhookSide(t, program)}
	time.Sleep(idle)
	memory := map[string]float64{}
	for _, s := range sides {
		memory[s.way] = harness.AnonymousMB(t, s.pid)
		refuses(t, s)
		measure(t, s, 16, calls) // connections, caches
	}
	for round := 1; round <= rounds; round++ {
		for _, s := range sides {
			if store.Done("admission", round, s.way) {
				continue
			}
			one, many := measure(t, s, 1, calls), measure(t, s, 16, calls)
			t.Logf("round %d, %s: %+v, 16 at a time %+v", round, s.way, one, many)
			if err := store.Add("admission", round, s.way,
				results.Sample{Figure: results.Call1P50, Value: one.p50}, results.Sample{Figure: results.Call1P99, Value: one.p99}, results.Sample{Figure: results.Call1CPU, Value: one.cpu},
				results.Sample{Figure: results.Call16P50, Value: many.p50}, results.Sample{Figure: results.Call16P99, Value: many.p99}, results.Sample{Figure: results.Call16CPU, Value: many.cpu},
				results.Sample{Figure: results.IdlePlugin, Value: memory[s.way]}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// measure makes n calls, so many at a time.
func measure(t *testing.T, s side, concurrency, n int) sample {
	t.Helper()
	interfaces, pod := webhooktesting.NewObjectInterfacesForTest(), newPod()
	took := make([]time.Duration, n)
	var group sync.WaitGroup
	before := cpu(t, s.pid)
	for worker := range concurrency {
		group.Go(func() {
			for i := worker; i < n; i += concurrency {
				attributes := request(pod)
				start := time.Now()
				if err := s.validate.Validate(t.Context(), attributes, interfaces); err != nil {
					t.Errorf("%s: %v", s.way, err)
					return
				}
				took[i] = time.Since(start)
			}
		})
	}
	group.Wait()
	used := cpu(t, s.pid) - before
	slices.Sort(took)
	microseconds := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	return sample{microseconds(took[n/2]), microseconds(took[n*99/100]), microseconds(used) / float64(n)}
}

// refuses checks that the logic is really called.
func refuses(t *testing.T, s side) {
	t.Helper()
	pod := newPod()
	pod.Spec.Containers[1].Image = "elsewhere/image"
	err := s.validate.Validate(t.Context(), request(pod), webhooktesting.NewObjectInterfacesForTest())
	if err == nil || !strings.Contains(err.Error(), "is not from registry.example.com") {
		t.Fatalf("%s: %v", s.way, err)
	}
}

// newPod is a Pod of objectSize.
func newPod() *corev1.Pod {
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "web-0", Namespace: "webhook-test", Labels: map[string]string{"app": "web"}}}
	for i := 0; ; i++ {
		c := corev1.Container{Name: "c" + strconv.Itoa(i), Image: "registry.example.com/team/web:1", Ports: []corev1.ContainerPort{{ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
			VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/var/lib/data"}}}
		for j := range 8 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", j), Value: "a value of some length"})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
		text, _ := json.Marshal(pod)
		if missing := objectSize - len(text); missing < 700 {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "example.com/filler", strings.Repeat("x", missing-45))
			return pod
		}
	}
}

func request(pod *corev1.Pod) admission.Attributes {
	return admission.NewAttributesRecord(pod, nil, pod.GroupVersionKind(), pod.Namespace, pod.Name, corev1.SchemeGroupVersion.WithResource("pods"), "",
		admission.Create, &metav1.CreateOptions{}, false, &user.DefaultInfo{Name: "me", Groups: []string{"system:authenticated"}})
}

// cpu is what this process and another one have used.
func cpu(t *testing.T, pid int) time.Duration {
	t.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	var clock unix.Timespec
	// CPU clock of another process: see clock_getcpuclockid(3).
	if err := unix.ClockGettime(int32(^uint32(pid)<<3|2), &clock); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano() + clock.Nano())
}

// pluginSide is Kubelith's plugin for webhooks with one plugin, in its own process.
func pluginSide(t testing.TB, program string) side {
	t.Helper()
	h := startPlugins(t, host.Spec{Spec: process.Spec{Name: "images", Kind: plugins.Admission, Path: program, Env: strings.Fields(os.Getenv("BENCH_PLUGIN_ENV")), Source: "the benchmark"}})
	registry, err := pluginadmission.Registry(pluginadmission.Options{Plugins: h, Log: logrus.New()})
	if err != nil {
		t.Fatal(err)
	}
	p, err := registry.InitPlugin(validating.PluginName, nil, newInitialize(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	return side{results.AsPlugin, p.(admission.ValidationInterface), h.States()[0].PID}
}

// webhookSide is upstream's plugin with one webhook, in its own process.
func webhookSide(t testing.TB, program string) side {
	t.Helper()
	cert, key, ca := certificate(t)
	cmd := exec.Command(program, "webhook", cert, key)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	p, err := validating.NewValidatingAdmissionWebhook(nil)
	if err != nil {
		t.Fatal(err)
	}
	newInitialize(t, []registrationv1.ValidatingWebhook{{
		Name: "images.example.com", ClientConfig: registrationv1.WebhookClientConfig{URL: ptr.To("https://" + strings.TrimSpace(address) + "/"), CABundle: ca},
		Rules: []registrationv1.RuleWithOperations{{
			Operations: []registrationv1.OperationType{registrationv1.Create},
			Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}, Scope: ptr.To(registrationv1.AllScopes)},
		}},
		NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{}, MatchPolicy: ptr.To(registrationv1.Equivalent),
		SideEffects: ptr.To(registrationv1.SideEffectClassNone), TimeoutSeconds: ptr.To[int32](10), AdmissionReviewVersions: []string{"v1"},
	}}).Initialize(p)
	if err := p.ValidateInitialization(); err != nil {
		t.Fatal(err)
	}
	return side{results.AsWebhook, p, cmd.Process.Pid}
}

// initialize gives a plugin what the apiserver would.
type initialize struct{ do func(admission.Interface) }

func (i initialize) Initialize(p admission.Interface) { i.do(p) }

func newInitialize(t testing.TB, webhooks []registrationv1.ValidatingWebhook) initialize {
	client, informers := webhooktesting.NewFakeValidatingDataSource("webhook-test", webhooks, nil)
	return initialize{func(p admission.Interface) {
		p.(initializer.WantsExternalKubeClientSet).SetExternalKubeClientSet(client)
		p.(initializer.WantsExternalKubeInformerFactory).SetExternalKubeInformerFactory(informers)
		p.(initializer.WantsDrainedNotification).SetDrainedNotification(t.Context().Done())
		p.(initializer.WantsManifestLoaders).SetManifestLoaders(&initializer.ManifestLoaders{})
		informers.Admissionregistration().V1().ValidatingWebhookConfigurations().Informer()
		informers.Start(t.Context().Done())
		informers.WaitForCacheSync(t.Context().Done())
	}}
}

// certificate is a self-signed one for 127.0.0.1, in files and as a bundle.
func certificate(t testing.TB) (cert, key string, ca []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(cert, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text}), 0o600); err != nil {
		t.Fatal(err)
	}
	return cert, key, ca
}
