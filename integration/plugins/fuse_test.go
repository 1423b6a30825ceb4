package plugins

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/plugins/examples/fuse/driver"
	"kubelith.io/kubelith/plugins/examples/fuse/store/storetest"
)

// fuseNamespace has the client pods.
const fuseNamespace = "kubelith-fuse"

// TestFUSEVolumes: volumes in an S3-compatible store, which the test runs, with a client beside the plugin, in a client
// pod, and in the pod itself. Programs notice neither the death of a client nor that of the plugin where the other one
// lives.
func TestFUSEVolumes(t *testing.T) {
	t.Parallel()
	program := harness.BuildProgram(t, "../../plugins/examples/fuse")
	s := harness.Start(t, harness.Options{
		Args:       []string{"--kubelet-arg=sync-frequency=2s"}, // for expansions
		ConfigYAML: header + fuseConfig(driver.Image),
		Prepare: func(s *harness.Server) error {
			install(t, s, program, examplesDir+"/fuse")
			return os.MkdirAll(s.Path(fuseDirectory), 0o755)
		},
	})
	store := serveStore(t, s)
	archive := s.Path("/var/lib/fuse-image.tar")
	if out, err := exec.Command(program, "image", archive).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if res := s.RunBinary(t, "ctr", "-n", "k8s.io", "images", "import", "/var/lib/fuse-image.tar"); res.Code != 0 {
		t.Fatal(res.Stderr)
	}
	manifest, err := os.ReadFile("../../plugins/examples/fuse/manifest.yaml")
	if err != nil {
		t.Fatal(err)
	}
	class := string(manifest[strings.LastIndex(string(manifest), "---"):])
	objects := []string{string(manifest)}
	for _, mode := range []string{"process", "sidecar"} {
		objects = append(objects, strings.NewReplacer("{name: fuse}", "{name: fuse-"+mode+"}", "mode: mountpod", "mode: "+mode).Replace(class))
	}
	without, _, _ := strings.Cut(class, "  csi.storage") // Secrets: in the directory
	for _, mode := range []string{"mountpod", "sidecar"} {
		objects = append(objects, strings.NewReplacer("{name: fuse}", "{name: directory-"+mode+"}", "mode: mountpod", "mode: "+mode).Replace(without))
	}
	s.KubectlInput(t, strings.Join(objects, "\n"), "apply", "-f", "-")
	s.Kubectl(t, "-n", fuseNamespace, "create", "secret", "generic", "store", "--from-literal=endpoint="+store.url, "--from-literal=bucket="+storetest.Bucket,
		"--from-literal=access-key=a", "--from-literal=secret-key=b")
	install(t, s, harness.BuildProgram(t, "../../plugins/examples/fuse/sidecar"), "/var/lib/kubelith/plugins/admission/fuse-sidecar")
	wait(t, s, "fuse", "is ready", ready)
	wait(t, s, "fuse-sidecar", "is ready", ready)

	t.Run("process", func(t *testing.T) {
		pod, key := fusePod(t, s, store, "fuse-process")
		clients := func() (pids []int) {
			for _, pid := range processes(t, s, "exe") { // /proc/self/exe
				if cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); strings.Contains(string(cmdline), "\x00client\x00") {
					pids = append(pids, pid)
				}
			}
			return pids
		}
		before := clients()
		if len(before) != 1 {
			t.Fatalf("clients %v, want one", before)
		}
		s.Exec(t, "kill", "-9", fmt.Sprint(before[0]))
		worksOn(t, s, store, pod, key, "client killed")
		openWorks(t, s, store, pod, key, "client killed")
		quota(t, s, pod)
		endPod(t, s, pod)
		harness.Eventually(t, harness.PodTimeout, "the client to end", func() error {
			if left := clients(); len(left) > 0 {
				return fmt.Errorf("clients %v", left)
			}
			return nil
		})
	})
	t.Run("mount pod", func(t *testing.T) { testMountPod(t, s, store) })
	t.Run("sidecar", func(t *testing.T) { testFUSESidecar(t, s, store) })
	t.Run("directory", func(t *testing.T) {
		for _, mode := range []string{"mountpod", "sidecar"} {
			testDirectory(t, s, "directory-"+mode)
		}
	})
	t.Run("server killed", func(t *testing.T) { testServerKilled(t, s, store) })
}

// fuseDirectory is a directory of the node that is a store.
const fuseDirectory = "/var/lib/fuse-store"

// fuseConfig is the plugin in the configuration, with an image of client pods.
func fuseConfig(image string) string {
	return "plugins:\n- name: fuse\n  kind: storage\n  path: " + examplesDir + "/fuse\n  config: {image: \"" + image + "\", store: {directory: " + fuseDirectory + "}}\n"
}

// testDirectory: the files of a volume are files of a directory of the node, with their owners.
func testDirectory(t *testing.T, s *harness.Server, class string) {
	ns := s.Namespace(t)
	c := claim(ns, "data", class, "8Mi")
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	createClaim(t, s, c)
	pod := s.Run(t, podWith(ns, "first", "data", "", "sleep", "1000"))
	s.PodExec(t, pod, "main", "/bin/sh", "-c", "mkdir /data/dir && echo content >/data/dir/file && chown 1000:1000 /data/dir/file && chmod 640 /data/dir/file && mv /data/dir /data/moved")
	path := s.Path(fuseDirectory + "/" + volumeOf(t, s, ns, "data").Spec.CSI.VolumeHandle + "/moved/file")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatalf("%s: %v", class, err)
	}
	if owner := info.Sys().(*syscall.Stat_t); owner.Uid != 1000 || owner.Gid != 1000 || info.Mode().Perm() != 0o640 {
		t.Errorf("%s: the file has the owner %d:%d and the mode %v", class, owner.Uid, owner.Gid, info.Mode())
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "content\n" {
		t.Errorf("%s: the file has %q, %v", class, text, err)
	}
	endPod(t, s, pod)
}

// testServerKilled: pods keep their volumes, and their open files, while the server is killed and starts again.
func testServerKilled(t *testing.T, s *harness.Server, store *fuseStore) {
	shared, sharedKey := fusePod(t, s, store, "fuse")
	own, ownKey := fusePod(t, s, store, "fuse-sidecar")
	s.Kill9(t)
	s.Launch(t)
	s.WaitReady(t)
	for pod, key := range map[*corev1.Pod]string{shared: sharedKey, own: ownKey} {
		harness.Eventually(t, harness.PodTimeout, "the kubelet to know the pod", func() error {
			_, _, err := s.TryPodExec(t, pod, "main", "true")
			return err
		})
		worksOn(t, s, store, pod, key, "server killed")
		openWorks(t, s, store, pod, key, "server killed")
		openHas(t, s, pod, 1)
		endPod(t, s, pod)
	}
}

func testMountPod(t *testing.T, s *harness.Server, store *fuseStore) {
	pod, key := fusePod(t, s, store, "fuse")
	second := s.Run(t, podWith(pod.Namespace, "second", "data", "", "sleep", "1000"))
	clients := clientPods(t, s)
	if len(clients) != 1 {
		t.Fatalf("%d client pods for two pods with the volume", len(clients))
	}
	// Its process, itself, and the plugin.
	s.Exec(t, "kill", "-9", fmt.Sprint(s.ContainerPID(t, &clients[0], "client")))
	worksOn(t, s, store, pod, key, "client killed")
	openWorks(t, s, store, pod, key, "client killed")
	endPod(t, s, &clients[0])
	worksOn(t, s, store, pod, key, "client pod deleted")
	openWorks(t, s, store, pod, key, "client pod deleted")
	kill(t, s, "fuse")
	worksOn(t, s, store, second, key, "plugin killed")
	openWorks(t, s, store, pod, key, "plugin killed")
	wait(t, s, "fuse", "is ready again", ready)
	quota(t, s, pod)

	// Another image of the client.
	const next = "docker.io/kubelith/fuse:next"
	if res := s.RunBinary(t, "ctr", "-n", "k8s.io", "images", "tag", driver.Image, next); res.Code != 0 {
		t.Fatal(res.Stderr)
	}
	configure(t, s, fuseConfig(next))
	harness.Eventually(t, harness.PodTimeout, "the client pod to have the new image", func() error {
		for _, p := range clientPods(t, s) {
			if p.Spec.Containers[0].Image == next && harness.PodReady(&p) == nil {
				return nil
			}
		}
		return errors.New("it has not")
	})
	worksOn(t, s, store, pod, key, "client upgraded")
	openWorks(t, s, store, pod, key, "client upgraded")
	openHas(t, s, second, 4) // the program writes after it has removed the file, and must not find the store away

	// The store is away: programs get errors, and a new pod's Event has the reason why it waits.
	store.Away(true)
	if _, stderr, err := s.TryPodExec(t, pod, "main", "/bin/sh", "-c", "echo lost >/data/away"); err == nil || !strings.Contains(stderr, "Input/output error") {
		t.Errorf("write while the store is away: %v, %s", err, stderr)
	}
	store.Away(false)
	worksOn(t, s, store, pod, key, "store back")
	openWorks(t, s, store, pod, key, "store back")

	openHas(t, s, second, 5)
	endPod(t, s, pod)
	if len(clientPods(t, s)) != 1 {
		t.Error("the client pod is gone while a pod uses the volume")
	}
	endPod(t, s, second)
	harness.Eventually(t, harness.PodTimeout, "the client pod to be gone", func() error {
		if left := clientPods(t, s); len(left) > 0 {
			return errors.New(left[0].Name + " is there")
		}
		return nil
	})
	store.Away(true)
	third := s.Create(t, podWith(pod.Namespace, "third", "data", "", "sleep", "1000"))
	eventOf(t, s, pod.Namespace, "Pod", "third", "FailedAttachVolume", "store "+store.url)
	store.Away(false)
	third = s.WaitRunning(t, third)
	worksOn(t, s, store, third, key, "mounted again")
	endPod(t, s, third)
}

// endPod deletes a pod, whose program ignores SIGTERM.
func endPod(t *testing.T, s *harness.Server, pod *corev1.Pod) {
	t.Helper()
	deletePod(t, s, pod, 1)
}

// fuseStore is the store of the test.
type fuseStore struct {
	storetest.Server
	url string
}

func serveStore(t *testing.T, s *harness.Server) *fuseStore {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(s.HostIP, "0"))
	if err != nil {
		t.Fatal(err)
	}
	store := &fuseStore{url: "http://" + listener.Addr().String()}
	server := &http.Server{Handler: store}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return store
}

// fusePod runs a pod with a new volume of a class. What it writes is in the store, under the key.
func fusePod(t *testing.T, s *harness.Server, store *fuseStore, class string, change ...func(*corev1.Pod)) (pod *corev1.Pod, key string) {
	t.Helper()
	ns := s.Namespace(t)
	if len(change) > 0 { // so that a client in the pod is no reason for more rights
		s.Kubectl(t, "label", "namespace", ns, "pod-security.kubernetes.io/enforce=restricted")
	}
	c := claim(ns, "data", class, "8Mi")
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	createClaim(t, s, c)
	// It keeps a file open, and writes a line each time that it is asked to.
	pod = podWith(ns, "first", "data", "", harness.Shell("exec 3>>/data/open; echo begun >&3; while :; do [ -e /data/next ] && rm /data/next && echo next >&3; sleep 0.2; done")...)
	for _, f := range change {
		f(pod)
	}
	pod = s.Run(t, pod)
	key = volumeOf(t, s, ns, "data").Spec.CSI.VolumeHandle + "/"
	worksOn(t, s, store, pod, key, "mounted")
	if got := s.PodExec(t, pod, "main", "mount"); !strings.Contains(got, "on /data type fuse.kubelith") {
		t.Errorf("the pod has the mounts %s", got)
	}
	return pod, key
}

// worksOn checks that a pod writes into the store.
func worksOn(t *testing.T, s *harness.Server, store *fuseStore, pod *corev1.Pod, key, step string) {
	t.Helper()
	name := strings.ReplaceAll(step, " ", "-")
	begin := time.Now()
	if _, stderr, err := s.TryPodExec(t, pod, "main", "/bin/sh", "-c", "echo "+name+" >/data/"+name+" && cat /data/"+name); err != nil {
		t.Fatalf("%s: %v: %s", step, err, stderr)
	}
	t.Logf("%s: works after %s", step, time.Since(begin).Round(time.Millisecond))
	if got, _ := store.Get(key + name); got != name+"\n" {
		t.Errorf("%s: the object has %q", step, got)
	}
}

// openWorks checks that the first pod still has its open file.
func openWorks(t *testing.T, s *harness.Server, store *fuseStore, pod *corev1.Pod, key, step string) {
	t.Helper()
	s.PodExec(t, pod, "main", "touch", "/data/next")
	harness.Eventually(t, harness.PodTimeout, step+": the program with an open file to write", func() error {
		if _, found := store.Get(key + "next"); found {
			return errors.New("it has not seen the file")
		}
		return nil
	})
}

// openHas waits until the open file has what openWorks made the program write, that many times.
func openHas(t *testing.T, s *harness.Server, pod *corev1.Pod, times int) {
	t.Helper()
	want := "begun\n" + strings.Repeat("next\n", times)
	harness.Eventually(t, 10*time.Second, "the open file to have it all", func() error {
		if got := s.PodExec(t, pod, "main", "cat", "/data/open"); got != want {
			return fmt.Errorf("it has %q", got)
		}
		return nil
	})
}

// quota checks that a volume is full at its size, and that expansion makes room.
func quota(t *testing.T, s *harness.Server, pod *corev1.Pod) {
	t.Helper()
	const write = "dd if=/dev/zero of=/data/big bs=1M count=9"
	if _, stderr, err := s.TryPodExec(t, pod, "main", "/bin/sh", "-c", write); err == nil || !strings.Contains(stderr, "No space left on device") {
		t.Errorf("write more than the size: %v, %s", err, stderr)
	}
	c := getClaim(t, s, pod.Namespace, "data")
	c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("16Mi")
	if _, err := s.Client(t).CoreV1().PersistentVolumeClaims(pod.Namespace).Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.PodTimeout, "the expansion", func() error {
		_, stderr, err := s.TryPodExec(t, pod, "main", "/bin/sh", "-c", write)
		if err != nil {
			return fmt.Errorf("%w: %s", err, stderr)
		}
		return nil
	})
}

func clientPods(t *testing.T, s *harness.Server) []corev1.Pod {
	t.Helper()
	list, err := s.Client(t).CoreV1().Pods(fuseNamespace).List(t.Context(), metav1.ListOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return list.Items
}
