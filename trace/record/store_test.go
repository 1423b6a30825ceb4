package record

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

func pod(name string) Ref {
	return Ref{UID: "uid-of-" + name, Resource: "pods", Namespace: "default", Name: name}
}

func took(r Ref, stage Stage, name string, start int64) Record {
	return Record{Object: r, Stage: stage, Name: name, Start: start, Duration: time.Millisecond}
}

func TestLookup(t *testing.T) {
	s := NewStore(Options{})
	now := s.Clock().Now()
	// The kubelet knows a pod by its UID before the store has heard of its name.
	s.Add(took(Ref{UID: "uid-of-web"}, Sandbox, "", now+20))
	s.Add(took(pod("web"), Request, "create", now))
	h, ok := s.Lookup("pods", "default", "web")
	if !ok || h.Object.Ref != pod("web") || len(h.Records) != 2 || h.Records[0].Stage != Request {
		t.Errorf("%v: %+v", ok, h)
	}
	// A new object of the same name.
	again := pod("web")
	again.UID = "other"
	s.Add(took(again, Request, "create", now+40))
	if h, _ := s.Lookup("pods", "default", "web"); h.Object.UID != "other" {
		t.Errorf("the older object: %+v", h.Object)
	}
	if h, ok := s.Get("uid-of-web"); !ok || len(h.Records) != 2 {
		t.Errorf("the older object is gone: %+v", h)
	}
	if _, ok := s.Lookup("pods", "default", "no"); ok {
		t.Error("an object that never was")
	}
}

func TestOwned(t *testing.T) {
	s := NewStore(Options{})
	for i, name := range []string{"b", "a"} {
		s.Describe(Object{Ref: pod(name), Owners: []string{"set"}})
		s.Add(took(pod(name), Request, "create", s.Clock().Now()+int64(i)))
	}
	if owned := s.Owned("set"); len(owned) != 2 || owned[0].Object.Name != "b" {
		t.Errorf("%+v", owned)
	}
}

// TestBounds: whatever is added, the store stays in its bounds, and the newest stays in the store.
func TestBounds(t *testing.T) {
	s := NewStore(Options{Bytes: 200_000})
	for i := range 5000 {
		p := pod(fmt.Sprintf("web-%d", i/10))
		s.Describe(Object{Ref: p, Owners: []string{"set"}, Containers: []string{"web"}})
		s.Add(Record{Object: p, Stage: Event, Name: fmt.Sprint(i), Start: s.Clock().Now(), Message: strings.Repeat("long ", 500)})
		if u := s.Usage(); u.Bytes > u.Limit {
			t.Fatalf("after %d records: %+v", i, u)
		}
	}
	u := s.Usage()
	if u.Dropped == 0 || u.Records == 0 || len(s.Owned("set")) != u.Objects {
		t.Errorf("%+v, owned %d", u, len(s.Owned("set")))
	}
	if _, ok := s.Lookup("pods", "default", "web-499"); !ok {
		t.Error("the newest object is gone")
	}
	if _, ok := s.Lookup("pods", "default", "web-0"); ok {
		t.Error("the oldest object is there")
	}
	var counted int64
	for _, e := range s.objects {
		counted += e.bytes
	}
	if counted != u.Bytes {
		t.Errorf("objects have %d bytes, the store %d", counted, u.Bytes)
	}
	s.opts.Age = -time.Hour
	s.Expire()
	if u := s.Usage(); u.Objects != 0 || u.Bytes != 0 || len(s.names)+len(s.owned) != 0 {
		t.Errorf("after all expired: %+v, %d names, %d owners", u, len(s.names), len(s.owned))
	}
}

// TestOneObject: an object that fails for days keeps how it began and what happened last.
func TestOneObject(t *testing.T) {
	s := NewStore(Options{})
	for i := range 3000 {
		s.Add(took(pod("web"), Start, fmt.Sprint(i), s.Clock().Now()+int64(i)*int64(time.Second)))
	}
	h, _ := s.Lookup("pods", "default", "web")
	if n := len(h.Records); n != maxRecords || h.Records[0].Name != "0" || h.Records[keepFirst-1].Name != "99" || h.Records[n-1].Name != "2999" {
		t.Errorf("%d records, %s to %s", n, h.Records[0].Name, h.Records[n-1].Name)
	}
}

func TestRepeats(t *testing.T) {
	s := NewStore(Options{})
	now := s.Clock().Now()
	for i := range 10 {
		r := took(pod("web"), Event, "BackOff", now+int64(i)*int64(time.Second))
		r.Error = "back-off restarting"
		s.Add(r)
	}
	s.Add(took(pod("web"), Start, "web", now))
	s.Add(took(pod("web"), Start, "web", now+1)) // no repeat: each start counts
	h, _ := s.Lookup("pods", "default", "web")
	if len(h.Records) != 3 {
		t.Fatalf("%d records", len(h.Records))
	}
	for _, r := range h.Records {
		if r.Stage == Event && (r.Count != 10 || r.Start != now || r.Last != now+9*int64(time.Second)) {
			t.Errorf("%+v", r)
		}
	}
}

// TestAgent: what an agent sends again because its count changed is counted once.
func TestAgent(t *testing.T) {
	agent, server := NewStore(Options{}), NewStore(Options{})
	var sent uint64
	send := func() {
		var batch []Record
		batch, sent = agent.Since(sent, 100)
		server.Merge("n1", time.Minute, batch)
	}
	start := agent.Clock().Now()
	for i := range 3 {
		r := took(pod("web"), Probe, "liveness web", start+int64(i))
		r.Error = "exit 1"
		agent.Add(r)
		send()
	}
	h, _ := server.Lookup("pods", "default", "web")
	if len(h.Records) != 1 || h.Records[0].Count != 3 || h.Records[0].Node != "n1" || h.Records[0].Start != start+int64(time.Minute) {
		t.Errorf("%+v", h.Records)
	}
	if more, _ := agent.Since(sent, 100); len(more) != 0 {
		t.Errorf("left: %+v", more)
	}
}

func TestWait(t *testing.T) {
	s := NewStore(Options{})
	s.Add(took(pod("web"), Sandbox, "", s.Clock().Now()))
	if got := s.Wait(t.Context(), 0); got != 1 {
		t.Errorf("there is a record already: %d", got)
	}
	var group sync.WaitGroup
	group.Go(func() {
		if got := s.Wait(t.Context(), 1); got != 2 {
			t.Errorf("the next record: %d", got)
		}
	})
	s.Describe(Object{Ref: pod("web"), Owners: []string{"set"}}) // no record
	s.Add(took(pod("web"), Create, "web", s.Clock().Now()))
	group.Wait()
}

func TestConcurrent(t *testing.T) {
	s := NewStore(Options{Bytes: 300_000}) // more than the one object that always stays may have, and less than all
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for j := range 500 {
				p := pod(fmt.Sprintf("web-%d", (i*j)%50))
				s.Describe(Object{Ref: p, Owners: []string{"set"}})
				s.Add(took(p, Start, "web", s.Clock().Now()))
				s.Lookup("pods", "default", p.Name)
				s.Owned("set")
			}
		})
	}
	group.Wait()
	if u := s.Usage(); u.Bytes > u.Limit {
		t.Errorf("%+v", u)
	}
}

// BenchmarkAdd: a record of a pod's start, 45 of them for each pod, in a store that is full.
func BenchmarkAdd(b *testing.B) {
	s := NewStore(Options{})
	refs := make([]Ref, 2000)
	for i := range refs {
		refs[i] = pod(fmt.Sprintf("web-%d", i))
	}
	now := s.Clock().Now()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r := took(refs[i/45%len(refs)], Start, "web", now+int64(i))
		s.Add(r)
	}
	u := s.Usage()
	b.ReportMetric(float64(u.Bytes)/float64(u.Records), "bytes/record")
}

// TestNameOnly: what is known by its name only is about the object that has it, until that one is gone.
func TestNameOnly(t *testing.T) {
	s := NewStore(Options{})
	refused := Record{Object: Ref{Resource: "pods", Namespace: "a", Name: "p"}, Stage: Request, Name: "patch", Code: 403}
	made := refused
	made.Object.UID, made.Code = "1", 201
	s.Add(made)
	s.Add(refused)
	if h, _ := s.Lookup("pods", "a", "p"); h.Object.UID != "1" || len(h.Records) != 2 {
		t.Errorf("of the object: %+v", h)
	}
	made.Stage, made.Name = Phase, "Deleted"
	s.Add(made)
	s.Add(refused)
	if h, _ := s.Lookup("pods", "a", "p"); h.Object.UID != "" || len(h.Records) != 1 {
		t.Errorf("after it: %+v", h)
	}
	made.Object.UID, made.Stage = "2", Request
	s.Add(made)
	if h, _ := s.Lookup("pods", "a", "p"); h.Object.UID != "2" || len(h.Records) != 1 {
		t.Errorf("of the next one: %+v", h)
	}
}

// TestMadeUp: whatever names clients invent, their memory is counted and bounded.
func TestMadeUp(t *testing.T) {
	s := NewStore(Options{Bytes: 300_000})
	long := strings.Repeat("x", 100_000)
	for i := range 500 {
		r := took(Ref{Resource: fmt.Sprintf("r%d", i), Name: "n"}, Request, fmt.Sprint("delete ", i, long), s.Clock().Now())
		r.Actor, r.Agent, r.Code = fmt.Sprint(i, long), fmt.Sprint(i, long), 403
		r.Steps = []Step{{Name: "authorization", Detail: long, Error: long}}
		s.Add(r)
	}
	u := s.Usage()
	if u.Bytes > u.Limit || u.Records > 200 {
		t.Errorf("%+v", u)
	}
	for _, h := range s.All("") {
		for _, r := range h.Records {
			if len(r.Name) > maxName || len(r.Actor) > maxName || len(r.Agent) > maxName || len(r.Steps[0].Detail) > maxName || len(r.Steps[0].Error) > maxText+3 {
				t.Fatalf("a record has texts of %d, %d and %d bytes", len(r.Name), len(r.Actor), len(r.Steps[0].Error))
			}
		}
	}
}

// TestForeign: an Event names the object that it is about, and may lie.
func TestForeign(t *testing.T) {
	s := NewStore(Options{})
	s.Add(took(pod("web"), Request, "create", s.Clock().Now()))
	lie := pod("web")
	lie.Namespace = "mine"
	s.Add(took(lie, Event, "Lie", s.Clock().Now()))
	s.Add(took(Ref{UID: "secrets/default/key", Resource: "pods", Namespace: "mine", Name: "x"}, Event, "Lie", s.Clock().Now()))
	if u := s.Usage(); u.Objects != 1 || u.Records != 1 {
		t.Errorf("%+v", u)
	}
}

// TestForeignFirst: an Event that lies may be the first that is heard of an object, as after a restart. The API server
// knows better.
func TestForeignFirst(t *testing.T) {
	s := NewStore(Options{})
	elsewhere, madeUp := pod("web"), pod("web")
	elsewhere.Namespace, madeUp.UID = "mine", "made-up"
	s.Add(took(elsewhere, Event, "Lie", s.Clock().Now()))
	s.Describe(Object{Ref: pod("web"), Owners: []string{"set"}})
	s.Add(took(pod("web"), Request, "create", s.Clock().Now()))
	s.Add(took(madeUp, Event, "Lie", s.Clock().Now()))
	s.Describe(Object{Ref: pod("web")})
	h, ok := s.Lookup("pods", pod("web").Namespace, "web")
	if !ok || h.Object.UID != pod("web").UID || len(h.Records) != 1 || h.Records[0].Name != "create" || len(s.Owned("set")) != 1 {
		t.Errorf("%+v", h)
	}
}

// TestOwnersChange: an object that another one has adopted is owned by that one alone.
func TestOwnersChange(t *testing.T) {
	s := NewStore(Options{})
	for i := range 1000 {
		s.Describe(Object{Ref: pod("web"), Owners: []string{fmt.Sprint("set-", i)}})
	}
	if len(s.owned) != 1 || len(s.Owned("set-999")) != 1 {
		t.Errorf("%d owners are indexed", len(s.owned))
	}
}

// TestAhead: an agent whose clock is ahead keeps no object for ever.
func TestAhead(t *testing.T) {
	s := NewStore(Options{})
	s.Merge("n1", 0, []Record{took(pod("web"), Sandbox, "", s.Clock().Now()+int64(1000*time.Hour))})
	s.opts.Age = -time.Second
	if s.Expire(); s.Usage().Objects != 0 {
		t.Errorf("%+v", s.Usage())
	}
}

// start adds what the sources record of the start of a pod, with its Events, as on a server: the texts and steps are as
// long as there.
func start(s *Store, p Ref, now int64) {
	at := now
	add := func(stage Stage, name string, change func(*Record)) {
		at += int64(3 * time.Millisecond)
		r := Record{Object: p, Stage: stage, Name: name, Node: "node-1", Actor: "containerd", Start: at, Duration: 2 * time.Millisecond}
		if change != nil {
			change(&r)
		}
		s.Add(r)
	}
	request := func(r *Record) {
		r.Node, r.Actor, r.Agent, r.Code, r.Version = "", "system:node:node-1", "kubelith/v1.37.1+kubelith (linux/amd64)", 200, fmt.Sprint(at)
		for _, name := range []string{"authentication", "authorization", "flow-control", "decode", "etcd", "response"} {
			r.Steps = append(r.Steps, Step{Name: name, Offset: -1, Duration: time.Microsecond})
		}
		for i := range 14 {
			r.Steps = append(r.Steps, Step{Name: "admission", Detail: fmt.Sprint("AdmissionPlugin", i), Duration: time.Microsecond})
		}
	}
	s.Describe(Object{Ref: p, Owners: []string{"uid-of-set"}, Claims: []string{"data-" + p.Name}, InitContainers: []string{"migrate"}, Containers: []string{"web", "proxy"}})
	add(Request, "create", request)
	add(Schedule, "node-1", func(r *Record) {
		for range 8 {
			r.Steps = append(r.Steps, Step{Name: "filter", Duration: time.Microsecond})
		}
		for i := range 3 {
			r.Scores = append(r.Scores, Score{Node: fmt.Sprint("node-", i), Total: 300, Plugins: map[string]int64{"NodeResourcesFit": 100, "ImageLocality": 0, "TaintToleration": 300}})
		}
	})
	add(Bind, "node-1", func(r *Record) { r.Steps = []Step{{Name: "prebind"}, {Name: "bind"}} })
	add(Sync, Began, nil)
	add(Volume, "NodePublishVolume", func(r *Record) { r.Message = "pvc-b67d85e4-9747-4fc5-a782-09b87b71c9a1" })
	add(CNI, "ADD", func(r *Record) { r.Message = "10.42.0.9" })
	add(Sandbox, "", nil)
	for _, c := range []string{"migrate", "web", "proxy"} {
		add(Pull, "registry.example.com/shop/"+c+":1.2.3", func(r *Record) { r.Steps = make([]Step, 12) })
		add(Create, c, nil)
		add(Start, c, nil)
		for _, reason := range []string{"Pulling", "Pulled", "Created", "Started"} {
			add(Event, reason, func(r *Record) { r.Message = strings.Repeat(reason+" "+c+" ", 8) })
		}
	}
	add(Run, "migrate", func(r *Record) { r.Message = "Completed" })
	add(Hook, "postStart web", nil)
	add(Sync, "create", nil)
	for _, c := range []string{"PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"} {
		add(Condition, c, func(r *Record) { r.Message = "True" })
	}
	for range 4 {
		add(Request, "patch status", request)
	}
}

// TestManyPods: what 500 pods leave, again and again, stays in the bound; and the bound is that of the memory which the
// process uses for it.
func TestManyPods(t *testing.T) {
	heap := func() int64 {
		runtime.GC()
		runtime.GC() // texts that are interned go with the second one
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	s := NewStore(Options{Bytes: 8 << 20})
	for round := range 4 {
		for i := range 500 {
			start(s, pod(fmt.Sprintf("shop-%d-%d", round, i)), s.Clock().Now())
			if u := s.Usage(); u.Bytes > u.Limit {
				t.Fatalf("after %d pods: %+v", i, u)
			}
		}
	}
	u, used := s.Usage(), heap()-before
	t.Logf("%d records of %d objects, dropped %d: %d bytes counted, %d on the heap", u.Records, u.Objects, u.Dropped, u.Bytes, used)
	if u.Dropped == 0 || u.Bytes < u.Limit*9/10 {
		t.Errorf("the store is not full: %+v", u)
	}
	if used > u.Limit*11/10 {
		t.Errorf("%d bytes are on the heap, the bound is %d", used, u.Limit)
	}
	runtime.KeepAlive(s)
}

// TestHistoryStays: what a reader has got stays as it was, whatever is recorded meanwhile.
func TestHistoryStays(t *testing.T) {
	s := NewStore(Options{})
	now := s.Clock().Now()
	for i := range 20 {
		s.Add(took(pod("web"), Start, fmt.Sprint(i), now+int64(i)*int64(time.Second)))
	}
	event := Record{Object: pod("web"), Stage: Event, Name: "BackOff", Start: now + int64(time.Minute)}
	s.Add(event)
	one, _ := s.Lookup("pods", "default", "web")
	all := s.All("pods")[0]
	before := fmt.Sprint(one)
	event.Start++
	s.Add(event)                                                        // it is counted
	s.Add(took(pod("web"), Start, "between", now+int64(time.Second)/2)) // it goes in the middle
	for i := range maxRecords {
		s.Add(took(pod("web"), Start, "later", now+int64(time.Hour)+int64(i))) // the oldest go
	}
	if fmt.Sprint(one) != before || fmt.Sprint(all) != before {
		t.Errorf("the history was\n%s, and is\n%v", before, one)
	}
	if h, _ := s.Lookup("pods", "default", "web"); len(h.Records) != maxRecords {
		t.Errorf("the store has %d records", len(h.Records))
	}
}

// BenchmarkAll: what it costs to read all of a full store, which takes no writes meanwhile.
func BenchmarkAll(b *testing.B) {
	for _, bench := range []struct {
		name string
		fill func(s *Store, i int)
	}{
		{"pods", func(s *Store, i int) { start(s, pod(fmt.Sprint("shop-", i)), s.Clock().Now()) }},
		{"objects of one record", func(s *Store, i int) { s.Add(took(pod(fmt.Sprint("shop-", i)), Request, "create", s.Clock().Now())) }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			s := NewStore(Options{})
			for i := 0; s.Usage().Dropped == 0; i++ {
				for j := range 500 {
					bench.fill(s, i*500+j)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				s.All("")
			}
		})
	}
}
