// Package juicefs installs JuiceFS' own CSI driver, unpatched, by its own manifest, with a small FUSE client in place
// of the program juicefs. `make juicefs-test` builds the driver and runs it.
package juicefs

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"

	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/integration/testimage"
)

func TestMain(m *testing.M) { harness.Main(m) }

const (
	// mountImage is the image of mount pods. Its version says what its client can do: see ./client.
	mountImage = "docker.io/juicedata/mount:ce-v1.1.0"
	// storeDir is the directory of the node that the client serves.
	storeDir = "/var/lib/juicefs-store"
	// client is the name of its container.
	client = "jfs-mount"
	// namespace of the driver and of mount pods.
	namespace = "kube-system"
	// installTimeout is ample for the driver's pods: the controller fails until a node plugin runs, and is started
	// again after a while.
	installTimeout = 3 * time.Minute
)

// image is what an image of a manifest is here.
type image struct{ manifest, name, program string }

// images of the manifests. The driver's keeps its name; the sidecars have those of their versions.
var images = []image{
	{"juicedata/juicefs-csi-driver:v0.30.0", "docker.io/juicedata/juicefs-csi-driver:v0.30.0", "/usr/local/bin/juicefs-csi-driver"},
	{"registry.k8s.io/sig-storage/csi-provisioner:v2.2.2", "registry.k8s.io/sig-storage/csi-provisioner:v6.3.0", "/bin/csi-provisioner"},
	{"registry.k8s.io/sig-storage/csi-resizer:v1.9.0", "registry.k8s.io/sig-storage/csi-resizer:v2.2.0", "/bin/csi-resizer"},
	{"registry.k8s.io/sig-storage/csi-node-driver-registrar:v2.9.0", "docker.io/kubelith/node-driver-registrar:1", "/bin/sidecar"},
	{"registry.k8s.io/sig-storage/livenessprobe:v2.11.0", "docker.io/kubelith/livenessprobe:1", "/bin/sidecar"},
}

// class is a StorageClass from JuiceFS' documentation, and rights for the sidecars, which are newer than the manifest.
const class = `apiVersion: v1
kind: Secret
metadata: {name: juicefs-secret, namespace: kube-system}
stringData: {name: test, metaurl: "dir://` + storeDir + `", storage: file, bucket: ` + storeDir + `}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: juicefs}
provisioner: csi.juicefs.com
parameters:
  csi.storage.k8s.io/provisioner-secret-name: juicefs-secret
  csi.storage.k8s.io/provisioner-secret-namespace: kube-system
  csi.storage.k8s.io/node-publish-secret-name: juicefs-secret
  csi.storage.k8s.io/node-publish-secret-namespace: kube-system
  juicefs/host-path: ` + storeDir + `
  juicefs/mount-cpu-request: 100m
  juicefs/mount-memory-request: 64Mi
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: newer-sidecars}
rules:
- {apiGroups: [storage.k8s.io], resources: [volumeattributesclasses], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: newer-sidecars}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: newer-sidecars}
subjects: [{kind: ServiceAccount, name: juicefs-csi-controller-sa, namespace: kube-system}]
`

const claim = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteMany], storageClassName: juicefs, resources: {requests: {storage: 1Gi}}}
`

// TestMountPods: the driver gives pods a volume, through a mount pod that they share and that goes with the last of
// them.
func TestMountPods(t *testing.T) {
	s := install(t, "k8s.yaml", "a node plugin and two controllers", 3)
	ns := s.Namespace(t)
	volume := bindClaim(t, s, ns)
	first := s.Run(t, podWith(ns, "first"))
	second := s.Run(t, podWith(ns, "second"))

	s.PodExec(t, first, "main", "/bin/sh", "-c", "echo hello >/data/file")
	if got := s.PodExec(t, second, "main", "cat", "/data/file"); got != "hello\n" {
		t.Errorf("the second pod reads %q", got)
	}
	if got := s.PodExec(t, first, "main", "mount"); !strings.Contains(got, "on /data type fuse.juicefs") {
		t.Errorf("the pod has the mounts %s", got)
	}
	if got, err := os.ReadFile(s.Path(filepath.Join(storeDir, volume, "file"))); err != nil || string(got) != "hello\n" {
		t.Errorf("the directory of the volume has %q, %v", got, err)
	}
	mountPods := listMountPods(t, s)
	if len(mountPods) != 1 {
		t.Fatalf("%d mount pods for two pods with the volume, want 1", len(mountPods))
	}
	checkTrace(t, s, first, &mountPods[0], volume)

	s.Kubectl(t, "-n", ns, "delete", "pod", "first", "--grace-period=1")
	if got := s.PodExec(t, second, "main", "cat", "/data/file"); got != "hello\n" {
		t.Errorf("without the first pod the second reads %q", got)
	}
	s.Kubectl(t, "-n", ns, "delete", "pod", "second", "--grace-period=1")
	harness.Eventually(t, harness.PodTimeout, "the mount pod to go", func() error {
		if left := listMountPods(t, s); len(left) > 0 {
			return errors.New(left[0].Name + " is there")
		}
		return nil
	})
}

// TestSidecars: the driver's webhook gives each pod its own client, which ends after it; there is no mount pod.
func TestSidecars(t *testing.T) {
	s := install(t, "webhook.yaml", "two controllers", 2)
	ns := s.Namespace(t)
	volume := bindClaim(t, s, ns)
	s.Kubectl(t, "label", "namespace", ns, "juicefs.com/enable-injection=true")
	first := podWith(ns, "first")
	// What it writes when it ends needs the client.
	first.Spec.Containers[0].Command = harness.Shell("trap 'sleep 2; echo bye >>/data/file; exit' TERM; while :; do sleep 1; done")
	first.Spec.TerminationGracePeriodSeconds = ptr.To[int64](30)
	first = runInjected(t, s, first)
	second := runInjected(t, s, podWith(ns, "second"))

	s.PodExec(t, first, "main", "/bin/sh", "-c", "echo hello >/data/file")
	if got := s.PodExec(t, second, "main", "cat", "/data/file"); got != "hello\n" {
		t.Errorf("the second pod reads %q", got)
	}
	if got := s.PodExec(t, first, "main", "mount"); !strings.Contains(got, "on /data type fuse.juicefs") {
		t.Errorf("the pod has the mounts %s", got)
	}
	if got := countMounts(t, s); got != 2 {
		t.Errorf("the node has %d file systems of clients for two pods, want 2", got)
	}
	if mountPods := listMountPods(t, s); len(mountPods) != 0 {
		t.Errorf("there is a mount pod, %s", mountPods[0].Name)
	}
	checkSidecarTrace(t, s, first)

	s.Kubectl(t, "-n", ns, "delete", "pod", "first")
	checkStages(t, s, first, "request delete", "stop main", "stop "+client)
	if got := s.PodExec(t, second, "main", "cat", "/data/file"); got != "hello\nbye\n" {
		t.Errorf("after the first pod the second reads %q", got)
	}
	s.Kubectl(t, "-n", ns, "delete", "pod", "second")
	if got := countMounts(t, s); got != 0 {
		t.Errorf("without pods the node has %d file systems of clients", got)
	}
	if got, err := os.ReadFile(s.Path(filepath.Join(storeDir, volume, "file"))); err != nil || string(got) != "hello\nbye\n" {
		t.Errorf("the directory of the volume has %q, %v", got, err)
	}
}

// runInjected runs a pod, and checks that its sidecar is the client.
func runInjected(t *testing.T, s *harness.Server, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	// A controller that runs does not serve the webhook at once.
	harness.Eventually(t, harness.PodTimeout, "the webhook to answer", func() error {
		_, err := s.Client(t).CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		return err
	})
	pod = s.WaitRunning(t, pod)
	clients := pod.Spec.InitContainers
	if len(clients) != 1 || clients[0].Name != client || clients[0].Image != mountImage || ptr.Deref(clients[0].RestartPolicy, "") != corev1.ContainerRestartPolicyAlways {
		t.Fatalf("the pod %s has the init containers %v, not the sidecar %s", pod.Name, clients, client)
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.ContainerPID(t, pod, client)))
	if want := "/bin/mount.juicefs\x00dir://" + storeDir; err != nil || !strings.HasPrefix(string(cmdline), want) {
		t.Errorf("the sidecar runs %q, %v", cmdline, err)
	}
	return pod
}

// countMounts returns how many file systems of clients are mounted on the node.
func countMounts(t *testing.T, s *harness.Server) int {
	t.Helper()
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", s.PID()))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(mounts), " fuse.juicefs ")
}

// bindClaim creates the claim "data" and returns its volume.
func bindClaim(t *testing.T, s *harness.Server, ns string) string {
	t.Helper()
	s.KubectlInput(t, claim, "apply", "-n", ns, "-f", "-")
	s.Kubectl(t, "-n", ns, "wait", "pvc/data", "--for=jsonpath={.status.phase}=Bound", "--timeout=60s")
	return strings.TrimSpace(s.Kubectl(t, "-n", ns, "get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}"))
}

// install starts a server and installs the driver by one of its manifests, which creates so many pods.
func install(t *testing.T, name, what string, pods int) *harness.Server {
	t.Helper()
	suite := os.Getenv("KUBELITH_JUICEFS_SUITE")
	if suite == "" {
		t.Skip("JuiceFS' CSI driver is not built: run make juicefs-test")
	}
	archive := buildImages(t, suite)
	s := harness.Start(t, harness.Options{
		// The steps of a volume in the kubelet's log.
		Args: []string{"--log-level=info,kubelet=debug"},
		Prepare: func(s *harness.Server) error {
			path := s.Path(harness.DataDir + "/agent/images/juicefs.tar")
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				return err
			}
			content, err := os.ReadFile(archive)
			return errors.Join(err, os.WriteFile(path, content, 0o600), os.MkdirAll(s.Path(storeDir), 0o777))
		},
	})
	manifest, err := os.ReadFile(filepath.Join(suite, name))
	if err != nil {
		t.Fatal(err)
	}
	s.KubectlInput(t, ours(t, string(manifest)), "apply", "-f", "-")
	s.KubectlInput(t, class, "apply", "-f", "-")
	harness.Eventually(t, installTimeout, "the driver's pods to be ready", func() error {
		list, err := s.Client(t).CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=juicefs-csi-driver"})
		if err != nil {
			return err
		}
		if len(list.Items) != pods {
			return fmt.Errorf("%d pods, want %s", len(list.Items), what)
		}
		for i := range list.Items {
			if err := harness.PodReady(&list.Items[i]); err != nil {
				return fmt.Errorf("%s: %w", list.Items[i].Name, err)
			}
		}
		return nil
	})
	return s
}

// ours is a manifest with our names of images and a certificate in the place for it, and without the dashboard: what
// serves its pages is not made with Go.
func ours(t *testing.T, manifest string) string {
	t.Helper()
	cert, key, err := certutil.GenerateSelfSignedCertKey("juicefs-admission-webhook."+namespace+".svc", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	encoded := base64.StdEncoding.EncodeToString(cert)
	replace := []string{"CA_BUNDLE", encoded, "TLS_CRT", encoded, "TLS_KEY", base64.StdEncoding.EncodeToString(key)}
	for _, i := range images {
		replace = append(replace, "image: "+i.manifest+"\n", "image: "+i.name+"\n")
	}
	manifest = strings.NewReplacer(replace...).Replace(manifest)
	var kept []string
	for object := range strings.SplitSeq(manifest, "\n---\n") {
		if !strings.Contains(object, "\nkind: Deployment\n") {
			kept = append(kept, object)
		}
	}
	manifest = strings.Join(kept, "\n---\n")
	for _, used := range regexp.MustCompile(`(?m)^ *image: (.*)$`).FindAllStringSubmatch(manifest, -1) {
		if !slices.ContainsFunc(images, func(i image) bool { return i.name == used[1] }) {
			t.Fatalf("the manifest uses %s, which is not made here", used[1])
		}
	}
	return manifest
}

// buildImages returns an archive of all images: one layer with all programs, which each image starts another of.
func buildImages(t *testing.T, suite string) string {
	t.Helper()
	layer := testimage.NewLayer()
	for name, file := range map[string]string{
		"usr/local/bin/juicefs-csi-driver": filepath.Join(suite, "juicefs-csi-driver"),
		"bin/csi-provisioner":              filepath.Join(suite, "csi-provisioner"),
		"bin/csi-resizer":                  filepath.Join(suite, "csi-resizer"),
		"usr/local/bin/juicefs":            harness.BuildProgram(t, "./client"),
		"bin/sidecar":                      harness.BuildProgram(t, "./sidecar"),
	} {
		if err := layer.Copy(file, name); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"bin/mount.juicefs", "bin/umount", "usr/bin/juicefs"} {
		layer.Link(name, "/usr/local/bin/juicefs")
	}
	if err := layer.Busybox("bash", "umount"); err != nil {
		t.Fatal(err)
	}
	// Sidecars run a script by bash: it has time as a keyword.
	if err := layer.Program("/bin/bash", "bin/bash"); err != nil {
		t.Fatal(err)
	}
	content, err := layer.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "JUICEFS_CE_MOUNT_IMAGE=" + mountImage} // as in the driver's Dockerfile
	made := []testimage.Image{{Name: mountImage, Config: v1.Config{Env: env}}}
	for _, i := range images {
		made = append(made, testimage.Image{Name: i.name, Config: v1.Config{Env: env, Entrypoint: []string{i.program}}})
	}
	path := filepath.Join(t.TempDir(), "juicefs.tar")
	if err := testimage.Write(path, content, made...); err != nil {
		t.Fatal(err)
	}
	return path
}

// podWith returns a pod with the claim "data".
func podWith(ns, name string) *corev1.Pod {
	pod := harness.Pod(ns, name, "sleep", "1000")
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	return pod
}

func listMountPods(t *testing.T, s *harness.Server) []corev1.Pod {
	t.Helper()
	list, err := s.Client(t).CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=juicefs-mount"})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// checkTrace logs what kubelith trace shows of the pod and its mount pod, and checks the steps from the desired state
// to the mounted volume.
func checkTrace(t *testing.T, s *harness.Server, pod, mountPod *corev1.Pod, volume string) {
	t.Helper()
	checkStages(t, s, pod, "setup", "SetUp", "sandbox", "start main")
	checkStages(t, s, mountPod, "request create", "juicefs-csi-node-sa", "deliver", "setup", "sandbox", "start "+client, "settle")
	checkSteps(t, map[string]string{
		"kubelet": s.Logs(),
		"driver":  s.Kubectl(t, "-n", namespace, "logs", "-l", "app=juicefs-csi-node", "-c", "juicefs-plugin", "--tail=-1"),
		"client":  s.Kubectl(t, "-n", namespace, "logs", mountPod.Name),
	}, []step{
		{"kubelet", "Added volume to desired state pod=" + pod.Namespace + "/" + pod.Name + " volumeName=data"},
		{"kubelet", "operationExecutor.VerifyControllerAttachedVolume started for volume \"" + volume},
		{"kubelet", "operationExecutor.MountVolume started for volume \"" + volume},
		{"driver", "mounting juicefs"},
		{"driver", "Need to create pod"},
		{"client", "juicefs format"},
		{"client", "mount.juicefs dir://" + storeDir},
		{"client", "is mounted at"},
		{"driver", "Mount point is ready"},
		{"driver", "binding source at target"},
		{"driver", "juicefs volume mounted"},
		{"kubelet", "All volumes are attached and mounted for pod pod=" + pod.Namespace + "/" + pod.Name},
	})
}

// checkSidecarTrace does so for a pod with a sidecar.
func checkSidecarTrace(t *testing.T, s *harness.Server, pod *corev1.Pod) {
	t.Helper()
	checkStages(t, s, pod, "request create", "setup", "sandbox", "start "+client, "start main")
	checkSteps(t, map[string]string{
		"kubelet": s.Logs(),
		"webhook": s.Kubectl(t, "-n", namespace, "logs", "-l", "app=juicefs-csi-controller", "-c", "juicefs-plugin", "--tail=-1"),
		"client":  s.PodLogs(t, pod, client),
	}, []step{
		{"webhook", "start injecting juicefs client as sidecar in pod"},
		{"kubelet", "Added volume to desired state pod=" + pod.Namespace + "/" + pod.Name + " volumeName=data"},
		{"kubelet", "All volumes are attached and mounted for pod pod=" + pod.Namespace + "/" + pod.Name},
		{"client", "juicefs format"},
		{"client", "mount.juicefs dir://" + storeDir},
		{"client", "is mounted at"},
	})
}

// checkStages logs what kubelith trace shows of a pod, and checks that it has these stages, in this order.
func checkStages(t *testing.T, s *harness.Server, pod *corev1.Pod, stages ...string) {
	t.Helper()
	res := s.RunBinary(t, "trace", "pod/"+pod.Name, "-n", pod.Namespace)
	t.Logf("kubelith trace pod/%s -n %s\n%s%s", pod.Name, pod.Namespace, res.Stdout, res.Stderr)
	rest := res.Stdout
	for i, stage := range stages {
		_, next, found := strings.Cut(rest, stage)
		if !found {
			t.Fatalf("the trace of %s has no %q after %q", pod.Name, stage, stages[:i])
		}
		rest = next
	}
}

// step is a line in the log of who did it.
type step struct{ log, text string }

// checkSteps checks that each step is in its log, at or after the one before, and logs when.
func checkSteps(t *testing.T, logs map[string]string, steps []step) {
	t.Helper()
	var begin, last time.Time
	var table strings.Builder
	for _, step := range steps {
		at, found := after(logs[step.log], step.text, last)
		if !found {
			t.Fatalf("the log of the %s has no %q at or after %s", step.log, step.text, last)
		}
		if last = at; begin.IsZero() {
			begin = at
		}
		fmt.Fprintf(&table, "%5dms  %-8s %s\n", at.Sub(begin).Milliseconds(), step.log, step.text)
	}
	t.Logf("the steps to the mounted volume:\n%s", &table)
}

// clock finds the time of day in a line of the server's log, of klog's and of the client's.
var clock = regexp.MustCompile(`\d\d:\d\d:\d\d\.\d{3}`)

// after returns the time of the first line with a text that is not before another time.
func after(log, text string, begin time.Time) (time.Time, bool) {
	for line := range strings.Lines(log) {
		if !strings.Contains(line, text) {
			continue
		}
		if at, err := time.Parse("2006 15:04:05.000", "2000 "+clock.FindString(line)); err == nil && !at.Before(begin) {
			return at, true
		}
	}
	return time.Time{}, false
}
