package upgrader

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"kubelith.io/kubelith/host/upgrade"
)

// program is a new release for these tests.
const program = "#!/bin/sh\nexit 0\n"

var programSum = fmt.Sprintf("%x", sha256.Sum256([]byte(program)))

// fakeService runs a script that appends its arguments to a file.
type fakeService struct {
	upgrade.Service
	installed string
}

func (s fakeService) Command() []string { return []string{s.installed, "server"} }

// rig is a node with a request.
type rig struct {
	*node
	t       *testing.T
	indexer cache.Indexer
	client  *fake.Clientset
	fetched int
	said    string // the file that is fetched
}

func newRig(t *testing.T) *rig {
	t.Helper()
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	r := &rig{t: t, indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil), client: fake.NewClientset(object), said: program}
	dir := t.TempDir()
	installed := filepath.Join(dir, "kubelith")
	if err := os.WriteFile(installed, []byte("#!/bin/sh\necho \"$@\" >>"+filepath.Join(dir, "launched")+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	r.node = &node{
		opts: Options{NodeName: "a", DataDir: dir, Log: log, Fetch: func(_ context.Context, sum string, to io.Writer) error {
			r.fetched++
			if sum != programSum {
				return fmt.Errorf("no server has %s", sum)
			}
			_, err := io.WriteString(to, r.said)
			return err
		}},
		client: r.client, nodes: corelisters.NewNodeLister(r.indexer), service: fakeService{installed: installed}, asked: true,
	}
	return r
}

// request sets the annotation of the Node; nil takes it back.
func (r *rig) request(request *Request) {
	r.t.Helper()
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{}}}
	if request != nil {
		text, err := json.Marshal(request)
		if err != nil {
			r.t.Fatal(err)
		}
		object.Annotations[RequestAnnotation] = string(text)
	}
	if err := r.indexer.Update(object); err != nil {
		r.t.Fatal(err)
	}
}

// looks calls look and returns when it wants to look again.
func (r *rig) looks() time.Duration {
	r.t.Helper()
	again, err := r.look(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return again
}

// status is what the Node says.
func (r *rig) status() Status {
	r.t.Helper()
	object, err := r.client.CoreV1().Nodes().Get(r.t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	s, _ := StatusOf(object.Annotations)
	return s
}

// launches returns the arguments of each process that was started, once there are that many.
func (r *rig) launches(want int) []string {
	r.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		text, _ := os.ReadFile(filepath.Join(r.opts.DataDir, "launched"))
		lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
		if len(text) > 0 && len(lines) >= want {
			return lines
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%q was launched, want %d", text, want)
		}
	}
}

// TestUpgrade: a request fetches the program and starts one process, whose result becomes the status; when it is taken
// back, the program goes.
func TestUpgrade(t *testing.T) {
	r := newRig(t)
	if again, err := r.look(t.Context()); again != 0 || err != nil {
		t.Errorf("without a Node: %v, %v", again, err)
	}
	r.request(nil)
	if again := r.looks(); again != 0 || r.status() != (Status{}) {
		t.Errorf("without a request: %v, %+v", again, r.status())
	}
	r.request(&Request{ID: "1", SHA256: programSum, Within: "5m0s"})
	for range 3 { // the process has not taken its lock yet
		if again := r.looks(); again != lookEvery {
			t.Errorf("while the process starts: %v", again)
		}
	}
	want := fmt.Sprintf("upgrade %s --sha256 %s --within 5m0s --result 1", File(r.opts.DataDir, programSum), programSum)
	if got := r.launches(1); len(got) != 1 || got[0] != want || r.fetched != 1 {
		t.Errorf("launched %q, fetched %d times, want %q", got, r.fetched, want)
	}
	if got, err := os.ReadFile(File(r.opts.DataDir, programSum)); err != nil || string(got) != program {
		t.Errorf("the program: %q, %v", got, err)
	}
	if got := r.status(); got.ID != "" {
		t.Errorf("answered before there is a result: %+v", got)
	}
	if err := upgrade.WriteResult(Dir(r.opts.DataDir), upgrade.Result{ID: "1", Error: "it went back"}); err != nil {
		t.Fatal(err)
	}
	if again := r.looks(); again != 0 || r.status() != (Status{ID: "1", Error: "it went back"}) {
		t.Errorf("with a result: %v, %+v", again, r.status())
	}
	r.request(&Request{ID: "2", SHA256: programSum, Within: "5m0s"})
	if r.looks(); len(r.launches(2)) != 2 || r.fetched != 1 { // it is there
		t.Errorf("the next request: fetched %d times", r.fetched)
	}
	r.request(nil)
	if again := r.looks(); again != 0 || r.status() != (Status{}) {
		t.Errorf("taken back: %v, %+v", again, r.status())
	}
	if _, err := os.Stat(Dir(r.opts.DataDir)); !os.IsNotExist(err) {
		t.Errorf("the directory is left: %v", err)
	}
}

// TestUpgradeFails: what cannot be done is answered, once, and nothing is started.
func TestUpgradeFails(t *testing.T) {
	for what, c := range map[string]struct {
		request Request
		before  func(r *rig)
		want    string
	}{
		"no service":        {Request{SHA256: programSum, Within: "1m"}, func(r *rig) { r.cannot = "it is not run by a service" }, "it is not run by a service"},
		"no duration":       {Request{SHA256: programSum, Within: "-1m"}, nil, `"-1m" is not a duration`},
		"no such program":   {Request{SHA256: strings.Repeat("0a", 32), Within: "1m"}, nil, "get the new program: no server has"},
		"another content":   {Request{SHA256: programSum, Within: "1m"}, func(r *rig) { r.said = "spoilt" }, "its sha256 is not the requested one"},
		"ended, no result":  {Request{SHA256: programSum, Within: "1m"}, func(r *rig) { r.launched, r.at = "1", time.Now().Add(-startsWithin) }, "the upgrade ended without a result"},
		"an earlier result": {Request{SHA256: programSum, Within: "x"}, func(r *rig) { r.result("0") }, `"x" is not a duration`},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			if c.before != nil {
				c.before(r)
			}
			c.request.ID = "1"
			r.request(&c.request)
			if again := r.looks(); again != 0 {
				t.Errorf("looks again after %v", again)
			}
			got := r.status()
			if got.ID != "1" || !strings.Contains(got.Error, c.want) {
				t.Errorf("%+v, want %q", got, c.want)
			}
			fetched := r.fetched
			if r.looks(); r.fetched != fetched {
				t.Error("fetched again")
			}
			if _, err := os.Stat(filepath.Join(r.opts.DataDir, "launched")); err == nil {
				t.Error("a process was started")
			}
			parts, _ := filepath.Glob(filepath.Join(Dir(r.opts.DataDir), "*.part"))
			if len(parts) > 0 {
				t.Errorf("left: %v", parts)
			}
		})
	}
}

// result writes one of an earlier request.
func (r *rig) result(id string) {
	r.t.Helper()
	if err := os.MkdirAll(Dir(r.opts.DataDir), 0o700); err != nil {
		r.t.Fatal(err)
	}
	if err := upgrade.WriteResult(Dir(r.opts.DataDir), upgrade.Result{ID: id}); err != nil {
		r.t.Fatal(err)
	}
}

// TestUpgradeUnderWay: while a process upgrades the node, nothing is started and nothing answered.
func TestUpgradeUnderWay(t *testing.T) {
	r := newRig(t)
	r.result("0")
	f, err := os.Create(filepath.Join(Dir(r.opts.DataDir), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	for _, ask := range []bool{false, true} {
		r.request(&Request{ID: "1", SHA256: programSum, Within: "1m", Ask: ask})
		if again := r.looks(); again != lookEvery || r.status().ID != "" || r.fetched > 0 {
			t.Errorf("ask %v: again in %v, %+v, fetched %d times", ask, again, r.status(), r.fetched)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if r.looks(); r.status().ID != "1" { // asks
		t.Errorf("afterwards: %+v", r.status())
	}
}

// TestAsk: a node says whether it has a program, and changes nothing.
func TestAsk(t *testing.T) {
	r := newRig(t)
	text, err := os.ReadFile(r.service.Command()[0])
	if err != nil {
		t.Fatal(err)
	}
	for sum, has := range map[string]bool{fmt.Sprintf("%x", sha256.Sum256(text)): true, programSum: false} {
		r.request(&Request{ID: sum[:4], SHA256: sum, Ask: true})
		if again := r.looks(); again != 0 || r.status() != (Status{ID: sum[:4], Has: has}) {
			t.Errorf("%v: %v, %+v", has, again, r.status())
		}
	}
	if r.fetched > 0 {
		t.Error("a program was fetched")
	}
	r.cannot = "it is not run by a service"
	r.request(&Request{ID: "3", SHA256: fmt.Sprintf("%x", sha256.Sum256(text)), Ask: true})
	if r.looks(); r.status().Has || r.status().Cannot == "" {
		t.Errorf("without a service: %+v", r.status())
	}
}
