package manifests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// fake is a cluster in memory.
type fake struct {
	mu      sync.Mutex
	saved   map[string]parent
	objects map[key]*object
	calls   []string         // what was changed, since the last look
	warned  []string         // messages of Events
	refuse  map[string]error // by the name of the object
	next    int
}

type object struct {
	*unstructured.Unstructured
	set        string
	controlled bool
}

func newFake() *fake {
	return &fake{saved: map[string]parent{}, objects: map[key]*object{}, refuse: map[string]error{}}
}

func (f *fake) call(format string, args ...any) {
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
}

func (f *fake) uid() types.UID { f.next++; return types.UID(fmt.Sprint(f.next)) }

func (f *fake) parents(context.Context) (map[string]parent, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.saved), nil
}

func (f *fake) save(_ context.Context, p parent) (types.UID, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.refuse[p.name]; err != nil {
		return "", err
	}
	if p.uid == "" {
		p.uid = f.uid()
	}
	p.kinds, p.namespaces = p.kinds.Clone(), p.namespaces.Clone()
	f.saved[p.name] = p
	return p.uid, nil
}

func (f *fake) drop(_ context.Context, p parent) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.call("drop %s", p.name)
	delete(f.saved, p.name)
	return nil
}

func (f *fake) apply(_ context.Context, d document, partOf string, awaited bool) (reference, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.refuse[d.object.GetName()]; err != nil {
		return reference{}, err
	}
	k := keyOf(d.object)
	o := &object{Unstructured: d.object.DeepCopy(), set: partOf}
	o.SetUID(f.uid())
	if before, ok := f.objects[k]; ok {
		o.SetUID(before.GetUID())
	}
	f.objects[k] = o
	f.call("apply %s%s", describe(d.object), map[bool]string{true: " awaited"}[awaited])
	return reference{o.GetUID(), namespaceOf(d.object)}, nil
}

func (f *fake) setOf(_ context.Context, namespace string) (string, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o, ok := f.objects[key{namespaceKind, "default", namespace}]
	if !ok {
		return "", false, nil
	}
	return o.set, true, nil
}

func (f *fake) members(_ context.Context, p parent) ([]member, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []member
	for k, o := range f.objects {
		if o.set == p.id() && p.kinds.Has(k.GroupKind) && p.namespaces.Has(k.namespace) {
			all = append(all, member{o.Unstructured, o.controlled})
		}
	}
	slices.SortFunc(all, func(a, b member) int { return strings.Compare(describe(a.object), describe(b.object)) })
	return all, nil
}

func (f *fake) remove(_ context.Context, m member) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.call("remove %s", describe(m.object))
	delete(f.objects, keyOf(m.object))
	return nil
}

func (f *fake) release(_ context.Context, m member) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.call("release %s", describe(m.object))
	f.objects[keyOf(m.object)].set = ""
	return nil
}

func (f *fake) warn(_ context.Context, p parent, message string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.warned = append(f.warned, message)
	return nil
}

// took returns what was changed since the last time.
func (f *fake) took() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

// warnings returns the Events since the last time.
func (f *fake) warnings() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	warnings := f.warned
	f.warned = nil
	return warnings
}

func quiet() logrus.FieldLogger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}

// of is a file with an object for each description "Kind name" or "Kind namespace/name". "Kind! name" is to be deleted
// with the file, "Kind? name" to be kept.
func of(name string, objects ...string) file {
	var b strings.Builder
	for _, o := range objects {
		kind, id, _ := strings.Cut(o, " ")
		version := "v1"
		more := ""
		prune := map[byte]string{'!': "true", '?': "false"}[kind[len(kind)-1]]
		kind = strings.TrimRight(kind, "!?")
		if kind == "CustomResourceDefinition" {
			version, more = "apiextensions.k8s.io/v1", "spec: {group: example.com, names: {kind: Thing}}\n"
		}
		if kind == "Thing" {
			version = "example.com/v1"
		}
		meta := "name: " + id
		if ns, name, ok := strings.Cut(id, "/"); ok {
			meta = "namespace: " + ns + ", name: " + name
		}
		if prune != "" {
			meta += ", annotations: {kubelith.io/prune: \"" + prune + "\"}"
		}
		fmt.Fprintf(&b, "apiVersion: %s\nkind: %s\nmetadata: {%s}\n%s---\n", version, kind, meta, more)
	}
	return file{name: name, parent: parentName("manifest-", name), content: []byte(b.String())}
}

// broken is a file that is cut off in the middle.
func broken(name string) file {
	return file{name: name, parent: parentName("manifest-", name), content: []byte("apiVersion: v1\nkind: \"Conf")}
}

// bench is a keeper, its cluster and the test.
type bench struct {
	*testing.T
	*fake
	keeper *keeper
}

func newBench(t *testing.T) bench {
	f := newFake()
	return bench{t, f, newKeeper(f, quiet())}
}

// pass runs a pass that must be complete or not, and must do this to the objects.
func (b bench) pass(complete bool, files []file, want ...string) {
	b.Helper()
	if got := b.keeper.pass(b.Context(), files); got != complete {
		b.Errorf("complete: %t, want %t; Events: %q", got, complete, b.warned)
	}
	if got := b.took(); !reflect.DeepEqual(got, want) {
		b.Errorf("got  %q\nwant %q", got, want)
	}
}

func (b bench) events(want ...string) {
	b.Helper()
	if got := b.warnings(); !reflect.DeepEqual(got, want) {
		b.Errorf("Events %q, want %q", got, want)
	}
}

// restart forgets what the process knows.
func (b *bench) restart() { b.keeper = newKeeper(b.fake, quiet()) }

// TestOrder: definitions and namespaces of all files come first, and what is not served yet is known to come.
func TestOrder(t *testing.T) {
	b := newBench(t)
	files := []file{of("a", "ConfigMap x/a", "Thing t", "Namespace x"), of("b", "Secret x/b", "CustomResourceDefinition things.example.com")}
	b.pass(true, files, "apply CustomResourceDefinition things.example.com", "apply Namespace x", "apply ConfigMap x/a", "apply Thing t awaited", "apply Secret x/b")
	b.pass(true, files) // nothing has changed
	b.pass(true, []file{files[0], of("b", "Secret x/b", "CustomResourceDefinition things.example.com", "ConfigMap c")},
		"apply CustomResourceDefinition things.example.com", "apply Secret x/b", "apply ConfigMap c")
	b.restart()
	b.pass(true, files, "apply CustomResourceDefinition things.example.com", "apply Namespace x", "apply ConfigMap x/a", "apply Thing t awaited", "apply Secret x/b", "remove ConfigMap c")
}

// TestPrune: what is no longer in a file goes, and with the file all of it, also when that went while no server ran.
func TestPrune(t *testing.T) {
	b := newBench(t)
	a := of("a", "ConfigMap a", "CustomResourceDefinition! things.example.com", "Thing t", "Namespace! x", "Secret x/s")
	other := of("b", "ConfigMap b")
	b.pass(true, []file{a, other}, "apply CustomResourceDefinition things.example.com", "apply Namespace x", "apply ConfigMap a", "apply Thing t awaited", "apply Secret x/s", "apply ConfigMap b")
	b.pass(true, []file{of("a", "ConfigMap a"), other}, "apply ConfigMap a",
		"remove Secret x/s", "remove Thing t", "remove Namespace x", "remove CustomResourceDefinition things.example.com")
	if kinds := b.saved["manifest-a"].annotations()[kindsAnnotation]; kinds != "ConfigMap" {
		t.Errorf("the parent records objects of kinds %s", kinds)
	}
	b.restart()
	b.pass(true, []file{other}, "apply ConfigMap b", "remove ConfigMap a", "drop manifest-a")
	b.pass(true, nil, "remove ConfigMap b", "drop manifest-b")
	b.pass(true, nil)
	b.events()
}

// TestKept: an object whose deletion deletes data outlives its file by default, and leaves its set.
func TestKept(t *testing.T) {
	b := newBench(t)
	a := of("a", "PersistentVolumeClaim data", "PersistentVolumeClaim! cache", "Namespace x", "CustomResourceDefinition things.example.com", "Thing t", "Secret? key", "Secret other")
	made := []string{"apply CustomResourceDefinition things.example.com", "apply Namespace x", "apply PersistentVolumeClaim data", "apply PersistentVolumeClaim cache",
		"apply Thing t awaited", "apply Secret key", "apply Secret other"}
	b.pass(true, []file{a}, made...)
	if got := b.keeper.pass(t.Context(), nil); !got {
		t.Errorf("the pass is not complete; Events: %q", b.warned)
	}
	took := b.took()
	slices.Sort(took)
	if want := []string{"drop manifest-a", "release CustomResourceDefinition things.example.com", "release Namespace x", "release PersistentVolumeClaim data",
		"release Secret key", "remove PersistentVolumeClaim cache", "remove Secret other", "remove Thing t"}; !slices.Equal(took, want) {
		t.Errorf("got  %q\nwant %q", took, want)
	}
	b.restart()
	b.pass(true, nil)
	b.events()

	// The file comes back, and wants the namespace deleted now.
	again := of("a", "PersistentVolumeClaim data", "Namespace! x")
	b.pass(true, []file{again}, "apply Namespace x", "apply PersistentVolumeClaim data")
	b.pass(true, []file{of("a", "PersistentVolumeClaim data")}, "apply PersistentVolumeClaim data", "remove Namespace x")
}

// TestFailure: a document that the API refuses keeps the others from nothing but being deleted.
func TestFailure(t *testing.T) {
	b := newBench(t)
	b.pass(true, []file{of("a", "ConfigMap a", "ConfigMap b", "ConfigMap c")}, "apply ConfigMap a", "apply ConfigMap b", "apply ConfigMap c")
	b.refuse["b"] = errors.New("too blue")
	fewer := []file{of("a", "ConfigMap a", "ConfigMap b")}
	b.pass(false, fewer, "apply ConfigMap a")
	b.events("a:5: ConfigMap b: too blue")
	b.pass(false, fewer, "apply ConfigMap a") // tried again, not reported again
	b.events()
	b.refuse["b"] = errors.New("too red")
	b.pass(false, fewer, "apply ConfigMap a")
	b.events("a:5: ConfigMap b: too red")
	delete(b.refuse, "b")
	b.pass(true, fewer, "apply ConfigMap a", "apply ConfigMap b", "remove ConfigMap c")
	b.pass(true, fewer)
	b.refuse["manifest-new"] = errors.New("another client created it")
	b.pass(false, append(fewer, of("new", "ConfigMap d")))
	b.events("new: another client created it")
}

// TestUnreadable: nothing is deleted anywhere while a file cannot be read: it may have taken over what another one
// lost.
func TestUnreadable(t *testing.T) {
	b := newBench(t)
	b.pass(true, []file{of("a", "ConfigMap a"), of("b", "ConfigMap b"), of("c", "ConfigMap c")}, "apply ConfigMap a", "apply ConfigMap b", "apply ConfigMap c")
	b.pass(false, []file{broken("a"), of("b", "ConfigMap d")}, "apply ConfigMap d")
	if warnings := b.warnings(); len(warnings) != 1 || !strings.HasPrefix(warnings[0], "a:2: not valid YAML: ") {
		t.Errorf("Events %q", warnings)
	}
	b.restart()
	b.pass(false, []file{broken("a"), of("b", "ConfigMap d")}, "apply ConfigMap d")
	b.warnings()
	empty := of("a")
	b.pass(false, []file{empty, of("b", "ConfigMap d")}, "apply ConfigMap d")
	b.events("a: has no objects: delete the file to delete the objects that it had")
	unreadable := file{name: "a", parent: "manifest-a", err: errors.New("input/output error")}
	b.pass(false, []file{unreadable, of("b", "ConfigMap d")}, "apply ConfigMap d")
	b.events("a: cannot be read: input/output error")
	b.pass(true, []file{of("a", "ConfigMap a"), of("b", "ConfigMap d")}, "apply ConfigMap a", "apply ConfigMap d", "remove ConfigMap b", "remove ConfigMap c", "drop manifest-c")
}

// TestMove: an object that moves to another file, and a file that gets another name, stay as they are.
func TestMove(t *testing.T) {
	b := newBench(t)
	b.pass(true, []file{of("a", "ConfigMap a", "ConfigMap b"), of("c", "ConfigMap c")}, "apply ConfigMap a", "apply ConfigMap b", "apply ConfigMap c")
	b.pass(true, []file{of("a", "ConfigMap a"), of("c", "ConfigMap b", "ConfigMap c")}, "apply ConfigMap a", "apply ConfigMap b", "apply ConfigMap c")
	b.pass(true, []file{of("a", "ConfigMap a"), of("z", "ConfigMap b", "ConfigMap c")}, "apply ConfigMap b", "apply ConfigMap c", "drop manifest-c")
	// The new file cannot have it yet: it is not deleted in between.
	b.refuse["a"] = errors.New("not now")
	b.pass(false, []file{of("z", "ConfigMap b", "ConfigMap c", "ConfigMap a")}, "apply ConfigMap b", "apply ConfigMap c")
	if b.objects[key{schema.GroupKind{Kind: "ConfigMap"}, "default", "a"}] == nil {
		t.Error("ConfigMap a was deleted")
	}
	delete(b.refuse, "a")
	b.pass(true, []file{of("z", "ConfigMap b", "ConfigMap c", "ConfigMap a")}, "apply ConfigMap b", "apply ConfigMap c", "apply ConfigMap a", "drop manifest-a")
}

// TestNamespaces: those that another client created and those of the cluster are never deleted, nor those in which a
// file has objects.
func TestNamespaces(t *testing.T) {
	b := newBench(t)
	theirs := &object{Unstructured: parsed(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: theirs}\n").object}
	theirs.SetUID("theirs")
	b.objects[keyOf(theirs.Unstructured)] = theirs

	files := []file{of("a", "Namespace theirs", "Namespace! ours", "Namespace! kube-more"), of("b", "ConfigMap ours/c")}
	b.pass(true, files, "apply Namespace theirs", "apply Namespace ours", "apply Namespace kube-more", "apply ConfigMap ours/c")
	b.restart()
	b.pass(true, files, "apply Namespace theirs", "apply Namespace ours", "apply Namespace kube-more", "apply ConfigMap ours/c")

	b.pass(false, []file{of("b", "ConfigMap ours/c")})
	b.events("a: cannot delete Namespace ours, which is no longer in it: objects that files still have would be deleted with it")
	b.pass(true, nil, "remove Namespace ours", "drop manifest-a", "remove ConfigMap ours/c", "drop manifest-b")
}

// TestDefinitions: a kind stays while a file has objects of it.
func TestDefinitions(t *testing.T) {
	b := newBench(t)
	thing := of("b", "Thing t")
	b.pass(true, []file{of("a", "CustomResourceDefinition! things.example.com"), thing}, "apply CustomResourceDefinition things.example.com", "apply Thing t awaited")
	b.pass(false, []file{thing})
	b.events("a: cannot delete CustomResourceDefinition things.example.com, which is no longer in it: objects that files still have would be deleted with it")
	b.pass(true, nil, "remove CustomResourceDefinition things.example.com", "drop manifest-a", "remove Thing t", "drop manifest-b")
}

// TestTwice: an object belongs to the first file that has it; the others are reported, and it outlives any of them.
func TestTwice(t *testing.T) {
	b := newBench(t)
	a, c := of("a", "ConfigMap a"), of("c", "ConfigMap b", "ConfigMap a", "ConfigMap b")
	b.pass(false, []file{a, c}, "apply ConfigMap a", "apply ConfigMap b")
	b.events("c:5: ConfigMap a is already in a:1: remove one of them", "c:9: ConfigMap b is already in c:1: remove one of them")
	c = of("c", "ConfigMap b", "ConfigMap a")
	b.pass(false, []file{a, c}, "apply ConfigMap b")
	b.events("c:5: ConfigMap a is already in a:1: remove one of them")
	b.pass(true, []file{c}, "apply ConfigMap b", "apply ConfigMap a", "drop manifest-a")
	b.pass(true, []file{c})
}

// TestYield: the same object in a file replaces an embedded one, which is back when that goes.
func TestYield(t *testing.T) {
	b := newBench(t)
	ours := of("embedded", "ConfigMap a", "ConfigMap b")
	ours.yields = true
	b.pass(true, []file{ours}, "apply ConfigMap a", "apply ConfigMap b")
	theirs := of("a", "ConfigMap a")
	b.pass(true, []file{theirs, ours}, "apply ConfigMap a", "apply ConfigMap b")
	if of := b.objects[key{schema.GroupKind{Kind: "ConfigMap"}, "default", "a"}].set; of != newParent("manifest-a", "").id() {
		t.Errorf("ConfigMap a belongs to %s", of)
	}
	b.pass(true, []file{theirs, ours})
	b.pass(true, []file{ours}, "apply ConfigMap a", "apply ConfigMap b", "drop manifest-a")
	b.pass(true, []file{ours})
	b.events()
}

// TestControlled: what a controller creates with the labels of its owner (EndpointSlices of a Service) is deleted with
// the owner.
func TestControlled(t *testing.T) {
	b := newBench(t)
	b.pass(true, []file{of("a", "Slice mine")}, "apply Slice mine")
	made := &object{Unstructured: parsed(t, "apiVersion: v1\nkind: Slice\nmetadata: {name: made}\n").object, set: newParent("manifest-a", "").id(), controlled: true}
	b.objects[keyOf(made.Unstructured)] = made
	b.pass(true, []file{of("a", "Slice other")}, "apply Slice other", "remove Slice mine")
}

// TestRun: files that come, change and go are noticed, in directories that come later as well.
func TestRun(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dir, f := filepath.Join(t.TempDir(), "server", "manifests"), newFake()
	s := &Server{opts: Options{Dir: dir, Embedded: os.DirFS(t.TempDir()), Log: quiet()}, watch: fsnotify.NewWatcher}
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error)
	go func() { ended <- s.run(ctx, newKeeper(f, quiet()), sync.OnceFunc(func() { close(ready) })) }()
	<-ready
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", info, err)
	}
	happens := func(want ...string) {
		t.Helper()
		var got []string
		for deadline := time.Now().Add(20 * time.Second); len(got) < len(want) && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			got = append(got, f.took()...)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	one := filepath.Join(dir, "one.yaml")
	write(t, one, string(of("", "ConfigMap a", "ConfigMap b").content))
	happens("apply ConfigMap a", "apply ConfigMap b")
	write(t, one, string(of("", "ConfigMap a").content))
	happens("apply ConfigMap a", "remove ConfigMap b")
	write(t, filepath.Join(dir, "sub", "two.yaml"), string(of("", "ConfigMap c").content))
	happens("apply ConfigMap c")
	write(t, filepath.Join(dir, "sub", "two.yaml"), string(of("", "ConfigMap d").content))
	happens("apply ConfigMap d", "remove ConfigMap c")
	if err := os.Rename(one, filepath.Join(dir, "sub", ".one.yaml")); err != nil {
		t.Fatal(err)
	}
	happens("remove ConfigMap a", "drop manifest-one.yaml")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestRunWithoutWatch: where the host has no inotify instance left, the files are still applied.
func TestRunWithoutWatch(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dir, f := t.TempDir(), newFake()
	write(t, filepath.Join(dir, "a.yaml"), string(of("", "ConfigMap a").content))
	none := func() (*fsnotify.Watcher, error) { return nil, errors.New("too many open files") }
	s := &Server{opts: Options{Dir: dir, Embedded: os.DirFS(t.TempDir()), Log: quiet()}, watch: none}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.run(ctx, newKeeper(f, quiet()), func() {}) }()
	for deadline := time.Now().Add(20 * time.Second); len(f.took()) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the file is not applied")
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
