package volumes

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

func createConfigMap(t testing.TB, s *harness.Server, ns, name string, data map[string]string) {
	t.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
	if _, err := s.Client(t).CoreV1().ConfigMaps(ns).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestConfigMap: as environment, as files, as one file by subPath; a change reaches the files of a running
// container and, by design, neither its environment nor the subPath.
func TestConfigMap(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	createConfigMap(t, s, ns, "settings", map[string]string{"colour": "red", "shape": "round"})
	ref := corev1.LocalObjectReference{Name: "settings"}
	pod := harness.Pod(ns, "reader", "/bin/probe", "sleep")
	mount(pod, "config", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref}})
	c := &pod.Spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "config", MountPath: "/one/colour", SubPath: "colour"})
	c.Env = []corev1.EnvVar{{Name: "COLOUR", ValueFrom: &corev1.EnvVarSource{
		ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: ref, Key: "colour"},
	}}}
	c.EnvFrom = []corev1.EnvFromSource{{Prefix: "ALL_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref}}}
	pod = s.Run(t, pod)

	show := func() string {
		return strings.Join(strings.Fields(s.PodExec(t, pod, "", harness.Shell("cat /config/colour; echo; cat /config/shape; echo; cat /one/colour; echo; "+
			"tr '\\0' '\\n' </proc/1/environ | grep -E '^(COLOUR|ALL_colour|ALL_shape)=' | sort")...)), " ")
	}
	if got, want := show(), "red round red ALL_colour=red ALL_shape=round COLOUR=red"; got != want {
		t.Fatalf("the container sees %q, not %q", got, want)
	}
	s.Kubectl(t, "-n", ns, "patch", "configmap", "settings", "-p", `{"data":{"colour":"blue"}}`)
	harness.Eventually(t, 90*time.Second, "the change to reach the container's file", func() error {
		if got := read(t, s, pod, "/config/colour"); got != "blue" {
			return fmt.Errorf("it reads %q", got)
		}
		return nil
	})
	if got, want := show(), "blue round red ALL_colour=red ALL_shape=round COLOUR=red"; got != want {
		t.Errorf("after the change the container sees %q, not %q", got, want)
	}
}

// TestMissingConfigMap: the pod waits for it, says so, and starts when it appears; an optional one is not waited for.
func TestMissingConfigMap(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	source := func(optional bool) corev1.VolumeSource {
		return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "later"}, Optional: &optional}}
	}
	optional := harness.Pod(ns, "optional", "/bin/probe", "sleep")
	mount(optional, "config", source(true))
	s.Run(t, optional)
	needy := harness.Pod(ns, "needy", "/bin/probe", "sleep")
	mount(needy, "config", source(false))
	needy = s.Create(t, needy)
	harness.Eventually(t, 30*time.Second, "the event that says what is missing", func() error {
		out := s.Kubectl(t, "-n", ns, "get", "events", "--field-selector=involvedObject.name=needy,reason=FailedMount", "-o=jsonpath={.items[*].message}")
		if !strings.Contains(out, `configmap "later" not found`) {
			return fmt.Errorf("events say %q", out)
		}
		return nil
	})
	createConfigMap(t, s, ns, "later", map[string]string{"a": "b"})
	needy = s.WaitRunning(t, needy)
	if got := read(t, s, needy, "/config/a"); got != "b" {
		t.Errorf("it reads %q", got)
	}
}

// TestSecret: the files are in memory and have the mode asked for.
func TestSecret(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	s.Kubectl(t, "-n", ns, "create", "secret", "generic", "key", "--from-literal=password=s3cret")
	pod := harness.Pod(ns, "reader", "/bin/probe", "sleep")
	mount(pod, "secret", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "key", DefaultMode: ptr(int32(0o400))}})
	pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "PASSWORD", ValueFrom: &corev1.EnvVarSource{
		SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "key"}, Key: "password"},
	}}}
	pod = s.Run(t, pod)
	got := strings.Fields(s.PodExec(t, pod, "", harness.Shell("cat /secret/password; echo; stat -L -c %a /secret/password; echo $PASSWORD")...))
	if strings.Join(got, " ") != "s3cret 400 s3cret" {
		t.Errorf("content, mode and environment are %q", got)
	}
	if fs := mountType(t, s, pod, "/secret"); fs != "tmpfs" {
		t.Errorf("the Secret is on %q, not in memory", fs)
	}
	if _, errOut, err := s.TryPodExec(t, pod, "", "touch", "/secret/other"); err == nil || !strings.Contains(errOut, "Read-only") {
		t.Errorf("the Secret's volume is writable: %v %s", err, errOut)
	}
}

// TestProjected combines four sources in one directory, a token for another audience among them.
func TestProjected(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	createConfigMap(t, s, ns, "settings", map[string]string{"colour": "red"})
	s.Kubectl(t, "-n", ns, "create", "secret", "generic", "key", "--from-literal=password=s3cret")
	pod := harness.Pod(ns, "reader", "/bin/probe", "sleep")
	mount(pod, "all", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"},
			Items: []corev1.KeyToPath{{Key: "colour", Path: "deep/down/colour"}}}},
		{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "key"}}},
		{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "name", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}},
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", Audience: "a-vault", ExpirationSeconds: ptr(int64(1200))}},
	}}})
	pod = s.Run(t, pod)
	for path, want := range map[string]string{"/all/deep/down/colour": "red", "/all/password": "s3cret", "/all/name": "reader"} {
		if got := read(t, s, pod, path); got != want {
			t.Errorf("%s reads %q, not %q", path, got, want)
		}
	}
	parts := strings.Split(read(t, s, pod, "/all/token"), ".")
	if len(parts) != 3 {
		t.Fatalf("the token has %d parts", len(parts))
	}
	claims, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	var token struct {
		Aud      []string `json:"aud"`
		Sub      string   `json:"sub"`
		Exp, Iat int64
		K8s      struct {
			Pod struct{ UID string } `json:"pod"`
		} `json:"kubernetes.io"`
	}
	if err := json.Unmarshal(claims, &token); err != nil {
		t.Fatal(err)
	}
	if len(token.Aud) != 1 || token.Aud[0] != "a-vault" || token.Sub != "system:serviceaccount:"+ns+":default" ||
		token.K8s.Pod.UID != string(pod.UID) || token.Exp-token.Iat != 1200 {
		t.Errorf("the token's claims are %s", claims)
	}
}

// TestDownwardAPI: labels change while the pod runs; limits come as numbers.
func TestDownwardAPI(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := harness.Pod(ns, "reader", "/bin/probe", "sleep")
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: *memory("32Mi"), corev1.ResourceCPU: *memory("250m")}
	mount(pod, "info", corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
		{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
		{Path: "memory", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "main", Resource: "limits.memory", Divisor: *memory("1Mi")}},
		{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "main", Resource: "limits.cpu", Divisor: *memory("1m")}},
	}}})
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	pod.Spec.Containers[0].Env = []corev1.EnvVar{
		field("POD_IP", "status.podIP"), field("NODE", "spec.nodeName"), field("HOST_IP", "status.hostIP"), field("UID", "metadata.uid"),
	}
	pod = s.Run(t, pod)
	env := s.PodExec(t, pod, "", harness.Shell("echo $POD_IP $NODE $HOST_IP $UID")...)
	if want := fmt.Sprintln(pod.Status.PodIP, pod.Spec.NodeName, s.NodeIP, pod.UID); env != want {
		t.Errorf("the environment says %q, not %q", env, want)
	}
	if got := read(t, s, pod, "/info/memory") + " " + read(t, s, pod, "/info/cpu"); got != "32 250" {
		t.Errorf("limits are %q", got)
	}
	if got := read(t, s, pod, "/info/labels"); got != `app="reader"` {
		t.Errorf("labels are %q", got)
	}
	s.Kubectl(t, "-n", ns, "label", "pod", "reader", "new=label")
	harness.Eventually(t, 90*time.Second, "the label to appear in the file", func() error {
		if got := read(t, s, pod, "/info/labels"); !strings.Contains(got, `new="label"`) {
			return fmt.Errorf("labels are %q", got)
		}
		return nil
	})
}
