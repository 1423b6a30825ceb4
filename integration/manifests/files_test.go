package manifests

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

const hello = `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: hello, namespace: demo}
spec:
  selector: {matchLabels: {app: hello}}
  template:
    metadata: {labels: {app: hello}}
    spec:
      containers:
        - {name: hello, image: "kubelith/hello:1"}
`

const demo = "apiVersion: v1\nkind: Namespace\nmetadata: {name: demo, annotations: {kubelith.io/prune: \"true\"}}\n"

// TestFiles: objects come, change, move and go with their files; what stays in a file stays the same object.
func TestFiles(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	put(t, s, "demo.yaml", configMap("demo", "kept", "1")+configMap("demo", "dropped", "1")+hello+"---\n"+demo) // the namespace last
	kept, dropped := value(t, s, "demo", "kept", "1"), value(t, s, "demo", "dropped", "1")
	if kept.Labels[partOf] == "" || kept.Labels[partOf] != dropped.Labels[partOf] {
		t.Errorf("the objects have the sets %q and %q", kept.Labels[partOf], dropped.Labels[partOf])
	}
	s.Kubectl(t, "-n=demo", "wait", "--for=condition=Available", "deployment/hello", harness.Timeout(90*time.Second))
	pod := s.Kubectl(t, "-n=demo", "get", "pods", "-o=name")

	// One value changes and one document goes. The value that another client has set stays.
	s.Kubectl(t, "-n=demo", "patch", "configmap", "kept", "--patch", `{"data": {"theirs": "yes"}}`)
	put(t, s, "demo.yaml", demo+configMap("demo", "kept", "2")+hello)
	if now := value(t, s, "demo", "kept", "2"); now.UID != kept.UID || now.Data["theirs"] != "yes" {
		t.Errorf("after a change it is %+v, before %+v", now, kept)
	}
	gone(t, s, "-n=demo", "configmap/dropped")

	// To another file, to another name.
	put(t, s, "other/moved.yaml", configMap("demo", "kept", "3"))
	put(t, s, "demo.yaml", demo+hello)
	moved := value(t, s, "demo", "kept", "3")
	if err := os.Rename(s.Path(filepath.Join(directory, "demo.yaml")), s.Path(filepath.Join(directory, "renamed.yaml"))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(s.Path(filepath.Join(directory, "renamed.yaml"))) })
	gone(t, s, "-n=kube-system", "configmap/manifest-demo.yaml")
	if now := value(t, s, "demo", "kept", "3"); now.UID != kept.UID || moved.UID != kept.UID || now.Labels[partOf] == kept.Labels[partOf] {
		t.Errorf("moved it is %+v, before %+v", now.ObjectMeta, kept.ObjectMeta)
	}
	if now := s.Kubectl(t, "-n=demo", "get", "pods", "-o=name"); now != pod {
		t.Errorf("the pods were %s and are %s", pod, now)
	}

	// The namespace goes when no file has anything in it.
	remove(t, s, "renamed.yaml")
	gone(t, s, "-n=demo", "deployment/hello")
	harness.Eventually(t, soon, "a word about the namespace", func() error {
		if !strings.Contains(s.Logs(), "cannot delete Namespace demo, which is no longer in it: objects that files still have would be deleted with it") {
			return errors.New("the log has none")
		}
		return nil
	})
	if now := value(t, s, "demo", "kept", "3"); now.UID != kept.UID {
		t.Error("the ConfigMap of the other file was recreated")
	}
	remove(t, s, "other/moved.yaml")
	gone(t, s, "namespace/demo")
	gone(t, s, "-n=kube-system", "configmap", "-l=applyset.kubernetes.io/id="+moved.Labels[partOf])
}

// TestFault: an object that the API refuses is reported with its line; the rest of the file is applied, and nothing of
// it is deleted.
func TestFault(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	before := configMap(ns, "kept", "1")
	put(t, s, "fault.yaml", before+configMap(ns, "dropped", "1"))
	value(t, s, ns, "dropped", "1")

	service := fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: %s}
spec:
  ports:
    - port: 80
      name: web
    - name: other
      port: 81
      %%s
`, ns)
	line := strings.Count(before, "\n") + 11
	put(t, s, "fault.yaml", before+fmt.Sprintf(service, "targetport: web")+configMap(ns, "new", "1"))
	told(t, s, "fault.yaml", line, fmt.Sprintf(`Service %s/web: unknown field spec.ports[port=81,protocol="TCP"].targetport`, ns))
	value(t, s, ns, "new", "1")
	value(t, s, ns, "dropped", "1")

	put(t, s, "fault.yaml", before+fmt.Sprintf(service, "targetPort: Not_A_Port")+configMap(ns, "new", "1"))
	told(t, s, "fault.yaml", line, fmt.Sprintf("Service %s/web: spec.ports[1].targetPort: Invalid value: ", ns))
	put(t, s, "fault.yaml", before+fmt.Sprintf(service, "nodePort: eighty")+configMap(ns, "new", "1"))
	told(t, s, "fault.yaml", line, fmt.Sprintf(`Service %s/web: spec.ports[port=81,protocol="TCP"].nodePort: expected numeric`, ns))
	put(t, s, "fault.yaml", before+"---\napiVersion: example.com/v1\nkind: Nothing\nmetadata: {name: x}\n")
	told(t, s, "fault.yaml", strings.Count(before, "\n")+3, "Nothing x: the API has no kind Nothing in example.com/v1")
	value(t, s, ns, "dropped", "1")

	put(t, s, "fault.yaml", before+fmt.Sprintf(service, "targetPort: web"))
	s.Kubectl(t, "-n="+ns, "wait", "--for=create", "service/web", harness.Timeout(60*time.Second))
	gone(t, s, "-n="+ns, "configmap/dropped", "configmap/new")
	value(t, s, ns, "kept", "1")
}

const things = `apiVersion: example.com/v1
kind: Thing
metadata: {name: one}
spec:
  size: 1
  %s
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com, annotations: {kubelith.io/prune: "true"}}
spec:
  group: example.com
  scope: Cluster
  names: {kind: Thing, plural: things}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}, color: {type: string}}}}}}
`

// TestCustomResource: a kind and an object of it may be in one file, in any order, and no fault is reported meanwhile.
func TestCustomResource(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	put(t, s, "things.yaml", fmt.Sprintf(things, "color: red"))
	s.Kubectl(t, "wait", "--for=create", "customresourcedefinition/things.example.com", harness.Timeout(60*time.Second))
	harness.Eventually(t, soon, "a thing", func() error {
		if res := s.TryKubectl(t, "get", "things.example.com", "one", "-o=jsonpath={.spec.color}"); res.Stdout != "red" {
			return errors.New(res.Stdout + res.Stderr)
		}
		return nil
	})
	silent(t, s, "things.yaml")
	put(t, s, "things.yaml", fmt.Sprintf(things, "colour: red"))
	told(t, s, "things.yaml", 6, "Thing one: unknown field spec.colour")
	remove(t, s, "things.yaml")
	gone(t, s, "customresourcedefinition/things.example.com")
	gone(t, s, "-n=kube-system", "configmap/manifest-things.yaml")
}

// TestNamespacesOfOthers: a namespace that another client created, or that the cluster needs, outlives the file.
func TestNamespacesOfOthers(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	s.Kubectl(t, "-n="+ns, "create", "configmap", "theirs")
	namespace := "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: %s, labels: {example.com/marked: \"%s\"}}\n"
	put(t, s, "namespaces.yaml", configMap(ns, "ours", "1")+fmt.Sprintf(namespace, ns, "yes")+fmt.Sprintf(namespace, "kube-system", "yes"))
	value(t, s, ns, "ours", "1")
	marked := func(want string) {
		t.Helper()
		for _, name := range []string{ns, "kube-system"} {
			harness.Eventually(t, soon, "the label of "+name, func() error {
				got, err := s.Client(t).CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{})
				if err == nil && (got.Labels["example.com/marked"] != want || got.DeletionTimestamp != nil) {
					err = fmt.Errorf("it has %v and is deleted at %v", got.Labels, got.DeletionTimestamp)
				}
				return err
			})
		}
	}
	marked("yes")
	put(t, s, "namespaces.yaml", configMap(ns, "ours", "2")+fmt.Sprintf(namespace, ns, "more")+fmt.Sprintf(namespace, "kube-system", "more"))
	marked("more")
	remove(t, s, "namespaces.yaml")
	gone(t, s, "-n="+ns, "configmap/ours")
	gone(t, s, "-n=kube-system", "configmap/manifest-namespaces.yaml")
	for _, name := range []string{ns, "kube-system"} {
		got, err := s.Client(t).CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || got.DeletionTimestamp != nil || got.Status.Phase != "Active" || got.Labels[partOf] != "" {
			t.Errorf("namespace %s: %+v, %v", name, got, err)
		}
	}
	s.Kubectl(t, "-n="+ns, "get", "configmap", "theirs")
}

// TestKept: the data of a claim outlives the file, and can be taken into a file again.
func TestKept(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	claim := "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data, namespace: %s, labels: {example.com/marked: \"%s\"}}\n" +
		"spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}\n"
	labels := func(why string, right func(*corev1.PersistentVolumeClaim) bool) (claim *corev1.PersistentVolumeClaim) {
		t.Helper()
		harness.Eventually(t, soon, "the claim "+why, func() (err error) {
			claim, err = s.Client(t).CoreV1().PersistentVolumeClaims(ns).Get(t.Context(), "data", metav1.GetOptions{})
			if err == nil && !right(claim) {
				err = fmt.Errorf("it is %+v", claim.ObjectMeta)
			}
			return err
		})
		return claim
	}
	put(t, s, "kept.yaml", configMap(ns, "goes", "1")+fmt.Sprintf(claim, ns, "one"))
	value(t, s, ns, "goes", "1")
	before := labels("in the file", func(c *corev1.PersistentVolumeClaim) bool { return c.Labels[partOf] != "" })
	remove(t, s, "kept.yaml")
	gone(t, s, "-n="+ns, "configmap/goes")
	gone(t, s, "-n=kube-system", "configmap/manifest-kept.yaml")
	labels("without the file", func(c *corev1.PersistentVolumeClaim) bool {
		return c.Labels[partOf] == "" && c.DeletionTimestamp == nil
	})
	put(t, s, "kept.yaml", fmt.Sprintf(claim, ns, "two"))
	if after := labels("again", func(c *corev1.PersistentVolumeClaim) bool {
		return c.Labels["example.com/marked"] == "two" && c.Labels[partOf] != ""
	}); after.UID != before.UID {
		t.Error("it is another claim")
	}
}

// TestKubectl: kubectl takes the parent for an ApplySet, leaves it alone while it is ours, and knows its members.
func TestKubectl(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	put(t, s, "set.yaml", configMap(ns, "a", "1")+configMap("default", "set-b", "1")+
		"---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: set-c}\nrules: []\n")
	value(t, s, ns, "a", "1")
	value(t, s, "default", "set-b", "1")
	prune := func() harness.Result {
		cmd := s.KubectlCommand("apply", "-n=kube-system", "--prune", "--applyset=configmap/manifest-set.yaml", "--dry-run=server", "-f=-")
		cmd.Env = append(os.Environ(), "KUBECTL_APPLYSET=true")
		cmd.Stdin = strings.NewReader("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\n")
		out, err := cmd.CombinedOutput()
		res := harness.Result{Stdout: string(out)}
		if err != nil {
			res.Code = 1
		}
		return res
	}
	if res := prune(); res.Code == 0 || !strings.Contains(res.Stdout, `is managed by tooling "kubelith" instead of "kubectl"`) {
		t.Errorf("kubectl would take the set over: %s", res.Stdout)
	}
	// As if it were kubectl's: now it reads the id, the kinds and the namespaces, and finds the members.
	harness.Eventually(t, soon, "kubectl to find the members", func() error {
		s.Kubectl(t, "-n=kube-system", "annotate", "--overwrite", "configmap", "manifest-set.yaml", "applyset.kubernetes.io/tooling=kubectl/v1")
		res := prune()
		for _, want := range []string{"configmap/a pruned", "configmap/set-b pruned", "clusterrole.rbac.authorization.k8s.io/set-c pruned"} {
			if res.Code != 0 || !strings.Contains(res.Stdout, want) {
				return fmt.Errorf("no %q in: %s", want, res.Stdout)
			}
		}
		return nil
	})
	// Another client's parent is not touched, whatever the file has.
	put(t, s, "set.yaml", configMap(ns, "a", "2"))
	harness.Eventually(t, soon, "a refusal", func() error {
		if want := directory + "/set.yaml: another client created ConfigMap kube-system/manifest-set.yaml"; !strings.Contains(s.Logs(), want) {
			return errors.New("the log does not say: " + want)
		}
		return nil
	})
	value(t, s, ns, "a", "1")
	s.Kubectl(t, "-n=kube-system", "annotate", "--overwrite", "configmap", "manifest-set.yaml", "applyset.kubernetes.io/tooling=kubelith/v1")
	value(t, s, ns, "a", "2")
	gone(t, s, "-n=default", "configmap/set-b")
	gone(t, s, "clusterrole/set-c")
}

// TestBroken: while a file is not valid YAML no object is deleted, whichever file it left; once it is fixed, it is.
func TestBroken(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{NoTestImage: true})
	put(t, s, "a.yaml", configMap("default", "a", "1")+configMap("default", "b", "1"))
	put(t, s, "c.yaml", configMap("default", "c", "1"))
	a, c := value(t, s, "default", "a", "1"), value(t, s, "default", "c", "1")
	value(t, s, "default", "b", "1")

	put(t, s, "a.yaml", configMap("default", "a", "2")+"---\napiVersion: v1\nkind: \"ConfigMap\nmetadata:")
	told(t, s, "a.yaml", 8, "not valid YAML: ")
	remove(t, s, "c.yaml")
	put(t, s, "d.yaml", configMap("default", "d", "1"))
	value(t, s, "default", "d", "1") // other files are applied
	put(t, s, "a.yaml", "")
	harness.Eventually(t, soon, "a word about the empty file", func() error {
		if !strings.Contains(s.Logs(), directory+"/a.yaml: has no objects: delete the file") {
			return errors.New("the log has none")
		}
		return nil
	})
	harness.Consistently(t, 3*time.Second, "all objects", func() error {
		for name, uid := range map[string]any{"a": a.UID, "c": c.UID} {
			got, err := s.Client(t).CoreV1().ConfigMaps("default").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || any(got.UID) != uid || got.Data["value"] != "1" {
				return fmt.Errorf("%s: %+v, %v", name, got, err)
			}
		}
		return nil
	})
	s.Restart(t)
	value(t, s, "default", "c", "1")
	put(t, s, "a.yaml", configMap("default", "a", "3"))
	if now := value(t, s, "default", "a", "3"); now.UID != a.UID {
		t.Error("a was recreated")
	}
	gone(t, s, "-n=default", "configmap/b")
	gone(t, s, "-n=default", "configmap/c")
	value(t, s, "default", "d", "1")
}

// TestRestart: a server catches up on what happened to the files while none ran, and recreates what a user deleted by
// hand, embedded objects too.
func TestRestart(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{NoTestImage: true})
	const role = "system:aggregated-metrics-reader"
	s.Kubectl(t, "wait", "--for=create", "clusterrole/"+role, harness.Timeout(60*time.Second))
	put(t, s, "a.yaml", configMap("default", "a", "1")+configMap("default", "b", "1")+configMap("default", "by-hand", "1"))
	put(t, s, "gone.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: gone, annotations: {kubelith.io/prune: \"true\"}}\n"+configMap("gone", "c", "1"))
	a := value(t, s, "default", "a", "1")
	value(t, s, "gone", "c", "1")
	s.Kubectl(t, "delete", "clusterrole/"+role, "configmap/by-hand")
	s.Stop(t)
	remove(t, s, "gone.yaml")
	put(t, s, "a.yaml", configMap("default", "a", "2")+configMap("default", "by-hand", "1"))
	put(t, s, "new.yaml", configMap("default", "new", "1"))
	s.Launch(t)
	s.WaitReady(t)
	if now := value(t, s, "default", "a", "2"); now.UID != a.UID {
		t.Error("a was recreated")
	}
	value(t, s, "default", "new", "1")
	value(t, s, "default", "by-hand", "1")
	gone(t, s, "-n=default", "configmap/b")
	gone(t, s, "namespace/gone")
	harness.Eventually(t, soon, "the embedded object, and the parents of the files that are there", func() error {
		if res := s.TryKubectl(t, "get", "clusterrole/"+role); res.Code != 0 {
			return errors.New(res.Stderr)
		}
		if parents := s.Kubectl(t, "-n=kube-system", "get", "configmaps", "-l=applyset.kubernetes.io/id", "-o=jsonpath={.items[*].metadata.name}"); parents != "embedded-metrics-reader.yaml embedded-runtimeclasses.yaml manifest-a.yaml manifest-new.yaml" {
			return fmt.Errorf("the parents are %s", parents)
		}
		return nil
	})
	info, err := os.Stat(s.Path(directory))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", info, err)
	}
	if strings.Contains(s.Logs(), " error component=manifests ") {
		t.Error("the log has errors of the component")
	}
}
