package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"kubelith.io/kubelith/plugins/sdk"
	"kubelith.io/kubelith/trace/record"
)

// recordedAs is a client whose requests are recorded under its own name.
func recordedAs(t *testing.T, user string) kubernetes.Interface {
	t.Helper()
	cfg := rest.CopyConfig(serve(t).Config(user, "system:masters"))
	cfg.UserAgent = user + "/v1 (test)"
	return clientFor(t, cfg)
}

// history waits until an object's record has what the test wants: answers are recorded after they are written.
func history(t *testing.T, resource, namespace, name string, complete func(record.History) bool) record.History {
	t.Helper()
	var h record.History
	eventually(t, resource+" "+name+" in the record", func() error {
		var ok bool
		if h, ok = shared.recorded.Lookup(resource, namespace, name); !ok || !complete(h) {
			return fmt.Errorf("has %s", lines(h))
		}
		return nil
	})
	return h
}

// lines shows records as "stage name".
func lines(h record.History) []string {
	var all []string
	for _, r := range h.Records {
		all = append(all, strings.TrimSpace(string(r.Stage)+" "+r.Name))
	}
	return all
}

func has(wanted ...string) func(record.History) bool {
	return func(h record.History) bool {
		for _, line := range wanted {
			if !slices.Contains(lines(h), line) {
				return false
			}
		}
		return true
	}
}

func find(t *testing.T, h record.History, stage record.Stage, name string) record.Record {
	t.Helper()
	for _, r := range h.Records {
		if r.Stage == stage && r.Name == name {
			return r
		}
	}
	t.Fatalf("%s %s is not in %q", stage, name, lines(h))
	return record.Record{}
}

func stepOf(r record.Record, name string) *record.Step {
	for i := range r.Steps {
		if r.Steps[i].Name == name {
			return &r.Steps[i]
		}
	}
	return nil
}

func testPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "first", Image: "i"}},
			Containers:     []corev1.Container{{Name: "main", Image: "i"}},
			Volumes: []corev1.Volume{
				{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}},
				{Name: "own", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
					Spec: corev1.PersistentVolumeClaimSpec{
						AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
						Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
					}}}}},
			},
		},
	}
}

// TestRecordPod: the life of a pod, as the API sees it.
func TestRecordPod(t *testing.T) {
	ns := namespace(t, "record-pod")
	cs := recordedAs(t, "pod-writer")
	pods := cs.CoreV1().Pods(ns)
	before := time.Now().UnixNano()
	pod, err := pods.Create(t.Context(), testPod("a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := pods.Bind(t.Context(), &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	status := func(change func(*corev1.PodStatus)) {
		t.Helper()
		p, err := pods.Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		change(&p.Status)
		if _, err := pods.UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	began := metav1.NewTime(time.Now().Add(-10 * time.Second).Truncate(time.Second))
	ended := metav1.NewTime(began.Add(4 * time.Second))
	status(func(s *corev1.PodStatus) {
		s.Phase = corev1.PodRunning
		s.Conditions = append(s.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "ContainersNotReady", Message: "main"})
		s.InitContainerStatuses = []corev1.ContainerStatus{{Name: "first", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ContainerID: "c://1", StartedAt: began, FinishedAt: ended, Reason: "Completed"}}}}
		s.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: ended}}}}
	})
	status(func(s *corev1.PodStatus) { // the container was restarted before the kubelet reported
		s.Conditions[len(s.Conditions)-1].Status, s.Conditions[len(s.Conditions)-1].Reason = corev1.ConditionTrue, ""
		s.Conditions[len(s.Conditions)-1].Message = ""
		s.ContainerStatuses[0].RestartCount = 1
		s.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{
			ContainerID: "c://2", StartedAt: ended, FinishedAt: ended, Reason: "Error", ExitCode: 3}
	})
	if err := pods.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := pods.Delete(t.Context(), "a", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
	h := history(t, "pods", ns, "a", has("phase Deleted"))
	want := []string{
		"request create", "condition PodScheduled", "request create binding", "run first", "run main", "phase Running", "condition Ready",
		"request update status", "request delete", "phase Deleted",
	}
	if !has(want...)(h) {
		t.Errorf("records %q, want %q among them", lines(h), want)
	}
	o := h.Object
	if o.UID != string(pod.UID) || !slices.Equal(o.Claims, []string{"claim", "a-own"}) || !slices.Equal(o.InitContainers, []string{"first"}) || !slices.Equal(o.Containers, []string{"main"}) {
		t.Errorf("described as %+v", o)
	}
	create := find(t, h, record.Request, "create")
	if create.Actor != "pod-writer" || create.Agent != "pod-writer/v1" || create.Code != 201 || create.Version != pod.ResourceVersion || !create.Spec ||
		create.Start < before || create.Duration <= 0 || stepOf(create, "etcd") == nil {
		t.Errorf("create: %+v", create)
	}
	if decode := stepOf(create, "decode"); decode == nil || decode.Offset <= 0 || decode.Offset+decode.Duration > stepOf(create, "etcd").Offset {
		t.Errorf("steps %+v", create.Steps)
	}
	if etcd := stepOf(create, "etcd"); etcd.Offset <= 0 || etcd.Offset+etcd.Duration > create.Duration {
		t.Errorf("etcd: %+v in %s", etcd, create.Duration)
	}
	if bind := find(t, h, record.Request, "create binding"); bind.Spec {
		t.Error("the binding counts as a change of the specification")
	}
	if c := find(t, h, record.Condition, "PodScheduled"); c.Message != "True" || c.Start < create.Start {
		t.Errorf("PodScheduled: %+v", c)
	}
	first := find(t, h, record.Run, "first")
	if first.Start != began.UnixNano() || first.Duration != 4*time.Second || first.Code != 0 || first.Error != "" || first.Message != "Completed" || first.Node != "n1" {
		t.Errorf("the init container: %+v", first)
	}
	if main := find(t, h, record.Run, "main"); main.Code != 3 || main.Error != "exit code 3: Error" {
		t.Errorf("the restarted container: %+v", main)
	}
	var ready []string
	for _, r := range h.Records {
		if r.Stage == record.Condition && r.Name == "Ready" {
			ready = append(ready, r.Message)
		}
	}
	if !slices.Equal(ready, []string{"False: ContainersNotReady: main", "True"}) {
		t.Errorf("Ready: %q", ready)
	}
}

// TestRecordSpec: what counts as a change of the specification, and what is no request worth keeping.
func TestRecordSpec(t *testing.T) {
	ns := namespace(t, "record-spec")
	cs := recordedAs(t, "spec-writer")
	deployments := cs.AppsV1().Deployments(ns)
	labels := map[string]string{"app": "web"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "i"}}}},
	}}
	data, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	data = []byte(strings.Replace(string(data), "{", `{"apiVersion":"apps/v1","kind":"Deployment",`, 1))
	patch := func(kind types.PatchType, data string, sub ...string) {
		t.Helper()
		options := metav1.PatchOptions{FieldManager: "test"}
		if _, err := deployments.Patch(t.Context(), "web", kind, []byte(data), options, sub...); err != nil {
			t.Fatal(err)
		}
	}
	patch(types.ApplyPatchType, string(data))                                                                                  // creates it
	patch(types.ApplyPatchType, string(data))                                                                                  // changes nothing
	patch(types.MergePatchType, `{"metadata":{"annotations":{"revision":"1"}}}`)                                               // counts in its generation only
	patch(types.MergePatchType, `{"spec":{"replicas":3}}`, "scale")                                                            //
	patch(types.MergePatchType, `{"status":{"conditions":[{"type":"Progressing","status":"True","reason":"New"}]}}`, "status") //
	if _, err := deployments.Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"replicas":9}}`), metav1.PatchOptions{DryRun: []string{"All"}}); err != nil {
		t.Fatal(err)
	}
	h := history(t, "deployments.apps", ns, "web", has("request patch status"))
	var got []string
	for _, r := range h.Records {
		got = append(got, fmt.Sprintf("%s %s %v %s", r.Stage, r.Name, r.Spec, r.Message))
	}
	want := []string{"request patch true ", "request patch false ", "request patch scale true ", "condition Progressing false True: New", "request patch status false "}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if h.Object.Replicas == nil || *h.Object.Replicas != 3 {
		t.Errorf("replicas: %v", h.Object.Replicas)
	}
}

// TestRecordFinalizer: an object ends with its last finalizer, whoever removes it.
func TestRecordFinalizer(t *testing.T) {
	ns := namespace(t, "record-finalizer")
	maps := recordedAs(t, "finalizer").CoreV1().ConfigMaps(ns)
	ctx := t.Context()
	if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c", Finalizers: []string{"example.com/keep"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := maps.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "metadata.name=c"}); err != nil {
		t.Fatal(err)
	}
	h := history(t, "configmaps", ns, "c", has("request delete"))
	if has("phase Deleted")(h) {
		t.Error("deleted with a finalizer")
	}
	if _, err := maps.Patch(ctx, "c", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	h = history(t, "configmaps", ns, "c", has("phase Deleted"))
	if want := []string{"request create", "request delete", "phase Deleted", "request patch"}; !slices.Equal(lines(h), want) {
		t.Errorf("got %q, want %q", lines(h), want)
	}
}

// TestRecordRefused: requests that were refused, and why.
func TestRecordRefused(t *testing.T) {
	ns := namespace(t, "record-refused")
	ctx := t.Context()
	cs := recordedAs(t, "refused-writer")
	nobody := clientFor(t, serve(t).Config("nobody-special"))
	outside := &rest.Config{Host: shared.url, Impersonate: rest.ImpersonationConfig{UserName: "nobody-special"},
		TLSClientConfig: rest.TLSClientConfig{CAFile: shared.pki.ClusterCA.Cert, CertFile: shared.pki.Admin.Cert, KeyFile: shared.pki.Admin.Key}}
	protobuf := rest.CopyConfig(outside)
	protobuf.ContentType = runtime.ContentTypeProtobuf
	for name, cs := range map[string]kubernetes.Interface{"in-process": nobody, "json": clientFor(t, outside), "protobuf": clientFor(t, protobuf)} {
		made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{{UID: types.UID("owner of " + name)}}}}
		if _, err := cs.CoreV1().ConfigMaps(ns).Create(ctx, made, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
			t.Fatal(err)
		}
		h := history(t, "configmaps", ns, name, has("request create"))
		denied := find(t, h, record.Request, "create")
		if denied.Actor != "nobody-special" || denied.Code != 403 || !strings.Contains(denied.Error, `User "nobody-special" cannot create resource "configmaps"`) {
			t.Errorf("%s: denied: %+v", name, denied)
		}
		if !slices.Equal(h.Object.Owners, []string{"owner of " + name}) {
			t.Errorf("%s: %+v", name, h.Object)
		}
	}

	made, err := cs.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "old"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stale := made.DeepCopy()
	stale.ResourceVersion, stale.Data = "1", map[string]string{"a": "b"}
	if _, err := cs.CoreV1().ConfigMaps(ns).Update(ctx, stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Fatal(err)
	}
	h := history(t, "configmaps", ns, "old", has("request update"))
	if conflict := find(t, h, record.Request, "update"); conflict.Code != 409 || h.Object.UID != string(made.UID) || conflict.Spec {
		t.Errorf("conflict: %+v of %+v", conflict, h.Object)
	}
	if _, err := nobody.CoreV1().ConfigMaps(ns).Update(ctx, made, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Fatal(err)
	}
	h = history(t, "configmaps", ns, "old", func(h record.History) bool { return len(h.Records) == 3 })
	if h.Object.UID != string(made.UID) {
		t.Errorf("a denied update hides the object: %q", lines(h))
	}

	if _, err := cs.CoreV1().ConfigMaps(ns).Update(ctx, stale, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}}); !apierrors.IsConflict(err) {
		t.Fatal(err)
	}
	if err := cs.CoreV1().ConfigMaps(ns).Delete(ctx, "old", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	if _, err := cs.CoreV1().ConfigMaps(ns).Patch(ctx, "old", types.MergePatchType, []byte(`{"data":{"a":"c"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	h = history(t, "configmaps", ns, "old", has("request patch"))
	if want := []string{"request create", "request update", "request update", "request patch"}; !slices.Equal(lines(h), want) {
		t.Errorf("with dry runs: %q, want %q", lines(h), want)
	}

	// An owner finds what could not be created for it.
	none := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}
	quota, err := cs.CoreV1().ResourceQuotas(ns).Create(ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: none}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	quota.Status = corev1.ResourceQuotaStatus{Hard: none, Used: none} // the controller's part
	if _, err := cs.CoreV1().ResourceQuotas(ns).UpdateStatus(ctx, quota, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	child := testPod("")
	child.GenerateName = "web-"
	child.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "the-owner", Controller: ptr.To(true)}}
	eventually(t, "the quota", func() error {
		if _, err := cs.CoreV1().Pods(ns).Create(ctx, child, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
			return fmt.Errorf("not refused: %v", err)
		}
		return nil
	})
	var owned []record.History
	eventually(t, "the owner's pods", func() error {
		for _, o := range shared.recorded.Owned("the-owner") {
			if o.Object.UID == "" {
				owned = append(owned, o)
				return nil
			}
		}
		return fmt.Errorf("none was refused")
	})
	r := find(t, owned[0], record.Request, "create")
	if owned[0].Object.Name != "web-" || r.Code != 403 || !strings.Contains(r.Error, "quota") {
		t.Errorf("refused: %+v, %+v", owned[0].Object, r)
	}
	if step := stepOf(r, "admission"); step == nil || !slices.ContainsFunc(r.Steps, func(s record.Step) bool {
		return s.Detail == "ResourceQuota (validating)" && strings.Contains(s.Error, "quota")
	}) {
		t.Errorf("steps %+v", r.Steps)
	}
}

// TestRecordSecret: nothing of a Secret's content gets into the record.
func TestRecordSecret(t *testing.T) {
	ns := namespace(t, "record-secret")
	cs := recordedAs(t, "secret-writer")
	const content = "hunter2"
	for name, secret := range map[string]*corev1.Secret{
		"key":  {StringData: map[string]string{"not a key " + content: content}},
		"good": {StringData: map[string]string{"key": content}},
		"type": {Type: corev1.SecretTypeDockerConfigJson, StringData: map[string]string{corev1.DockerConfigJsonKey: content}},
	} {
		secret.Name = name
		_, err := cs.CoreV1().Secrets(ns).Create(t.Context(), secret, metav1.CreateOptions{})
		if (err != nil) != (name != "good") {
			t.Fatal(err)
		}
		h := history(t, "secrets", ns, name, has("request create"))
		text, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), content) {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// TestRecordHooks: calls of webhooks and plugins are separate steps.
func TestRecordHooks(t *testing.T) {
	ns := namespace(t, "record-hooks")
	install(t, sdk.Admission{Validating: []sdk.ValidatingHook{{
		Webhook: registrationv1.ValidatingWebhook{Name: "judge", Rules: configMaps, NamespaceSelector: only(ns)},
		Review: func(_ context.Context, r *admissionv1.AdmissionRequest) sdk.Response {
			if strings.HasPrefix(r.Name, "bad") {
				return sdk.Deny("too bad")
			}
			return sdk.Allow()
		},
	}}})
	webhook := labelServer(t, func(map[string]string) {})
	registerLabel(t, ns, webhook)
	maps := recordedAs(t, "hook-writer").CoreV1().ConfigMaps(ns)
	n := 0
	eventually(t, "the webhook is configured", func() error {
		n++
		made, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("good-%d", n)}}, metav1.CreateOptions{})
		if err == nil && made.Labels["webhook"] == "" {
			err = fmt.Errorf("not called yet")
		}
		return err
	})
	h := history(t, "configmaps", ns, fmt.Sprintf("good-%d", n), has("request create"))
	r := find(t, h, record.Request, "create")
	if s := stepOf(r, "webhook"); s == nil || s.Detail != ns+"/label.example.com" || s.Duration <= 0 || s.Offset <= 0 || s.Error != "" {
		t.Errorf("webhook: %+v", r.Steps)
	}
	if s := stepOf(r, "plugin"); s == nil || s.Detail != "test/judge" || s.Duration <= 0 {
		t.Errorf("plugin: %+v", r.Steps)
	}
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "bad"}}, metav1.CreateOptions{}); err == nil {
		t.Fatal("not denied")
	}
	r = find(t, history(t, "configmaps", ns, "bad", has("request create")), record.Request, "create")
	if s := stepOf(r, "plugin"); s == nil || !strings.Contains(s.Error, "too bad") || !strings.Contains(r.Error, "too bad") {
		t.Errorf("denied: %+v", r)
	}
}

// TestRecordTrace: the client's trace is kept, and goes on to children by the annotation only.
func TestRecordTrace(t *testing.T) {
	ns := namespace(t, "record-trace")
	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	maps := recordedAs(t, "trace-writer").CoreV1().ConfigMaps(ns)
	create := func(name string, annotations map[string]string, owner *corev1.ConfigMap) *corev1.ConfigMap {
		t.Helper()
		o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}
		if owner != nil {
			o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, Controller: ptr.To(true)}}
		}
		made, err := maps.Create(t.Context(), o, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	value := "00-" + trace + "-" + parent + "-01"
	a := create("a", map[string]string{traceAnnotation: value}, nil)
	b := create("b", nil, a)
	c := create("c", map[string]string{traceAnnotation: "00-" + strings.Repeat("1", 32) + "-" + parent + "-01"}, a)
	create("d", nil, b)
	if got := c.Annotations[traceAnnotation]; !strings.Contains(got, "1111") {
		t.Errorf("the child's own annotation was replaced by %s", got)
	}
	for _, name := range []string{"a", "b", "d"} {
		o, err := maps.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || o.Annotations[traceAnnotation] != value {
			t.Errorf("%s: %v, %v", name, o.Annotations, err)
		}
		if h := history(t, "configmaps", ns, name, has("request create")); h.Object.Trace != trace || h.Object.Parent != parent {
			t.Errorf("%s is recorded as %+v", name, h.Object)
		}
	}
	headed := &corev1.ConfigMap{}
	err := admin(t).CoreV1().RESTClient().Post().Namespace(ns).Resource("configmaps").SetHeader("traceparent", value).
		Body(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "h"}}).Do(t.Context()).Into(headed)
	if err != nil {
		t.Fatal(err)
	}
	if h := history(t, "configmaps", ns, "h", has("request create")); h.Object.Trace != trace {
		t.Errorf("by the header: %+v", h.Object)
	}
	if child := create("i", nil, headed); child.Annotations != nil {
		t.Errorf("a child of an object without the annotation was changed: %v", child.Annotations)
	}
}

// TestRecordNoise: reads and heartbeats leave nothing, an Event is a moment of what it is about, and an eviction
// deletes.
func TestRecordNoise(t *testing.T) {
	ns := namespace(t, "record-noise")
	cs := recordedAs(t, "noise-writer")
	ctx := t.Context()
	if _, err := cs.CoreV1().Pods(ns).Create(ctx, testPod("p"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	node, err := cs.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "record-noise"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, status := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionTrue, corev1.ConditionFalse} {
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastHeartbeatTime: metav1.NewTime(node.CreationTimestamp.Add(time.Duration(len(node.ResourceVersion)) * time.Hour))}}
		if node, err = cs.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	pod, err := cs.CoreV1().Pods(ns).Get(ctx, "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cs.CoreV1().Events(ns).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "e"}, Reason: "Pulling", Message: "image", Type: corev1.EventTypeWarning, Source: corev1.EventSource{Component: "kubelet", Host: "n1"},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: ns, Name: "p", UID: pod.UID},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := cs.PolicyV1().Evictions(ns).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: ns}}); err != nil {
		t.Fatal(err)
	}
	h := history(t, "pods", ns, "p", has("request delete"))
	if want := []string{"request create", "event Pulling", "condition DisruptionTarget", "phase Deleted", "request delete"}; !slices.Equal(lines(h), want) {
		t.Errorf("got %q, want %q", lines(h), want)
	}
	if e := find(t, h, record.Event, "Pulling"); e.Error != "image" || e.Actor != "kubelet" || e.Node != "n1" {
		t.Errorf("event: %+v", e)
	}
	h = history(t, "nodes", "", "record-noise", func(h record.History) bool { return len(h.Records) >= 5 })
	want := []string{"request create", "condition Ready", "request update status", "condition Ready", "request update status"}
	if !slices.Equal(lines(h), want) {
		t.Errorf("got %q, want %q", lines(h), want)
	}
	for _, h := range shared.recorded.All("") {
		if slices.Contains([]string{"events", "leases.coordination.k8s.io", "subjectaccessreviews.authorization.k8s.io", "tokenreviews.authentication.k8s.io"}, h.Object.Resource) {
			t.Errorf("%s: %q", h.Object.Resource, lines(h))
		}
	}
}

// TestParseTrace: what is a traceparent, and what is not.
func TestParseTrace(t *testing.T) {
	const id, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	for value, want := range map[string]bool{
		"00-" + id + "-" + span + "-01":                              true,
		"01-" + id + "-" + span + "-01-more":                         true,
		"00-" + id + "-" + span + "-01-more":                         false,
		"01-" + id + "-" + span + "-01-" + strings.Repeat("x", 1000): false,
		"ff-" + id + "-" + span + "-01":                              false,
		"00-" + strings.ToUpper(id) + "-" + span + "-01":             false,
		"00-" + strings.Repeat("0", 32) + "-" + span + "-01":         false,
		"00-" + id + "-" + strings.Repeat("0", 16) + "-01":           false,
		"00-" + id:                          false,
		"":                                  false,
		"00-" + id[1:] + "-" + span + "-01": false,
	} {
		if trace, parent := parseTrace(value); (trace == id && parent == span) != want || !want && trace+parent != "" {
			t.Errorf("%q: %s, %s", value, trace, parent)
		}
	}
}
