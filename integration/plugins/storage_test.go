package plugins

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubelith.io/kubelith/integration/harness"
)

const (
	// localDriver and localClass come with Kubelith.
	localDriver, localClass = "local.kubelith.io", "local"
	// localVolumes is where the driver keeps them on the node.
	localVolumes = "/var/lib/kubelith/plugins/data/local/volumes"
)

// TestLocalStorage: claims on a server as it comes. First all that does not disturb others, at the same time, then
// restarts.
func TestLocalStorage(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{Args: []string{"--kubelet-arg=sync-frequency=2s"}})
	t.Cleanup(func() { detachLoops(t, s) })
	harness.Eventually(t, harness.PodTimeout, "the default class", func() error {
		_, err := s.Client(t).StorageV1().StorageClasses().Get(t.Context(), localClass, metav1.GetOptions{})
		return err
	})
	mayHave(t, s, wait(t, s, "local", "is ready", ready).PID, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_SYS_ADMIN, unix.CAP_SYS_RESOURCE)
	t.Run("calm", func(t *testing.T) {
		together(t, s, part{"default class", testDefaultClass}, part{"size", testSize}, part{"fsGroup", testFSGroup}, part{"expansion", testExpansion},
			part{"block", testBlock}, part{"reclaim", testReclaim}, part{"mount options", testMountOptions}, part{"no room", testNoRoom},
			part{"a driver in pods", testDriverInPods}, part{"attach", testAttach})
	})
	t.Run("plugin killed", func(t *testing.T) { testPluginKilled(t, s) })
	t.Run("server restarted and killed", func(t *testing.T) { testServerRestarts(t, s) })
}

// claim of a size; "" is the default class.
func claim(ns, name, class, size string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
		},
	}
	if class != "" {
		c.Spec.StorageClassName = &class
	}
	return c
}

func createClaim(t *testing.T, s *harness.Server, c *corev1.PersistentVolumeClaim) {
	t.Helper()
	if _, err := s.Client(t).CoreV1().PersistentVolumeClaims(c.Namespace).Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func getClaim(t *testing.T, s *harness.Server, ns, name string) *corev1.PersistentVolumeClaim {
	t.Helper()
	c, err := s.Client(t).CoreV1().PersistentVolumeClaims(ns).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// volumeOf a bound claim.
func volumeOf(t *testing.T, s *harness.Server, ns, name string) *corev1.PersistentVolume {
	t.Helper()
	c := getClaim(t, s, ns, name)
	if c.Status.Phase != corev1.ClaimBound {
		t.Fatalf("claim %s is %s", name, c.Status.Phase)
	}
	v, err := s.Client(t).CoreV1().PersistentVolumes().Get(t.Context(), c.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// podWith a claim at /data, or a device at /dev/data.
func podWith(ns, name, claim string, mode corev1.PersistentVolumeMode, command ...string) *corev1.Pod {
	pod := harness.Pod(ns, name, command...)
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}}
	c := &pod.Spec.Containers[0]
	if mode == corev1.PersistentVolumeBlock {
		c.VolumeDevices = []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/data"}}
	} else {
		c.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	}
	return pod
}

// deletePod deletes a pod, with a grace period if one is given, and waits until it is gone.
func deletePod(t *testing.T, s *harness.Server, pod *corev1.Pod, grace ...int64) {
	t.Helper()
	options := metav1.DeleteOptions{}
	if len(grace) > 0 {
		options.GracePeriodSeconds = &grace[0]
	}
	pods := s.Client(t).CoreV1().Pods(pod.Namespace)
	if err := pods.Delete(t.Context(), pod.Name, options); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 2*time.Minute, "pod "+pod.Name+" to be gone", func() error {
		now, err := pods.Get(t.Context(), pod.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && now.UID != pod.UID: // another one of its name
			return nil
		case err != nil:
			return err
		}
		return errors.New("it is there")
	})
}

// deleteClaims deletes claims and waits until they are gone.
func deleteClaims(t *testing.T, s *harness.Server, ns string, names ...string) {
	t.Helper()
	claims := s.Client(t).CoreV1().PersistentVolumeClaims(ns)
	for _, name := range names {
		if err := claims.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		harness.Eventually(t, 2*time.Minute, "claim "+name+" to be gone", func() error {
			_, err := claims.Get(t.Context(), name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
				return nil
			case err != nil:
				return err
			}
			return errors.New("it is there")
		})
	}
}

// volumeDir is the directory of a volume on the node, seen from the test.
func volumeDir(s *harness.Server, v *corev1.PersistentVolume) string {
	return s.Path(filepath.Join(localVolumes, v.Spec.CSI.VolumeHandle))
}

// eventOf an object with a reason and a text in its message.
func eventOf(t *testing.T, s *harness.Server, ns, kind, name, reason, text string) {
	t.Helper()
	eventWithin(t, s, harness.PodTimeout, ns, kind, name, reason, text)
}

func eventWithin(t *testing.T, s *harness.Server, limit time.Duration, ns, kind, name, reason, text string) {
	t.Helper()
	harness.Eventually(t, limit, fmt.Sprintf("an event %s of %s %s", reason, kind, name), func() error {
		list, err := s.Client(t).CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{
			FieldSelector: "involvedObject.kind=" + kind + ",involvedObject.name=" + name,
		})
		if err != nil {
			return err
		}
		var all []string
		for _, e := range list.Items {
			if e.Reason == reason && strings.Contains(e.Message, text) {
				return nil
			}
			all = append(all, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("events: %q", all)
	})
}

// testDefaultClass: a claim that names no class is bound and mounted, on this node, and its data outlives the pod.
func testDefaultClass(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	createClaim(t, s, claim(ns, "data", "", "1Gi"))
	if class := getClaim(t, s, ns, "data").Spec.StorageClassName; class == nil || *class != localClass {
		t.Fatalf("the default class is %v", class)
	}
	pod := s.Run(t, podWith(ns, "writer", "data", "", harness.Shell("echo kept >/data/file; sleep 1000")...))
	v := volumeOf(t, s, ns, "data")
	if v.Spec.CSI == nil || v.Spec.CSI.Driver != localDriver {
		t.Fatalf("the volume is %+v", v.Spec.PersistentVolumeSource)
	}
	terms := v.Spec.NodeAffinity.Required.NodeSelectorTerms
	if len(terms) != 1 || terms[0].MatchExpressions[0].Values[0] != pod.Spec.NodeName {
		t.Errorf("the volume leads to %+v", terms)
	}
	harness.Eventually(t, 20*time.Second, "its file to be on the node", func() error {
		if got, err := os.ReadFile(filepath.Join(volumeDir(s, v), "data/file")); err != nil || string(got) != "kept\n" {
			return fmt.Errorf("%q, %v", got, err)
		}
		return nil
	})
	deletePod(t, s, pod)
	pod = s.Run(t, podWith(ns, "reader", "data", "", "sleep", "1000"))
	if got := s.PodExec(t, pod, "main", "cat", "/data/file"); got != "kept\n" {
		t.Errorf("the next pod reads %q", got)
	}
}

// testSize: a pod that writes without end fills its own volume and nothing else, and may write more when that has
// grown.
func testSize(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	createClaim(t, s, claim(ns, "data", "", "10Mi"))
	pod := s.Run(t, podWith(ns, "a", "data", "", "sleep", "1000"))
	free := func() int64 {
		var fs unix.Statfs_t
		if err := unix.Statfs(s.Path(localVolumes), &fs); err != nil {
			t.Fatal(err)
		}
		return int64(fs.Bavail) * fs.Bsize
	}
	dd := func(name string) int64 {
		t.Helper()
		_, errOut, err := s.TryPodExec(t, pod, "main", "dd", "if=/dev/zero", "of=/data/"+name, "bs=64k")
		if err == nil || !strings.Contains(errOut, "No space left on device") && !strings.Contains(errOut, "quota exceeded") {
			t.Errorf("dd ended with %v: %s", err, errOut)
		}
		size, err := strconv.ParseInt(strings.TrimSpace(s.PodExec(t, pod, "main", "stat", "-c", "%s", "/data/"+name)), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return size
	}
	const slack = 256 << 10
	before := free()
	if got := dd("big"); got < 10<<20-slack || got > 10<<20+slack {
		t.Errorf("%d bytes fit into 10 MiB", got)
	}
	if lost := before - free(); lost > 1<<30 { // tests beside this one write as well
		t.Errorf("the disk lost %d bytes", lost)
	}
	grow(t, s, ns, "data", "20Mi")
	if got := dd("more"); got < 10<<20-slack || got > 10<<20+slack {
		t.Errorf("%d bytes more fit after the claim grew by 10 MiB", got)
	}
	s.PodExec(t, pod, "main", "rm", "/data/more")
	s.PodExec(t, pod, "main", "touch", "/data/again")
	refused := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "hard-" + ns}, Provisioner: localDriver, Parameters: map[string]string{"enforcement": "hard"}}
	if _, err := s.Client(t).StorageV1().StorageClasses().Create(t.Context(), refused, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	createClaim(t, s, claim(ns, "refused", refused.Name, "10Mi"))
	eventOf(t, s, ns, "PersistentVolumeClaim", "refused", "ProvisioningFailed", "use auto, quota, file or none")
}

// testFSGroup: files belong to the pod's group, and a user that is not root can write.
func testFSGroup(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	createClaim(t, s, claim(ns, "data", "", "1Gi"))
	pod := podWith(ns, "a", "data", "", "sleep", "1000")
	user, group := int64(1000), int64(2000)
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &user, RunAsGroup: &user, FSGroup: &group}
	pod = s.Run(t, pod)
	s.PodExec(t, pod, "main", "touch", "/data/file")
	if got := s.PodExec(t, pod, "main", "stat", "-c", "%g %A", "/data"); !strings.HasPrefix(got, "2000 drwxrws") {
		t.Errorf("the directory is %q", got)
	}
	if got := s.PodExec(t, pod, "main", "stat", "-c", "%u %g", "/data/file"); got != "1000 2000\n" {
		t.Errorf("the file belongs to %q", got)
	}
}

// grow a claim and wait until it has got what it asks for.
func grow(t *testing.T, s *harness.Server, ns, name, size string) {
	t.Helper()
	patch := fmt.Sprintf(`{"spec":{"resources":{"requests":{"storage":%q}}}}`, size)
	if _, err := s.Client(t).CoreV1().PersistentVolumeClaims(ns).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.PodTimeout, "claim "+name+" to have "+size, func() error {
		c := getClaim(t, s, ns, name)
		if have := c.Status.Capacity[corev1.ResourceStorage]; have.Cmp(resource.MustParse(size)) != 0 {
			return fmt.Errorf("it has %s, %+v", &have, c.Status.Conditions)
		}
		for _, cond := range c.Status.Conditions {
			if cond.Type == corev1.PersistentVolumeClaimResizing || cond.Type == corev1.PersistentVolumeClaimFileSystemResizePending {
				return fmt.Errorf("%+v", cond)
			}
		}
		return nil
	})
}

// testExpansion: a volume grows under a running pod, and not beyond the disk.
func testExpansion(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	createClaim(t, s, claim(ns, "data", "", "64Mi"))
	pod := s.Run(t, podWith(ns, "a", "data", "", "sleep", "1000"))
	grow(t, s, ns, "data", "128Mi")
	v := volumeOf(t, s, ns, "data")
	if size := v.Spec.Capacity[corev1.ResourceStorage]; size.Value() != 128<<20 {
		t.Errorf("the volume has %s", &size)
	}
	if meta, err := os.ReadFile(filepath.Join(volumeDir(s, v), "meta.json")); err != nil || !strings.Contains(string(meta), fmt.Sprint(`"size":`, 128<<20)) {
		t.Errorf("the driver promises %s, %v", meta, err)
	}
	patch := []byte(`{"spec":{"resources":{"requests":{"storage":"1Ei"}}}}`)
	if _, err := s.Client(t).CoreV1().PersistentVolumeClaims(ns).Patch(t.Context(), "data", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventOf(t, s, ns, "PersistentVolumeClaim", "data", "VolumeResizeFailed", "are free for volumes on this node")
	now, err := s.Client(t).CoreV1().Pods(ns).Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil || harness.Status(now, "main").RestartCount != 0 {
		t.Errorf("the pod was restarted: %v", err)
	}
}

// loopsOf an image: the devices of the host that it is behind. Paths would not do, they are the sandbox's.
func loopsOf(t *testing.T, image os.FileInfo) (devices []string) {
	t.Helper()
	st := image.Sys().(*syscall.Stat_t)
	out, err := exec.Command("losetup", "--list", "--noheadings", "--raw", "--output", "NAME,BACK-INO,BACK-MAJ:MIN").Output()
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(" %d %d:%d", st.Ino, unix.Major(st.Dev), unix.Minor(st.Dev))
	for line := range strings.Lines(string(out)) {
		line = strings.ReplaceAll(strings.TrimSpace(line), `\x20`, "") // it fills columns up even so
		if device, ok := strings.CutSuffix(line, want); ok {
			devices = append(devices, device)
		}
	}
	return devices
}

// detachLoops frees what a failed test left: the devices are the host's, not the sandbox's.
func detachLoops(t *testing.T, s *harness.Server) {
	images, _ := filepath.Glob(s.Path(localVolumes + "/*/image"))
	for _, path := range images {
		if image, err := os.Stat(path); err == nil {
			for _, device := range loopsOf(t, image) {
				exec.Command("losetup", "--detach", device).Run()
			}
		}
	}
}

// testBlock: a pod gets the device itself, of the right size, it grows while it is used, and its bytes outlive the pod.
func testBlock(t *testing.T, s *harness.Server) {
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skip("this kernel has no loop devices: ", err)
	}
	ns := s.Namespace(t)
	c := claim(ns, "data", "", "64Mi")
	mode := corev1.PersistentVolumeBlock
	c.Spec.VolumeMode = &mode
	createClaim(t, s, c)
	pod := s.Run(t, podWith(ns, "a", "data", mode, "sleep", "1000"))
	size := func(pod *corev1.Pod) string {
		return strings.TrimSpace(s.PodExec(t, pod, "main", "blockdev", "--getsize64", "/dev/data"))
	}
	if got := size(pod); got != fmt.Sprint(64<<20) {
		t.Errorf("the device has %s bytes", got)
	}
	grow(t, s, ns, "data", "96Mi")
	if got := size(pod); got != fmt.Sprint(96<<20) {
		t.Errorf("after its growth the device has %s bytes", got)
	}
	s.PodExec(t, pod, "main", harness.Shell("printf kubelith | dd of=/dev/data bs=8 seek=10485760 conv=fsync")...) // at 80 MiB
	deletePod(t, s, pod)
	pod = s.Run(t, podWith(ns, "b", "data", mode, "sleep", "1000"))
	if got := s.PodExec(t, pod, "main", "dd", "if=/dev/data", "bs=8", "skip=10485760", "count=1"); got != "kubelith" {
		t.Errorf("the next pod reads %q", got)
	}
	path := filepath.Join(volumeDir(s, volumeOf(t, s, ns, "data")), "image")
	image, err := os.Stat(path)
	if err != nil || len(loopsOf(t, image)) != 1 {
		t.Fatalf("devices %q of the image, %v", loopsOf(t, image), err)
	}
	deletePod(t, s, pod)
	harness.Eventually(t, harness.PodTimeout, "the device to be gone", func() error {
		if left := loopsOf(t, image); len(left) > 0 {
			return fmt.Errorf("%q are there", left)
		}
		return nil
	})
	deleteClaims(t, s, ns, "data")
	harness.Eventually(t, harness.PodTimeout, "the image to be gone", func() error {
		if _, err := os.Stat(path); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
}

// testMountOptions: the mountOptions of a class apply in the pod, to a part of the volume too.
func testMountOptions(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "strict-" + ns}, Provisioner: localDriver, VolumeBindingMode: &wait,
		MountOptions: []string{"nosuid", "nodev", "noexec", "noatime"}}
	if _, err := s.Client(t).StorageV1().StorageClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	createClaim(t, s, claim(ns, "data", class.Name, "64Mi"))
	pod := podWith(ns, "strict", "data", "", "sleep", "1000")
	mounts := &pod.Spec.Containers[0].VolumeMounts
	*mounts = append(*mounts, corev1.VolumeMount{Name: "data", MountPath: "/part", SubPath: "part"})
	pod = s.Run(t, pod)
	all := s.PodExec(t, pod, "main", "mount")
	for _, path := range []string{"/data", "/part"} {
		_, options, _ := strings.Cut(all, " on "+path+" type ")
		options, _, _ = strings.Cut(options, "\n")
		for _, want := range class.MountOptions {
			if !strings.Contains(options, want) {
				t.Errorf("%s is mounted without %s: %s", path, want, options)
			}
		}
	}
	if _, stderr, err := s.TryPodExec(t, pod, "main", "/bin/sh", "-c", "printf '#!/bin/sh\n' >/data/run && chmod 755 /data/run && /data/run"); err == nil || !strings.Contains(stderr, "Permission denied") {
		t.Errorf("a program of the volume: %v, %s", err, stderr)
	}
	endPod(t, s, pod)
}

// testReclaim: with the claim goes the volume, unless its class retains it.
func testReclaim(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	retain, wait := corev1.PersistentVolumeReclaimRetain, storagev1.VolumeBindingWaitForFirstConsumer
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "kept-" + ns}, Provisioner: localDriver, ReclaimPolicy: &retain, VolumeBindingMode: &wait,
		Parameters: map[string]string{"enforcement": "none"}} // a plain directory
	if _, err := s.Client(t).StorageV1().StorageClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	createClaim(t, s, claim(ns, "deleted", "", "64Mi"))
	createClaim(t, s, claim(ns, "kept", class.Name, "64Mi"))
	volumes := map[string]*corev1.PersistentVolume{}
	for _, name := range []string{"deleted", "kept"} {
		pod := s.RunToEnd(t, podWith(ns, name, name, "", harness.Shell("echo x >/data/file")...))
		volumes[name] = volumeOf(t, s, ns, name)
		deletePod(t, s, pod)
		deleteClaims(t, s, ns, name)
	}
	harness.Eventually(t, harness.PodTimeout, "the volume of a deleted claim to be gone", func() error {
		_, err := s.Client(t).CoreV1().PersistentVolumes().Get(t.Context(), volumes["deleted"].Name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("PersistentVolume: %v", err)
		}
		if _, err := os.Stat(volumeDir(s, volumes["deleted"])); err == nil {
			return errors.New("its directory is there")
		}
		return nil
	})
	harness.Eventually(t, harness.PodTimeout, "the retained volume to be released", func() error {
		v, err := s.Client(t).CoreV1().PersistentVolumes().Get(t.Context(), volumes["kept"].Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if v.Status.Phase != corev1.VolumeReleased {
			return fmt.Errorf("it is %s", v.Status.Phase)
		}
		return nil
	})
	if got, err := os.ReadFile(filepath.Join(volumeDir(s, volumes["kept"]), "data/file")); err != nil || string(got) != "x\n" {
		t.Errorf("the retained file: %q, %v", got, err)
	}
}

// testNoRoom: a pod whose claim is larger than the disk waits, with the reason in an Event.
func testNoRoom(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	createClaim(t, s, claim(ns, "data", "", "1Ei"))
	s.Create(t, podWith(ns, "a", "data", "", "sleep", "1000"))
	eventOf(t, s, ns, "Pod", "a", "FailedScheduling", "did not have enough free storage")
	if phase := getClaim(t, s, ns, "data").Status.Phase; phase != corev1.ClaimPending {
		t.Errorf("the claim is %s", phase)
	}
	pod, err := s.Client(t).CoreV1().Pods(ns).Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || pod.Status.Phase != corev1.PodPending {
		t.Errorf("the pod is %s, %v", pod.Status.Phase, err)
	}
}

// testPluginKilled: pods do not notice, and what is asked for meanwhile happens when the plugin is back.
func testPluginKilled(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	createClaim(t, s, claim(ns, "before", "", "64Mi"))
	before := s.Run(t, podWith(ns, "before", "before", "", "sleep", "1000"))
	for i := range 3 {
		name := fmt.Sprint("after-", i)
		createClaim(t, s, claim(ns, name, "", "64Mi"))
		kill(t, s, "kubelith-local")
		s.Run(t, podWith(ns, name, name, "", harness.Shell("echo x >/data/file && sleep 1000")...))
	}
	s.PodExec(t, before, "main", "touch", "/data/file")
}

// testServerRestarts: a pod goes on writing into its volume, its data is there afterwards, and volumes are created and
// deleted as before.
func testServerRestarts(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	createClaim(t, s, claim(ns, "data", "", "64Mi"))
	pod := s.Run(t, podWith(ns, "writer", "data", "", harness.Shell("while true; do date +%s.%N >>/data/log; sleep 0.1; done")...))
	pid := s.ContainerPID(t, pod, "main")
	log := filepath.Join(volumeDir(s, volumeOf(t, s, ns, "data")), "data/log")
	harness.Eventually(t, harness.PodTimeout, "the pod to write", func() error {
		_, err := os.Stat(log)
		return err
	})
	for _, way := range []struct {
		name string
		down func()
	}{{"stop", func() { s.Stop(t) }}, {"kill -9", func() { s.Kill9(t) }}} {
		before := lines(t, log)
		way.down()
		harness.Eventually(t, 5*time.Second, "the plugin to end with its server", func() error {
			if left := processes(t, s, "kubelith-local"); len(left) > 0 {
				return fmt.Errorf("%s: processes %v", way.name, left)
			}
			return nil
		})
		harness.Eventually(t, 10*time.Second, "the pod to go on writing without the server", func() error {
			if now := lines(t, log); now <= before {
				return fmt.Errorf("%d lines, %d before", now, before)
			}
			return nil
		})
		s.Launch(t)
		s.WaitReady(t)
		name := strings.ReplaceAll(way.name, " ", "")
		createClaim(t, s, claim(ns, name, "", "64Mi"))
		other := s.Run(t, podWith(ns, name, name, "", "sleep", "1000"))
		grow(t, s, ns, name, "96Mi")
		deletePod(t, s, other)
		if now := s.ContainerPID(t, pod, "main"); now != pid {
			t.Errorf("%s: the pod's process is %d, was %d", way.name, now, pid)
		}
		s.PodExec(t, pod, "main", "touch", "/data/after-"+name)
	}
	v := volumeOf(t, s, ns, "data")
	deletePod(t, s, pod)
	deleteClaims(t, s, ns, "data")
	harness.Eventually(t, harness.PodTimeout, "the volume to be gone", func() error {
		if _, err := os.Stat(volumeDir(s, v)); err == nil {
			return errors.New("its directory is there")
		}
		return nil
	})
}

func lines(t *testing.T, path string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}
