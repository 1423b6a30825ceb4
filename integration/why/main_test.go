// Package why applies the cases below cases/ on a real server, and checks what `kubelith why` reports about them.
//
// A case is a folder: manifests that a user could apply, and case.yaml with the question and what the answer must be.
// The manifests go into the case's own namespace. setup*.yaml is applied first.
//
// Until the answer is right, the tests ask the library of `kubelith why`, in this process; then the program must give
// the right answer as well.
package why

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"kubelith.io/kubelith/integration/harness"
)

var cluster = harness.NewShared(harness.Options{
	// Volumes that a pod waits for are tried again sooner.
	Args: []string{"--kubelet-arg=sync-frequency=5s"},
})

func TestMain(m *testing.M) {
	harness.Parallel(12) // cases, which wait most of the time: the longest for upstream's timers
	harness.Main(m, cluster)
}

// pause is the least time between two questions of a case: each takes a dozen requests.
const pause = 500 * time.Millisecond

// Case is case.yaml.
type Case struct {
	// Why are the arguments of `kubelith why`, without the namespace: "pod/web". A word in {braces} is replaced by what
	// that kubectl command line prints.
	Why string `json:"why"`
	// Status, Code: the answer. Evidence: texts that must stand in it. Not: codes that no answer may give meanwhile.
	Status   string   `json:"status"`
	Code     string   `json:"code"`
	Evidence []string `json:"evidence"`
	Not      []string `json:"not"`
	// RuledOut are codes that must stand in notBecause.
	RuledOut []string `json:"ruledOut"`
	// Chain is the last object of the chain, as TYPE/NAME or the beginning of one.
	Chain string `json:"chain"`
	// Describe is what a person would have to find in `kubectl describe` of the same object for the same cause.
	Describe string `json:"describe"`
	// Before and Then are kubectl command lines that run before and after the manifests are applied; one behind "! "
	// must be refused. NODE in them is the server's node, NAMESPACE the case's own. After runs when the case is over.
	Before []string `json:"before"`
	Then   []string `json:"then"`
	After  []string `json:"after"`
	// InForce is a kubectl command line that is run until the API server refuses it with the text, before the manifests
	// are applied: what decides about admission takes a second or more until it is in force.
	InForce struct {
		Kubectl string `json:"kubectl"`
		Refusal string `json:"refusal"`
	} `json:"inForce"`
	// Alone: it changes what other cases need, so it runs after them.
	Alone bool `json:"alone"`
	// Files are written to the node before anything is applied, by their paths, and removed afterwards. Such a case
	// runs after the others, alone.
	Files map[string]string `json:"files"`
	// Log is what the server logs when it has noticed the files; nothing is applied before.
	Log string `json:"log"`
	// Wait bounds the time until the answer is right: a duration, 60s if empty.
	Wait string `json:"wait"`
	// Keep is how long the answer must stay the same: a duration, 2s if empty.
	Keep string `json:"keep"`
}

// answer is the part of why's JSON that the cases check.
type answer struct {
	Status   string `json:"status"`
	Code     string `json:"code"`
	Cause    string `json:"cause"`
	Evidence []struct {
		Source string `json:"source"`
		Text   string `json:"text"`
	} `json:"evidence"`
	NotBecause []struct {
		Code string `json:"code"`
	} `json:"notBecause"`
	Remedy []string `json:"remedy"`
	Chain  []struct {
		Type string `json:"type"`
		Name string `json:"name"`
	} `json:"chain"`
}

// exitCodes are why's, by status.
var exitCodes = map[string]int{"healthy": 0, "broken": 3, "progressing": 4, "absent": 5}

func TestCases(t *testing.T) {
	files, err := filepath.Glob("cases/*/case.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	s := cluster.Get(t)
	serveRegistry(t, s)
	apply := newApplier(t, s)
	apply.authority = serveWebhook(t, s)
	var score scores
	var alone []string
	var again retries
	// Those that may take long begin first, so that the others run meanwhile. t.Parallel guarantees no order: the last
	// ones of many begin early.
	wait := func(file string) time.Duration { return duration(t, readCase(t, file).Wait, 0) }
	slices.SortStableFunc(files, func(a, b string) int { return cmp.Compare(wait(b), wait(a)) })
	var beside []harness.Part
	for _, file := range files {
		dir := filepath.Dir(file)
		if c := readCase(t, file); c.Alone || len(c.Files) > 0 {
			alone = append(alone, dir)
			continue
		}
		beside = append(beside, harness.Part{Name: filepath.Base(dir), Run: func(t *testing.T) {
			runCase(firstTry{t, dir, &again}, s, apply, dir, &score)
		}})
	}
	t.Run("all", func(t *testing.T) {
		harness.Together(t, flag.Lookup("test.parallel").Value.(flag.Getter).Get().(int), beside...)
	})
	for _, dir := range again.dirs {
		score.drop(filepath.Base(dir))
	}
	for _, dir := range append(alone, again.dirs...) {
		t.Run(filepath.Base(dir), func(t *testing.T) { runCase(t, s, apply, dir, &score) })
	}
	if path := os.Getenv("KUBELITH_WHY_SCORE"); path != "" {
		if err := os.WriteFile(path, []byte(score.table()), 0o644); err != nil {
			t.Error(err)
		}
	}
}

// retries are the cases that failed among others. Each is run again by itself and must pass then: what a machine that
// is short of CPU does to a probe is not under test.
type retries struct {
	mu   sync.Mutex
	dirs []string
}

// firstTry skips a case that fails, and notes it for another run.
type firstTry struct {
	testing.TB
	dir   string
	again *retries
}

func (t firstTry) failed(text string) {
	t.Helper()
	t.again.mu.Lock()
	t.again.dirs = append(t.again.dirs, t.dir)
	t.again.mu.Unlock()
	t.Skip("is run again by itself: " + text)
}

func (t firstTry) Fatal(args ...any) { t.Helper(); t.failed(fmt.Sprint(args...)) }
func (t firstTry) Fatalf(format string, args ...any) {
	t.Helper()
	t.failed(fmt.Sprintf(format, args...))
}
func (t firstTry) Error(args ...any) { t.Helper(); t.failed(fmt.Sprint(args...)) }
func (t firstTry) Errorf(format string, args ...any) {
	t.Helper()
	t.failed(fmt.Sprintf(format, args...))
}

func runCase(t testing.TB, s *harness.Server, apply *applier, dir string, score *scores) {
	c := readCase(t, filepath.Join(dir, "case.yaml"))
	result := score.begin(filepath.Base(dir), c.Code)
	ns := s.Namespace(t)
	for path, text := range c.Files {
		path = s.Path(path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(path) })
	}
	if c.Log != "" {
		harness.Eventually(t, time.Minute, "the server to notice "+c.Log, func() error {
			if !strings.Contains(s.Logs(), c.Log) {
				return errors.New("it logs nothing of it")
			}
			return nil
		})
	}
	setups, manifests := filesOf(t, dir)
	for _, file := range setups {
		apply.file(t, ns, file)
	}
	run := func(lines []string) {
		for _, line := range lines {
			line, refused := strings.CutPrefix(strings.NewReplacer("NODE", apply.node, "NAMESPACE", ns).Replace(line), "! ")
			if !refused { // what is refused may be a wait, until its end
				line = limits.ReplaceAllStringFunc(line, func(flag string) string {
					return harness.Timeout(duration(t, strings.TrimPrefix(flag, "--timeout="), 0))
				})
			}
			if r := s.TryKubectl(t, append([]string{"-n", ns}, words(line)...)...); (r.Code != 0) != refused {
				t.Fatalf("kubectl %s: exit code %d\n%s%s", line, r.Code, r.Stdout, r.Stderr)
			}
		}
	}
	t.Cleanup(func() { run(c.After) })
	run(c.Before)
	if c.InForce.Kubectl != "" {
		harness.Eventually(t, 30*time.Second, "the API server to refuse: "+c.InForce.Kubectl, func() error {
			r := s.TryKubectl(t, append([]string{"-n", ns}, words(c.InForce.Kubectl)...)...)
			if r.Code == 0 || !strings.Contains(r.Stderr, c.InForce.Refusal) {
				return fmt.Errorf("exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
			}
			return nil
		})
	}
	for _, file := range manifests {
		apply.file(t, ns, file)
	}
	run(c.Then)
	c.Why = strings.ReplaceAll(c.Why, "NODE", apply.node)
	args := whyArgs(t, s, ns, c.Why)
	// The cheapest first: the next is asked only when the answer is right.
	askers := []asker{func() (answer, error) { return askWhy(t, s, args) }}
	if library := libraryFor(t, s, apply.types, ns, args); library != nil {
		askers = []asker{library, askers[0]}
	}
	right := func(a answer, err error) error {
		if err == nil && slices.Contains(c.Not, a.Code) {
			return harness.Permanent(fmt.Errorf("%s must not be given: %s", a.Code, a.Cause))
		}
		return errors.Join(err, c.check(a))
	}
	harness.Eventually(t, duration(t, c.Wait, time.Minute), "the right answer", func() error {
		time.Sleep(pause)
		var err error
		for _, ask := range askers {
			if err = right(ask()); err != nil {
				break
			}
		}
		return err
	})
	time.Sleep(duration(t, c.Keep, 2*time.Second))
	// Not all of the evidence has to stay: a log moves on with the container.
	a, err := askers[0]()
	if err != nil || a.Status != c.Status || a.Code != c.Code {
		t.Fatalf("the answer does not stay: %s %s: %s (%v)", a.Status, a.Code, a.Cause, err)
	}
	result(score, true, describes(t, s, ns, c, args))
	if os.Getenv("KUBELITH_WHY_SHOW") != "" {
		t.Logf("kubelith why %s\n%s", strings.Join(args, " "), s.RunBinary(t, append([]string{"why"}, args...)...).Stdout)
	}
}

// check compares an answer with what the case wants.
func (c Case) check(a answer) error {
	if a.Status != c.Status || a.Code != c.Code {
		return fmt.Errorf("%s %s, want %s %s: %s", a.Status, a.Code, c.Status, c.Code, a.Cause)
	}
	var texts []string
	for _, e := range a.Evidence {
		texts = append(texts, e.Source+": "+e.Text)
	}
	all := strings.Join(texts, "\n")
	for _, want := range c.Evidence {
		if !strings.Contains(all, want) {
			return fmt.Errorf("%q is not in the evidence:\n%s", want, all)
		}
	}
	for _, want := range c.RuledOut {
		if !slices.ContainsFunc(a.NotBecause, func(n struct {
			Code string `json:"code"`
		}) bool {
			return n.Code == want
		}) {
			return fmt.Errorf("%s is not ruled out: %+v", want, a.NotBecause)
		}
	}
	if c.Chain != "" {
		if len(a.Chain) == 0 {
			return fmt.Errorf("no chain, want one to %s", c.Chain)
		}
		if last := a.Chain[len(a.Chain)-1]; !strings.HasPrefix(last.Type+"/"+last.Name, c.Chain) {
			return fmt.Errorf("the chain ends with %s/%s, want %s", last.Type, last.Name, c.Chain)
		}
	}
	if a.Status == "broken" && len(a.Remedy) == 0 {
		return errors.New("it has no remedy")
	}
	return nil
}

// askWhy runs `kubelith why -o json`.
func askWhy(t testing.TB, s *harness.Server, args []string) (a answer, err error) {
	res := s.RunBinary(t, append(append([]string{"why"}, args...), "-o", "json")...)
	if res.Code == 1 {
		return a, fmt.Errorf("kubelith why: %s%s", res.Stdout, res.Stderr)
	}
	if err := json.Unmarshal([]byte(res.Stdout), &a); err != nil {
		return a, harness.Permanent(fmt.Errorf("exit code %d: %w: %s%s", res.Code, err, res.Stdout, res.Stderr))
	}
	if want, ok := exitCodes[a.Status]; !ok || res.Code != want {
		return a, harness.Permanent(fmt.Errorf("exit code %d for %q", res.Code, a.Status))
	}
	return a, nil
}

// describes reports whether `kubectl describe` of the same object alone shows the cause. Only the score is made of it.
func describes(t testing.TB, s *harness.Server, ns string, c Case, args []string) bool {
	expr, err := regexp.Compile(c.Describe)
	if err != nil {
		t.Fatal(err)
	}
	if c.Describe == "" || os.Getenv("KUBELITH_WHY_SCORE") == "" {
		return false
	}
	for _, arg := range args {
		if kind, name, ok := strings.Cut(arg, "/"); ok {
			return expr.MatchString(s.TryKubectl(t, "-n", ns, "describe", kind, name).Stdout)
		}
	}
	return false
}

var (
	braces = regexp.MustCompile(`\{([^}]*)\}`)
	limits = regexp.MustCompile(`--timeout=\d+s`) // kubectl's own
)

// whyArgs returns why's arguments, with the namespace, which NAMESPACE stands for.
func whyArgs(t testing.TB, s *harness.Server, ns, line string) []string {
	line = strings.ReplaceAll(line, "NAMESPACE", ns)
	line = braces.ReplaceAllStringFunc(line, func(command string) string {
		var text string
		harness.Eventually(t, 30*time.Second, command, func() error {
			text = strings.TrimSpace(s.TryKubectl(t, append([]string{"-n", ns}, words(strings.Trim(command, "{}"))...)...).Stdout)
			if text == "" {
				return errors.New("it prints nothing")
			}
			return nil
		})
		return strings.Fields(text)[0]
	})
	if strings.Contains(line, "--all-namespaces") {
		return words(line)
	}
	return append(words(line), "-n", ns)
}

// words splits a command line; what stands in single quotes is one word.
func words(line string) []string {
	var all []string
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			all = append(all, part)
			continue
		}
		all = append(all, strings.Fields(part)...)
	}
	return all
}

func readCase(t testing.TB, file string) Case {
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var c Case
	if err := yaml.UnmarshalStrict(content, &c); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if c.Why == "" || c.Code == "" || exitCodes[c.Status] == 0 && c.Status != "healthy" {
		t.Fatalf("%s: why, code and status are required", file)
	}
	return c
}

func filesOf(t testing.TB, dir string) (setups, manifests []string) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		switch name := filepath.Base(file); {
		case name == "case.yaml":
		case strings.HasPrefix(name, "setup"):
			setups = append(setups, file)
		default:
			manifests = append(manifests, file)
		}
	}
	return setups, manifests
}

func duration(t testing.TB, text string, otherwise time.Duration) time.Duration {
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// applier applies manifests as `kubectl apply --server-side` does, without a process for each.
type applier struct {
	client dynamic.Interface
	mapper *restmapper.DeferredDiscoveryRESTMapper
	// types is mapper with kubectl's short names.
	types meta.RESTMapper
	node  string
	// authority is that of the tests' webhook, as a caBundle.
	authority string
}

func newApplier(t *testing.T, s *harness.Server) *applier {
	d, err := discovery.NewDiscoveryClientForConfig(s.RESTConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := s.Client(t).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 {
		t.Fatalf("want one node, got %+v, %v", nodes, err)
	}
	cached := memory.NewMemCacheClient(d)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(cached)
	return &applier{client: s.Dynamic(t), mapper: mapper, types: restmapper.NewShortcutExpander(mapper, cached, nil), node: nodes.Items[0].Name}
}

// file applies a manifest. NAMESPACE in it is the case's own, CABUNDLE the authority of the tests' webhook. Objects of
// the cluster are deleted with the test.
func (a *applier) file(t testing.TB, ns, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content = bytes.ReplaceAll(content, []byte("NAMESPACE"), []byte(ns))
	content = bytes.ReplaceAll(content, []byte("CABUNDLE"), []byte(a.authority))
	for document := range bytes.SplitSeq(content, []byte("\n---\n")) {
		var o unstructured.Unstructured
		if err := yaml.Unmarshal(document, &o.Object); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if len(o.Object) > 0 {
			a.object(t, ns, path, &o)
		}
	}
}

func (a *applier) object(t testing.TB, ns, path string, o *unstructured.Unstructured) {
	t.Helper()
	gvk := o.GroupVersionKind()
	// A CustomResourceDefinition applied before is served a moment later, and so are policies of admission.
	harness.Eventually(t, 30*time.Second, fmt.Sprintf("%s: %s/%s applied", path, gvk.Kind, o.GetName()), func() error {
		mapping, err := a.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if err != nil {
			a.mapper.Reset()
			return err
		}
		var client dynamic.ResourceInterface = a.client.Resource(mapping.Resource)
		if mapping.Scope.Name() == "namespace" {
			client = a.client.Resource(mapping.Resource).Namespace(ns)
		} else {
			t.Cleanup(func() { client.Delete(context.Background(), o.GetName(), metav1.DeleteOptions{}) })
		}
		text, err := json.Marshal(o)
		if err != nil {
			return err
		}
		force := true
		_, err = client.Patch(t.Context(), o.GetName(), types.ApplyPatchType, text, metav1.PatchOptions{FieldManager: "why-test", Force: &force})
		return err
	})
}

// scores counts, for make why-score.
type scores struct {
	mu  sync.Mutex
	all []*scored
}

type scored struct {
	name, code    string
	why, describe bool
}

// begin adds a case, wrong so far.
func (s *scores) begin(name, code string) (end func(s *scores, why, describe bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entry := &scored{name: name, code: code}
	s.all = append(s.all, entry)
	return func(s *scores, why, describe bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		entry.why, entry.describe = why, describe
	}
}

// drop removes a case that cannot be set up on this machine.
func (s *scores) drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(e *scored) bool { return e.name == name })
}

func (s *scores) table() string {
	slices.SortFunc(s.all, func(a, b *scored) int { return strings.Compare(a.name, b.name) })
	var b strings.Builder
	yes := func(right bool, n *int) string {
		if right {
			*n++
			return "yes"
		}
		return "no"
	}
	why, describe := 0, 0
	fmt.Fprintf(&b, "%-36s %-26s %-5s %s\n", "case", "code", "why", "kubectl describe")
	for _, e := range s.all {
		fmt.Fprintf(&b, "%-36s %-26s %-5s %s\n", e.name, e.code, yes(e.why, &why), yes(e.describe, &describe))
	}
	fmt.Fprintf(&b, "%d cases: kubelith why is right about %d, kubectl describe of the same object has the cause of %d\n", len(s.all), why, describe)
	return b.String()
}
