package api

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"kubelith.io/kubelith/integration/harness"
)

// tlsServer runs a probe that serves TLS, with a Service in front of it, and returns its CA in base64 and its pod.
func tlsServer(t *testing.T, s *harness.Server, ns, name string, command ...string) (ca string, pod *corev1.Pod) {
	t.Helper()
	caPEM, cert, key := certificate(t, name+"."+ns+".svc")
	_, err := s.Client(t).CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod = harness.Pod(ns, name, append([]string{"/bin/probe"}, command...)...)
	pod.Spec.Volumes = []corev1.Volume{{Name: "certs", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "certs", MountPath: "/certs"}}
	pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 30, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(8443)}}}
	_, err = s.Client(t).CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Selector: pod.Labels, Ports: []corev1.ServicePort{{Port: 443, TargetPort: intstr.FromInt(8443)}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(caPEM), s.Run(t, pod)
}

// webhookConfig is a webhook configuration for ConfigMaps of one namespace.
func webhookConfig(kind, name, ns, path, policy, ca string) string {
	return fmt.Sprintf(`apiVersion: admissionregistration.k8s.io/v1
kind: %s
metadata: {name: %s}
webhooks:
- name: probe.kubelith.io
  clientConfig: {service: {namespace: %s, name: hook, path: %s}, caBundle: %s}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps]}]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %s}}
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: %s
`, kind, name, ns, path, ca, ns, policy)
}

func TestAggregation(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	ca, _ := tlsServer(t, s, ns, "stones", "aggregated", "--group=probe.kubelith.io")
	apply(t, s, "", fmt.Sprintf(`apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.probe.kubelith.io}
spec:
  group: probe.kubelith.io
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 10
  service: {namespace: %s, name: stones}
  caBundle: %s
`, ns, ca))
	t.Cleanup(func() { s.TryKubectl(t, "delete", "apiservice", "v1.probe.kubelith.io") })
	s.Kubectl(t, "wait", "--for=condition=Available", "apiservice/v1.probe.kubelith.io", harness.Timeout(60*time.Second))
	stones := schema.GroupVersionResource{Group: "probe.kubelith.io", Version: "v1", Resource: "stones"}
	got, err := s.Dynamic(t).Resource(stones).Get(t.Context(), "granite", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	spec, _ := got.Object["spec"].(map[string]any)
	if spec["user"] != "kubelith-admin" || !strings.Contains(fmt.Sprint(spec["groups"]), "kubelith:admins") {
		t.Errorf("the aggregated server got the user %v", spec)
	}
	harness.Eventually(t, 20*time.Second, "kubectl to know stones", func() error {
		if res := s.TryKubectl(t, "get", "stones", "-o", "name"); res.Code != 0 || res.Stdout != "stone.probe.kubelith.io/granite\nstone.probe.kubelith.io/basalt\n" {
			return fmt.Errorf("kubectl get stones: %q %s", res.Stdout, res.Stderr)
		}
		return nil
	})
	if _, err := s.Dynamic(t).Resource(stones).Get(t.Context(), "marble", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("an object that does not exist: %v", err)
	}

	// A webhook of the aggregated API, which the API server calls through itself.
	hook := ns + "-stones"
	t.Cleanup(func() { s.TryKubectl(t, "delete", "validatingwebhookconfiguration", hook, "--ignore-not-found") })
	apply(t, s, "", strings.Replace(
		webhookConfig("ValidatingWebhookConfiguration", hook, ns, "/apis/probe.kubelith.io/v1/reviews", "Fail", base64.StdEncoding.EncodeToString(s.RESTConfig(t).CAData)),
		"{namespace: "+ns+", name: hook,", "{namespace: default, name: kubernetes,", 1))
	harness.Eventually(t, 20*time.Second, "the aggregated API to refuse an object", func() error {
		res := s.TryKubectl(t, "-n", ns, "create", "configmap", "stony", "--dry-run=server")
		if !strings.Contains(res.Stderr, "the stones say no to system:apiserver") {
			return fmt.Errorf("kubectl create: %d %s", res.Code, res.Stderr)
		}
		return nil
	})
}

const crd = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]ss.test.kubelith.io}
spec:
  group: test.kubelith.io
  names: {kind: %[2]s, plural: %[1]ss, singular: %[1]s}
  scope: Namespaced
  conversion: {strategy: None}
  versions:
  - name: v1beta1
    served: true
    storage: false
    schema: &schema
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [size]
            x-kubernetes-validations: [{rule: "self.size != 13", message: "13 brings bad luck"}]
            properties:
              size: {type: integer, minimum: 1, maximum: 100}
              colour: {type: string, enum: [red, green], default: red}
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size}}
    schema: *schema
`

func TestCustomResources(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	apply(t, s, "", fmt.Sprintf(crd, "widget", "Widget"))
	t.Cleanup(func() { s.TryKubectl(t, "delete", "crd", "widgets.test.kubelith.io", "--timeout=30s") })
	s.Kubectl(t, "wait", "--for=condition=Established", "crd/widgets.test.kubelith.io", harness.Timeout(30*time.Second))
	widget := func(version, name, spec string) string {
		return fmt.Sprintf("apiVersion: test.kubelith.io/%s\nkind: Widget\nmetadata: {name: %s}\nspec: {%s}\n", version, name, spec)
	}
	harness.Eventually(t, 20*time.Second, "the new resource", func() error {
		if res := s.TryKubectl(t, "-n", ns, "get", "widgets"); res.Code != 0 {
			return fmt.Errorf("%s", res.Stderr)
		}
		return nil
	})
	apply(t, s, ns, widget("v1beta1", "a", "size: 3"), "--server-side")
	if out := s.Kubectl(t, "-n", ns, "get", "widgets.v1.test.kubelith.io", "a", "-o", "jsonpath={.apiVersion} {.spec.size} {.spec.colour}"); out != "test.kubelith.io/v1 3 red" {
		t.Errorf("the other version, with the default: %q", out)
	}
	for spec, want := range map[string]string{
		"size: 0":               "greater than or equal to 1",
		"size: 101":             "less than or equal to 100",
		"size: big":             "must be of type integer",
		"colour: red":           "size: Required value",
		"size: 1, colour: blue": `Unsupported value: "blue"`,
		"size: 13":              "13 brings bad luck",
		"size: 2, weight: 5":    `unknown field "spec.weight"`,
	} {
		mustRefuse(t, s, widget("v1", "bad", spec), want, "-n", ns, "create", "--validate=strict")
	}
	s.Kubectl(t, "-n", ns, "scale", "widget/a", "--replicas=7")
	if out := s.Kubectl(t, "-n", ns, "get", "widget", "a", "-o", "jsonpath={.spec.size}"); out != "7" {
		t.Errorf("after scale the size is %s", out)
	}
	if out := s.Kubectl(t, "explain", "widget.spec"); !strings.Contains(out, "colour") {
		t.Errorf("kubectl explain:\n%s", out)
	}
	s.Kubectl(t, "delete", "crd", "widgets.test.kubelith.io", harness.Timeout(30*time.Second))
	harness.Eventually(t, 20*time.Second, "the resource to go", func() error {
		if res := s.TryKubectl(t, "-n", ns, "get", "widgets"); res.Code == 0 {
			return fmt.Errorf("%s", res.Stdout)
		}
		return nil
	})
}

// TestServerSideApply: two managers, a conflict, and giving up a field.
func TestServerSideApply(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	apply(t, s, ns, configMap("c", "", "a: one, b: two"), "--server-side", "--field-manager=first")
	apply(t, s, ns, configMap("c", "", "a: one, c: three"), "--server-side", "--field-manager=second") // the same value is no conflict
	mustRefuse(t, s, configMap("c", "", "a: other"), `conflict with "first": .data.a`, "-n", ns, "apply", "--server-side", "--field-manager=second")
	apply(t, s, ns, configMap("c", "", "a: other"), "--server-side", "--field-manager=second", "--force-conflicts")
	apply(t, s, ns, configMap("c", "", ""), "--server-side", "--field-manager=first") // b had no other owner
	data := map[string]string{}
	if err := json.Unmarshal([]byte(s.Kubectl(t, "-n", ns, "get", "configmap", "c", "-o", "jsonpath={.data}")), &data); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(data) != "map[a:other]" {
		t.Errorf("the data is %v", data)
	}
	mustRefuse(t, s, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: d}\ndate: {}\n", `unknown field "date"`, "-n", ns, "create", "--validate=strict")
}
