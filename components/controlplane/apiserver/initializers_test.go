package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/components/controlplane/apiserver/initializers"
)

// caller sends requests as a user does with curl: JSON, and nothing of upstream's types.
type caller struct {
	t    *testing.T
	http *http.Client
	base string
}

// master has all rights, and is not the apiserver itself.
func master(t *testing.T) *rest.Config {
	return serve(t).Config("kubelith-super-admin", "system:masters")
}

func call(t *testing.T, c *rest.Config) caller {
	t.Helper()
	h, err := rest.HTTPClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	return caller{t, h, c.Host}
}

// do returns the status and the document of an answer.
func (c caller) do(method, path, contentType, body string) (int, map[string]any) {
	c.t.Helper()
	code, text := c.raw(method, path, contentType, body)
	var document map[string]any
	if err := json.Unmarshal(text, &document); err != nil {
		c.t.Errorf("%s %s: %v: %s", method, path, err, text)
	}
	return code, document
}

func (c caller) raw(method, path, contentType, body string) (int, []byte) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.base+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("Content-Type", contentType)
	answer, err := c.http.Do(r)
	if err != nil {
		c.t.Errorf("%s %s: %v", method, path, err)
		return 0, []byte("{}")
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		c.t.Error(err)
	}
	return answer.StatusCode, text
}

const (
	configurationsPath = "/apis/admissionregistration.k8s.io/v1alpha1/initializerconfigurations"
	asJSON             = "application/json"
	strategic          = "application/strategic-merge-patch+json"
	include            = "?includeUninitialized=true"
)

// configure creates a configuration, and deletes it at the end of the test. The type is being created when the server
// is ready for the first time.
func configure(t *testing.T, name string, resources []string, initializerNames ...string) {
	t.Helper()
	c := call(t, master(t))
	var list []map[string]any
	for _, n := range initializerNames {
		list = append(list, map[string]any{"name": n, "rules": []any{map[string]any{"apiGroups": []string{"*"}, "apiVersions": []string{"*"}, "resources": resources}}})
	}
	body, err := json.Marshal(map[string]any{"apiVersion": "admissionregistration.k8s.io/v1alpha1", "kind": "InitializerConfiguration",
		"metadata": map[string]any{"name": name}, "initializers": list})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "create "+name, func() error {
		if code, answer := c.do(http.MethodPost, configurationsPath+"?fieldValidation=Strict", asJSON, string(body)); code != http.StatusCreated {
			return fmt.Errorf("%d: %v", code, answer)
		}
		return nil
	})
	t.Cleanup(func() {
		r, err := http.NewRequest(http.MethodDelete, c.base+configurationsPath+"/"+name, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := c.http.Do(r)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Errorf("delete %s: %v, %v", name, answer, err)
		}
	})
}

func configMap(name string) string {
	return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `"}}`
}

func mapsIn(ns string) string { return "/api/v1/namespaces/" + ns + "/configmaps" }

func stateIn(object map[string]any) any {
	metadata, _ := object["metadata"].(map[string]any)
	return metadata["initializers"]
}

func text(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

// creating is a creator that waits.
type creating struct {
	done   chan struct{}
	code   int
	answer map[string]any
}

func (c caller) create(path, body string) *creating {
	r := &creating{done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.code, r.answer = c.do(http.MethodPost, path, asJSON, body)
	}()
	return r
}

func (c *creating) waits() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

func (c *creating) result(t *testing.T) (int, map[string]any) {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(time.Minute):
		t.Fatal("the creator waits for more than a minute")
	}
	return c.code, c.answer
}

// appear waits until a hidden object is there, and returns it.
func (c caller) appear(path string) (object map[string]any) {
	c.t.Helper()
	eventually(c.t, "a hidden object", func() error {
		code, o := c.do(http.MethodGet, path+include, asJSON, "")
		if code != http.StatusOK {
			return fmt.Errorf("%d: %v", code, o)
		}
		object = o
		return nil
	})
	return object
}

// comes is how long an event may take that has to come, and silence how long none comes where there should be none.
const comes, silence = 20 * time.Second, 300 * time.Millisecond

// events are what a watch sends, as TYPE NAME; none within patience is empty.
func events(t *testing.T, c rest.Interface, ns, version string) (next func(patience time.Duration) string, stop func()) {
	t.Helper()
	w, err := c.Get().Namespace(ns).Resource("configmaps").VersionedParams(&metav1.ListOptions{Watch: true, ResourceVersion: version, FieldSelector: "metadata.name!=kube-root-ca.crt"}, metav1.ParameterCodec).Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return func(patience time.Duration) string {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				return "closed"
			}
			if o, ok := e.Object.(metav1.Object); ok {
				return string(e.Type) + " " + o.GetName()
			}
			return fmt.Sprint(e)
		case <-time.After(patience):
			return ""
		}
	}, w.Stop
}

// TestInitializers is the life of an object with two initializers.
func TestInitializers(t *testing.T) {
	ns, c, cs := namespace(t, "initializers"), call(t, master(t)), clientFor(t, master(t))
	configure(t, "two", []string{"configmaps"}, "first.example.com", "second.example.com")
	before, err := cs.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	next, stop := events(t, cs.CoreV1().RESTClient(), ns, before.ResourceVersion)
	defer stop()

	creator := c.create(mapsIn(ns), configMap("a"))
	object := c.appear(mapsIn(ns) + "/a")
	if got := text(stateIn(object)); got != `{"pending":[{"name":"first.example.com"},{"name":"second.example.com"}]}` {
		t.Errorf("the list is %s", got)
	}
	if strings.Contains(text(object["metadata"].(map[string]any)["annotations"]), "kubelith") {
		t.Errorf("an annotation is shown: %v", object)
	}
	if code, _ := c.do(http.MethodGet, mapsIn(ns)+"/a", asJSON, ""); code != http.StatusNotFound {
		t.Errorf("get: %d", code)
	}
	list, err := cs.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("list: %v, %v", list, err)
	}
	if _, all := c.do(http.MethodGet, mapsIn(ns)+include, asJSON, ""); !strings.Contains(text(all), `"initializers":{"pending"`) {
		t.Errorf("a list with %s: %v", include, all)
	}
	if code, answer := c.do(http.MethodPost, mapsIn(ns), asJSON, configMap("a")); code != http.StatusConflict {
		t.Errorf("create again: %d %v", code, answer)
	}

	patch := func(kind, body string) (int, map[string]any) {
		return c.do(http.MethodPatch, mapsIn(ns)+"/a", kind, body)
	}
	if code, answer := patch(strategic, `{"metadata":{"initializers":{"pending":[{"$patch":"delete","name":"second.example.com"}]}}}`); code != http.StatusUnprocessableEntity || !strings.Contains(text(answer), `only the first initializer, \"first.example.com\", can be removed`) {
		t.Errorf("remove the second: %d %v", code, answer)
	}
	if code, answer := patch(strategic, `{"metadata":{"initializers":null}}`); code != http.StatusUnprocessableEntity {
		t.Errorf("remove both: %d %v", code, answer)
	}
	if code, answer := patch(strategic, `{"data":{"by":"first"},"metadata":{"initializers":{"pending":[{"$patch":"delete","name":"first.example.com"}]}}}`); code != http.StatusOK || text(stateIn(answer)) != `{"pending":[{"name":"second.example.com"}]}` {
		t.Errorf("the first is done: %d %v", code, answer)
	}
	if !creator.waits() {
		t.Fatal("the creator did not wait for the second")
	}
	if e := next(silence); e != "" {
		t.Errorf("a watch sees %s", e)
	}
	if code, answer := patch("application/json-patch+json", `[{"op":"test","path":"/metadata/initializers/pending/0/name","value":"second.example.com"},{"op":"remove","path":"/metadata/initializers/pending/0"}]`); code != http.StatusOK || stateIn(answer) != nil {
		t.Errorf("the second is done: %d %v", code, answer)
	}
	code, answer := creator.result(t)
	if code != http.StatusCreated || text(answer["data"]) != `{"by":"first"}` || stateIn(answer) != nil {
		t.Errorf("the creator gets %d %v", code, answer)
	}
	if e := next(comes); e != "ADDED a" {
		t.Errorf("a watch sees %q", e)
	}
	if e := next(silence); e != "" {
		t.Errorf("a watch sees %s, too", e)
	}
	if code, answer := patch(strategic, `{"metadata":{"initializers":{"pending":[{"name":"third.example.com"}]}}}`); code != http.StatusUnprocessableEntity {
		t.Errorf("hide it again: %d %v", code, answer)
	}
	// A watch that resumes before the object appeared sees it appear, too.
	again, stopAgain := events(t, cs.CoreV1().RESTClient(), ns, before.ResourceVersion)
	defer stopAgain()
	if first, second := again(comes), again(silence); first != "ADDED a" || second != "" {
		t.Errorf("a watch that resumes sees %q, %q", first, second)
	}
}

// TestInitializersOfAllForms: each way to create, and to finish, an object.
func TestInitializersOfAllForms(t *testing.T) {
	ns, c := namespace(t, "initializers-forms"), call(t, master(t))
	configure(t, "forms", []string{"configmaps"}, "one.example.com")
	get := func(name string) string { return text(c.appear(mapsIn(ns) + "/" + name)) }
	for name, tc := range map[string]struct {
		finish func(name string) (int, map[string]any)
	}{
		"put-null": {func(name string) (int, map[string]any) {
			o := c.appear(mapsIn(ns) + "/" + name)
			delete(o["metadata"].(map[string]any), "initializers")
			return c.do(http.MethodPut, mapsIn(ns)+"/"+name, asJSON, text(o))
		}},
		"put-empty": {func(name string) (int, map[string]any) {
			o := c.appear(mapsIn(ns) + "/" + name)
			o["metadata"].(map[string]any)["initializers"] = map[string]any{"pending": []any{}}
			return c.do(http.MethodPut, mapsIn(ns)+"/"+name, asJSON, text(o))
		}},
		"put-yaml": {func(name string) (int, map[string]any) {
			return c.do(http.MethodPut, mapsIn(ns)+"/"+name, "application/yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: "+name+", initializers: {pending: []}}\n")
		}},
		"merge": {func(name string) (int, map[string]any) {
			return c.do(http.MethodPatch, mapsIn(ns)+"/"+name, "application/merge-patch+json", `{"metadata":{"initializers":{"pending":[]}}}`)
		}},
		"merge-null": {func(name string) (int, map[string]any) {
			return c.do(http.MethodPatch, mapsIn(ns)+"/"+name, "application/merge-patch+json", `{"metadata":{"initializers":null}}`)
		}},
		"json-patch": {func(name string) (int, map[string]any) {
			return c.do(http.MethodPatch, mapsIn(ns)+"/"+name, "application/json-patch+json", `[{"op":"remove","path":"/metadata/initializers"}]`)
		}},
		"apply": {func(name string) (int, map[string]any) {
			return c.do(http.MethodPatch, mapsIn(ns)+"/"+name+"?fieldManager=test&force=true", "application/apply-patch+yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: "+name+", initializers: {pending: []}}\n")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			creator := c.create(mapsIn(ns), configMap(name))
			get(name)
			if code, answer := tc.finish(name); code != http.StatusOK {
				t.Errorf("%d %v", code, answer)
			}
			if code, answer := creator.result(t); code != http.StatusCreated || answer["metadata"].(map[string]any)["name"] != name {
				t.Errorf("the creator gets %d %v", code, answer)
			}
		})
	}
	finish := func(path string) {
		t.Helper()
		if code, answer := c.do(http.MethodPatch, path, "application/merge-patch+json", `{"metadata":{"initializers":null}}`); code != http.StatusOK {
			t.Errorf("%d %v", code, answer)
		}
	}
	t.Run("created by server-side apply", func(t *testing.T) {
		path := mapsIn(ns) + "/applied"
		creator := &creating{done: make(chan struct{})}
		go func() {
			defer close(creator.done)
			creator.code, creator.answer = c.do(http.MethodPatch, path+"?fieldManager=test", "application/apply-patch+yaml", configMap("applied"))
		}()
		c.appear(path)
		if !creator.waits() {
			t.Error("the creator does not wait")
		}
		finish(path)
		if code, answer := creator.result(t); code != http.StatusCreated || stateIn(answer) != nil {
			t.Errorf("the creator gets %d %v", code, answer)
		}
	})
	t.Run("with a generated name", func(t *testing.T) {
		creator := c.create(mapsIn(ns), `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"generated-"}}`)
		var name string
		eventually(t, "see it", func() error {
			_, list := c.do(http.MethodGet, mapsIn(ns)+include, asJSON, "")
			for _, item := range list["items"].([]any) {
				if n := item.(map[string]any)["metadata"].(map[string]any)["name"].(string); strings.HasPrefix(n, "generated-") {
					name = n
					return nil
				}
			}
			return fmt.Errorf("%v", list)
		})
		finish(mapsIn(ns) + "/" + name)
		if code, answer := creator.result(t); code != http.StatusCreated || answer["metadata"].(map[string]any)["name"] != name {
			t.Errorf("the creator gets %d %v", code, answer)
		}
	})
	t.Run("a creator that does not wait", func(t *testing.T) {
		code, answer := c.do(http.MethodPost, mapsIn(ns)+include, asJSON, configMap("early"))
		if code != http.StatusCreated || text(stateIn(answer)) != `{"pending":[{"name":"one.example.com"}]}` {
			t.Errorf("%d %v", code, answer)
		}
		finish(mapsIn(ns) + "/early")
	})
	t.Run("dry run", func(t *testing.T) {
		code, answer := c.do(http.MethodPost, mapsIn(ns)+"?dryRun=All", asJSON, configMap("dry"))
		if code != http.StatusCreated || stateIn(answer) == nil {
			t.Errorf("%d %v", code, answer)
		}
		if code, _ := c.do(http.MethodGet, mapsIn(ns)+"/dry"+include, asJSON, ""); code != http.StatusNotFound {
			t.Errorf("it is stored: %d", code)
		}
	})
	t.Run("an administrator passes by", func(t *testing.T) {
		code, answer := c.do(http.MethodPost, mapsIn(ns)+"?fieldValidation=Strict", asJSON, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"passed","initializers":{"pending":[]}}}`)
		if code != http.StatusCreated || stateIn(answer) != nil {
			t.Errorf("%d %v", code, answer)
		}
	})
	t.Run("protobuf", func(t *testing.T) {
		cs := clientFor(t, master(t)) // in memory, as the components
		done := make(chan error, 1)
		go func() {
			created, err := cs.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "binary"}}, metav1.CreateOptions{})
			if err == nil && (created.Data["a"] != "b" || len(created.Annotations) > 0) {
				err = fmt.Errorf("got %v", created)
			}
			done <- err
		}()
		c.appear(mapsIn(ns) + "/binary")
		c.do(http.MethodPatch, mapsIn(ns)+"/binary", strategic, `{"data":{"a":"b"},"metadata":{"initializers":null}}`)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Run("a watch that includes it", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+mapsIn(ns)+include+"&watch=true&fieldSelector=metadata.name%3Dwatched", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", asJSON)
		answer, err := c.http.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		creator := c.create(mapsIn(ns), configMap("watched"))
		c.appear(mapsIn(ns) + "/watched")
		finish(mapsIn(ns) + "/watched")
		creator.result(t)
		d := json.NewDecoder(answer.Body)
		for _, want := range []string{`ADDED {"pending":[{"name":"one.example.com"}]}`, "MODIFIED null"} {
			var e struct {
				Type   string
				Object map[string]any
			}
			if err := d.Decode(&e); err != nil {
				t.Fatal(err)
			}
			if got := e.Type + " " + text(stateIn(e.Object)); got != want {
				t.Errorf("an event is %s, want %s", got, want)
			}
		}
	})
}

// TestInitializersRights: who may do what with a hidden object.
func TestInitializersRights(t *testing.T) {
	ns, c, cs := namespace(t, "initializers-rights"), call(t, master(t)), admin(t)
	configure(t, "rights", []string{"configmaps", "persistentvolumeclaims", "services"}, "one.example.com")
	editor := call(t, serve(t).Config("editor"))
	allow := func(name string, rules ...rbacv1.PolicyRule) {
		t.Helper()
		if _, err := cs.RbacV1().Roles(ns).Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "editor"}}}
		if _, err := cs.RbacV1().RoleBindings(ns).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// The creator may not even get what it creates.
	allow("editor", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"create", "update", "patch", "delete"}})
	eventually(t, "the editor's rights", func() error {
		if code, answer := editor.do(http.MethodPost, mapsIn(ns)+"?dryRun=All", asJSON, configMap("x")); code != http.StatusCreated {
			return fmt.Errorf("%d %v", code, answer)
		}
		return nil
	})
	creator := editor.create(mapsIn(ns), configMap("a"))
	c.appear(mapsIn(ns) + "/a")
	if code, answer := editor.do(http.MethodPatch, mapsIn(ns)+"/a", strategic, `{"data":{"a":"b"}}`); code != http.StatusForbidden || !strings.Contains(text(answer), "update to uninitialized resource denied") {
		t.Errorf("an update: %d %v", code, answer)
	}
	if code, answer := editor.do(http.MethodPost, mapsIn(ns), asJSON, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b","initializers":{"pending":[]}}}`); code != http.StatusForbidden {
		t.Errorf("passing by: %d %v", code, answer)
	}
	allow("initialize", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{initializers.Verb}})
	eventually(t, "the right to initialize", func() error {
		if code, answer := editor.do(http.MethodPatch, mapsIn(ns)+"/a", strategic, `{"metadata":{"initializers":null}}`); code != http.StatusOK {
			return fmt.Errorf("%d %v", code, answer)
		}
		return nil
	})
	if code, answer := creator.result(t); code != http.StatusCreated {
		t.Errorf("the creator gets %d %v", code, answer)
	}

	t.Run("a failure", func(t *testing.T) {
		creator := c.create(mapsIn(ns), configMap("failed"))
		c.appear(mapsIn(ns) + "/failed")
		code, answer := c.do(http.MethodPatch, mapsIn(ns)+"/failed", "application/merge-patch+json",
			`{"metadata":{"initializers":{"result":{"status":"Failure","reason":"Forbidden","code":403,"message":"no such ConfigMaps here"}}}}`)
		if code != http.StatusOK {
			t.Errorf("%d %v", code, answer)
		}
		if code, answer := creator.result(t); code != http.StatusForbidden || answer["message"] != "no such ConfigMaps here" {
			t.Errorf("the creator gets %d %v", code, answer)
		}
		if code, answer := c.do(http.MethodGet, mapsIn(ns)+"/failed"+include, asJSON, ""); code != http.StatusNotFound {
			t.Errorf("it is still there: %d %v", code, answer)
		}
	})
	t.Run("deleted with a finalizer", func(t *testing.T) {
		path := "/api/v1/namespaces/" + ns + "/persistentvolumeclaims"
		creator := c.create(path, `{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"p","finalizers":["example.com/keep"]},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`)
		c.appear(path + "/p")
		if code, answer := c.do(http.MethodDelete, path+"/p", asJSON, `{"propagationPolicy":"Foreground"}`); code != http.StatusOK {
			t.Errorf("%d %v", code, answer)
		}
		if code, answer := creator.result(t); code != http.StatusInternalServerError || !strings.Contains(text(answer), "was deleted before it was initialized") {
			t.Errorf("the creator gets %d %v", code, answer)
		}
		if code, _ := c.do(http.MethodGet, path+"/p"+include, asJSON, ""); code != http.StatusNotFound {
			t.Errorf("it is still there: %d", code)
		}
	})
	t.Run("a Service keeps its address while its creator waits", func(t *testing.T) {
		path := "/api/v1/namespaces/" + ns + "/services"
		creator := c.create(path, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"s"},"spec":{"ports":[{"port":80}]}}`)
		hidden := c.appear(path + "/s")
		address := hidden["spec"].(map[string]any)["clusterIP"].(string)
		taken := `{"apiVersion":"v1","kind":"Service","metadata":{"name":"thief","initializers":{"pending":[]}},"spec":{"clusterIP":"` + address + `","ports":[{"port":80}]}}`
		if code, answer := c.do(http.MethodPost, path, asJSON, taken); code != http.StatusUnprocessableEntity {
			t.Errorf("its address is given away: %d %v", code, answer)
		}
		if code, _ := c.do(http.MethodDelete, path+"/s", asJSON, ""); code != http.StatusOK {
			t.Error("it cannot be deleted")
		}
		creator.result(t)
		eventually(t, "the address is free", func() error {
			if code, answer := c.do(http.MethodPost, path, asJSON, taken); code != http.StatusCreated {
				return fmt.Errorf("%d %v", code, answer)
			}
			return nil
		})
	})
	t.Run("status of a hidden object", func(t *testing.T) {
		path := "/api/v1/namespaces/" + ns + "/services"
		creator := c.create(path, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"st"},"spec":{"ports":[{"port":80}]}}`)
		c.appear(path + "/st")
		if code, answer := c.do(http.MethodPatch, path+"/st/status", "application/merge-patch+json", `{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"}]}}}`); code != http.StatusNotFound {
			t.Errorf("%d %v", code, answer)
		}
		c.do(http.MethodDelete, path+"/st", asJSON, "")
		creator.result(t)
	})
	t.Run("with its collection", func(t *testing.T) {
		creator := c.create(mapsIn(ns), configMap("collected"))
		c.appear(mapsIn(ns) + "/collected")
		if code, answer := c.do(http.MethodDelete, mapsIn(ns)+"?fieldSelector=metadata.name%3Dcollected", asJSON, ""); code != http.StatusOK {
			t.Errorf("%d %v", code, answer)
		}
		creator.result(t)
		if code, _ := c.do(http.MethodGet, mapsIn(ns)+"/collected"+include, asJSON, ""); code != http.StatusNotFound {
			t.Errorf("it is still there: %d", code)
		}
	})
}

// TestInitializersPages: a page of a list is full, whatever is hidden between its objects.
func TestInitializersPages(t *testing.T) {
	ns, c := namespace(t, "initializers-pages"), call(t, master(t))
	configure(t, "pages", []string{"configmaps"}, "one.example.com")
	for i := range 20 {
		path, body := mapsIn(ns)+include, configMap(fmt.Sprintf("m%02d", i))
		if i%2 == 0 {
			path, body = mapsIn(ns), strings.Replace(body, `"metadata":{`, `"metadata":{"initializers":{"pending":[]},`, 1)
		}
		if code, answer := c.do(http.MethodPost, path, asJSON, body); code != http.StatusCreated {
			t.Fatalf("%d %v", code, answer)
		}
	}
	for _, tc := range []struct {
		query string
		want  int
	}{{"", 10}, {"&includeUninitialized=true", 20}, {"&resourceVersion=0", 10}} {
		var names []string
		for token, pages := "", 0; ; pages++ {
			_, list := c.do(http.MethodGet, mapsIn(ns)+"?limit=4&continue="+token+tc.query, asJSON, "")
			items, _ := list["items"].([]any)
			for _, item := range items {
				names = append(names, item.(map[string]any)["metadata"].(map[string]any)["name"].(string))
			}
			token, _ = list["metadata"].(map[string]any)["continue"].(string)
			if token == "" {
				break
			}
			if len(items) != 4 || pages > 10 {
				t.Fatalf("%q: a page of %d objects", tc.query, len(items))
			}
		}
		if slices.Sort(names); len(slices.Compact(slices.Clone(names))) != tc.want || len(names) != tc.want {
			t.Errorf("%q: %v", tc.query, names)
		}
	}
}

// TestBadConfigurations: as upstream validated them, and no name twice.
func TestBadConfigurations(t *testing.T) {
	configure(t, "good", []string{"nothing"}, "one.example.com") // the type exists
	c := call(t, master(t))
	rule := func(r string) string { return `[{"name":"a.example.com","rules":[` + r + `]}]` }
	for name, tc := range map[string]struct{ list, want string }{
		"a short name":     {`[{"name":"short"}]`, "initializers[0].name: Invalid value"},
		"no name":          {`[{"rules":[]}]`, "initializers[0].name"},
		"one name twice":   {`[{"name":"a.example.com"},{"name":"a.example.com"}]`, `initializers[1].name: Duplicate value: \"a.example.com\"`},
		"no groups":        {rule(`{"apiVersions":["v1"],"resources":["pods"]}`), "initializers[0].rules[0].apiGroups: Required value"},
		"no versions":      {rule(`{"apiGroups":[""],"resources":["pods"]}`), "initializers[0].rules[0].apiVersions: Required value"},
		"no resources":     {rule(`{"apiGroups":[""],"apiVersions":["v1"]}`), "initializers[0].rules[0].resources: Required value"},
		"all and one":      {rule(`{"apiGroups":["*","apps"],"apiVersions":["v1"],"resources":["pods"]}`), "initializers[0].rules[0].apiGroups: Invalid value"},
		"an empty version": {rule(`{"apiGroups":[""],"apiVersions":[""],"resources":["pods"]}`), "initializers[0].rules[0].apiVersions[0]: Required value"},
		"a subresource":    {rule(`{"apiGroups":[""],"apiVersions":["v1"],"resources":["pods/status"]}`), "subresources have no initializers"},
		"no list":          {`"a.example.com"`, "initializers"},
		"an unknown field": {`[{"name":"a.example.com","failurePolicy":"Fail"}]`, `unknown field \"initializers[0].failurePolicy\"`},
	} {
		t.Run(name, func(t *testing.T) {
			body := `{"apiVersion":"admissionregistration.k8s.io/v1alpha1","kind":"InitializerConfiguration","metadata":{"name":"bad"},"initializers":` + tc.list + `}`
			code, answer := c.do(http.MethodPost, configurationsPath+"?fieldValidation=Strict", asJSON, body)
			if code < 400 || code > 499 || !strings.Contains(text(answer), tc.want) {
				t.Errorf("%d %v, want %s", code, text(answer), tc.want)
			}
		})
	}
	ns := namespace(t, "initializers-bad")
	configure(t, "active", []string{"configmaps"}, "one.example.com")
	for name, tc := range map[string]struct{ state, want string }{
		"an unknown field": {`{"pending":[],"next":1}`, `unknown field \"next\"`},
		"a short name":     {`{"pending":[{"name":"short"}]}`, "metadata.initializers.pending[0].name"},
		"one name twice":   {`{"pending":[{"name":"a.example.com"},{"name":"a.example.com"}]}`, "Duplicate value"},
		"no failure":       {`{"pending":[],"result":{"status":"Success"}}`, `must be \"Failure\"`},
		"text":             {`"a"`, "metadata.initializers"},
	} {
		t.Run("object with "+name, func(t *testing.T) {
			code, answer := c.do(http.MethodPost, mapsIn(ns), asJSON, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","initializers":`+tc.state+`}}`)
			if code < 400 || code > 499 || !strings.Contains(text(answer), tc.want) {
				t.Errorf("%d %v, want %s", code, text(answer), tc.want)
			}
		})
	}
}

// TestInitializersWatches: 1,000 objects are initialized while watches come and go. Each watch resumes where the last
// one ended, and together they see each object appear once, and nothing of it before.
func TestInitializersWatches(t *testing.T) {
	const objects = 1000
	ns, cs, c := namespace(t, "initializers-watches"), clientFor(t, master(t)), call(t, master(t))
	configure(t, "watches", []string{"configmaps"}, "one.example.com")
	list, err := cs.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var watchers sync.WaitGroup
	for _, pause := range []time.Duration{3 * time.Millisecond, 20 * time.Millisecond, 200 * time.Millisecond, time.Hour} {
		watchers.Go(func() {
			seen, version := map[string]int{}, list.ResourceVersion
			for deadline := time.Now().Add(8 * time.Minute); len(seen) < objects && time.Now().Before(deadline); {
				w, err := cs.CoreV1().ConfigMaps(ns).Watch(t.Context(), metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
				if err != nil {
					t.Error(err)
					return
				}
				end := time.After(min(pause, time.Until(deadline)))
			events:
				for len(seen) < objects {
					select {
					case e, ok := <-w.ResultChan():
						if !ok {
							break events
						}
						o, ok := e.Object.(*corev1.ConfigMap)
						if !ok {
							t.Errorf("%v", e)
							return
						}
						version = o.ResourceVersion
						if e.Type == watch.Bookmark {
							continue
						}
						if seen[o.Name]++; e.Type != watch.Added || o.Data["done"] != "true" {
							t.Errorf("%s %s %v", e.Type, o.Name, o.Data)
							return
						}
					case <-end:
						break events
					}
				}
				w.Stop()
			}
			for i := range objects {
				if n := seen[fmt.Sprintf("m%d", i)]; n != 1 {
					t.Errorf("watches of %s: m%d was seen %d times", pause, i, n)
					return
				}
			}
		})
	}
	// The initializer follows what it has to do; on a busy machine the server may end its watch, too.
	names := make(chan string)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		defer close(names)
		version, told := list.ResourceVersion, map[string]bool{}
		for len(told) < objects && ctx.Err() == nil {
			work, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+mapsIn(ns)+include+"&watch=true&resourceVersion="+version, nil)
			if err != nil {
				t.Error(err)
				return
			}
			work.Header.Set("Accept", asJSON)
			stream, err := c.http.Do(work)
			if err != nil {
				if ctx.Err() == nil {
					t.Error(err)
				}
				return
			}
			for d := json.NewDecoder(stream.Body); len(told) < objects; {
				var e struct {
					Type   string
					Object map[string]any
				}
				if d.Decode(&e) != nil {
					break
				}
				meta, ok := e.Object["metadata"].(map[string]any)
				if !ok || e.Type == "ERROR" {
					t.Errorf("%v", e)
					stream.Body.Close()
					return
				}
				version = meta["resourceVersion"].(string)
				if name, _ := meta["name"].(string); e.Type == "ADDED" && stateIn(e.Object) != nil && !told[name] {
					told[name] = true
					names <- name
				}
			}
			stream.Body.Close()
		}
	}()
	var workers, creators sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for name := range names {
				if code, answer := c.do(http.MethodPatch, mapsIn(ns)+"/"+name, strategic, `{"data":{"done":"true"},"metadata":{"initializers":null}}`); code != http.StatusOK {
					t.Errorf("%d %v", code, answer)
				}
			}
		})
	}
	for k := range 20 {
		creators.Go(func() {
			for i := k; i < objects; i += 20 {
				m, err := cs.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m%d", i)}}, metav1.CreateOptions{})
				if err != nil || m.Data["done"] != "true" {
					t.Errorf("m%d: %v, %v", i, m, err)
					return
				}
			}
		})
	}
	creators.Wait()
	if t.Failed() {
		cancel() // what it waits for does not come
	}
	workers.Wait()
	watchers.Wait()
}

// TestInitializersNever: the creator gets the name of an initializer that never comes. See sweep_test.go for the
// object.
func TestInitializersNever(t *testing.T) {
	ns := namespace(t, "initializers-never")
	configure(t, "never", []string{"configmaps"}, "never.example.com")
	c := call(t, master(t))
	// The request's own timeout is shorter than the wait.
	code, answer := c.do(http.MethodPost, mapsIn(ns)+"?timeout=1s", asJSON, configMap("a"))
	if code != http.StatusGatewayTimeout || !strings.Contains(text(answer), `initializer \"never.example.com\"`) {
		t.Errorf("%d %v", code, answer)
	}
	if code, _ := c.do(http.MethodGet, mapsIn(ns)+"/a"+include, asJSON, ""); code != http.StatusOK {
		t.Errorf("it is not stored: %d", code)
	}
	c.do(http.MethodDelete, mapsIn(ns)+"/a", asJSON, "")
}

// TestInitializersSweep: an object whose initializer never came is deleted after a day, with an Event, and one that is
// younger stays.
func TestInitializersSweep(t *testing.T) {
	ns, cs, c := namespace(t, "initializers-sweep"), admin(t), call(t, master(t))
	configure(t, "sweep", []string{"configmaps"}, "never.example.com")
	for _, name := range []string{"a", "b"} {
		if code, answer := c.do(http.MethodPost, mapsIn(ns)+include, asJSON, strings.Replace(configMap(name), `"name"`, `"finalizers":["example.com/keep"],"name"`, 1)); code != http.StatusCreated {
			t.Fatalf("%d %v", code, answer)
		}
	}
	sweep := func(after time.Duration) {
		t.Helper()
		if err := shared.server.initializers.Sweep(t.Context(), serve(t).Config(client.APIServer), time.Now().Add(after)); err != nil {
			t.Fatal(err)
		}
	}
	there := func(name string) bool {
		code, _ := c.do(http.MethodGet, mapsIn(ns)+"/"+name+include, asJSON, "")
		return code == http.StatusOK
	}
	c.do(http.MethodPatch, mapsIn(ns)+"/b", strategic, `{"metadata":{"initializers":null,"finalizers":null}}`)
	if sweep(23 * time.Hour); !there("a") || !there("b") {
		t.Error("an object that is younger than a day is gone")
	}
	if sweep(25 * time.Hour); there("a") || !there("b") {
		t.Errorf("after a day: a is there: %t, b, which is initialized: %t", there("a"), there("b"))
	}
	eventually(t, "the Event", func() error {
		list, err := cs.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=a,involvedObject.kind=ConfigMap,reason=InitializationTimedOut"})
		if err != nil || len(list.Items) != 1 || !strings.Contains(list.Items[0].Message, `initializer "never.example.com" did not finish within 24h0m0s`) {
			return fmt.Errorf("%v, %v", list, err)
		}
		return nil
	})
}

// TestInitializersChangePods: what is immutable later is mutable while a pod is hidden; invalid changes are refused.
func TestInitializersChangePods(t *testing.T) {
	ns, cs, c := namespace(t, "initializers-pods"), admin(t), call(t, master(t))
	configure(t, "pods", []string{"pods"}, "sidecar.example.com")
	path := "/api/v1/namespaces/" + ns + "/pods"
	creator := c.create(path, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"a","image":"a","resources":{"limits":{"cpu":"1","memory":"1Gi"}}}]}}`)
	if o := c.appear(path + "/p"); o["status"].(map[string]any)["qosClass"] != "Guaranteed" {
		t.Errorf("%v", o)
	}
	patch := func(kind, body string) (int, map[string]any) { return c.do(http.MethodPatch, path+"/p", kind, body) }
	if code, answer := patch(strategic, `{"spec":{"containers":[{"name":"Not A Name","image":"b"}]}}`); code != http.StatusUnprocessableEntity || !strings.Contains(text(answer), "RFC 1123") {
		t.Errorf("an invalid container: %d %v", code, answer)
	}
	if code, answer := patch("application/json-patch+json", `[{"op":"add","path":"/spec/containers/-","value":{"name":"sidecar","image":"b"}},{"op":"remove","path":"/metadata/initializers"}]`); code != http.StatusOK {
		t.Errorf("a sidecar: %d %v", code, answer)
	}
	code, answer := creator.result(t)
	pod, err := cs.CoreV1().Pods(ns).Get(t.Context(), "p", metav1.GetOptions{})
	if code != http.StatusCreated || err != nil {
		t.Fatalf("%d %v, %v", code, answer, err)
	}
	if len(pod.Spec.Containers) != 2 || pod.Spec.Containers[1].Name != "sidecar" || pod.Status.QOSClass != corev1.PodQOSBurstable || pod.Status.Phase != corev1.PodPending {
		t.Errorf("%v %v", pod.Spec.Containers, pod.Status)
	}
	if code, _ := patch(strategic, `{"spec":{"containers":[{"name":"third","image":"c"}]}}`); code != http.StatusUnprocessableEntity {
		t.Errorf("a pod that is visible can be changed: %d", code)
	}
}

// TestInitializersOfCustomTypes: a custom resource is hidden as any other object is.
func TestInitializersOfCustomTypes(t *testing.T) {
	c := call(t, master(t))
	const path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	schema := `{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"size":{"type":"integer","minimum":1}}}}}}`
	if code, answer := c.do(http.MethodPost, path, asJSON, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"boxes.example.com"},
		"spec":{"group":"example.com","scope":"Cluster","names":{"plural":"boxes","kind":"Box"},"versions":[{"name":"v1","served":true,"storage":true,"schema":`+schema+`}]}}`); code != http.StatusCreated {
		t.Fatalf("%d %v", code, answer)
	}
	configure(t, "custom", []string{"boxes"}, "one.example.com")
	const boxes = "/apis/example.com/v1/boxes"
	eventually(t, "the type", func() error {
		if code, answer := c.raw(http.MethodGet, boxes, asJSON, ""); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, answer)
		}
		return nil
	})
	creator := c.create(boxes, `{"apiVersion":"example.com/v1","kind":"Box","metadata":{"name":"a"},"spec":{"size":1}}`)
	c.appear(boxes + "/a")
	if code, _ := c.do(http.MethodGet, boxes+"/a", asJSON, ""); code != http.StatusNotFound {
		t.Errorf("get: %d", code)
	}
	if _, list := c.do(http.MethodGet, boxes, asJSON, ""); len(list["items"].([]any)) != 0 {
		t.Errorf("list: %v", list)
	}
	merge := "application/merge-patch+json"
	if code, answer := c.do(http.MethodPatch, boxes+"/a", merge, `{"spec":{"size":0}}`); code != http.StatusUnprocessableEntity {
		t.Errorf("an invalid change: %d %v", code, answer)
	}
	if code, answer := c.do(http.MethodPatch, boxes+"/a", merge, `{"spec":{"size":2},"metadata":{"initializers":null}}`); code != http.StatusOK {
		t.Errorf("%d %v", code, answer)
	}
	if code, answer := creator.result(t); code != http.StatusCreated || text(answer["spec"]) != `{"size":2}` {
		t.Errorf("the creator gets %d %v", code, answer)
	}
	if code, answer := c.do(http.MethodDelete, path+"/boxes.example.com", asJSON, ""); code != http.StatusOK {
		t.Errorf("%d %v", code, answer)
	}
}

// TestInitializersOfOurOwn: the apiserver's own objects have no initializers: none could act before it is ready.
func TestInitializersOfOurOwn(t *testing.T) {
	ns := namespace(t, "initializers-own")
	configure(t, "own", []string{"*"}, "never.example.com")
	if _, err := clientFor(t, serve(t).Config(client.APIServer)).CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	review := `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`
	if code, answer := call(t, master(t)).do(http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", asJSON, review); code != http.StatusCreated {
		t.Errorf("%d %v", code, answer)
	}
}

// TestPreferredVersion: the custom resource in upstream's group does not change which version of the group clients
// prefer.
func TestPreferredVersion(t *testing.T) {
	c := call(t, master(t))
	eventually(t, "both versions", func() error {
		_, group := c.do(http.MethodGet, "/apis/admissionregistration.k8s.io", asJSON, "")
		if versions := text(group["versions"]); !strings.Contains(versions, "v1alpha1") || text(group["preferredVersion"]) != `{"groupVersion":"admissionregistration.k8s.io/v1","version":"v1"}` {
			return fmt.Errorf("%s", text(group))
		}
		return nil
	})
}
