package record

import (
	"cmp"
	"container/list"
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unique"
	"unsafe"

	"kubelith.io/kubelith/base/oneline"
	"kubelith.io/kubelith/base/reconcile"
)

// Defaults of Options.
const (
	DefaultBytes = 32 << 20
	DefaultAge   = 24 * time.Hour
)

// Limits of one object, so that one that fails for days leaves room for the others.
const (
	// maxRecords is how many records an object keeps. Beyond it the first keepFirst stay, and the oldest of the others
	// go.
	maxRecords = 400
	keepFirst  = 100
	// maxText is the length of a message or an error, in bytes.
	maxText = 1024
	// maxName is the length of a name, a user or a program, and maxUID that of a UID.
	maxName = 256
	maxUID  = 128
	// maxSteps and maxOwners are how many a record and an object have.
	maxSteps  = 100
	maxOwners = 16
)

// Options bounds a store.
type Options struct {
	// Bytes is how much memory records take at most, and Age how long an object is kept after its last record. Zero:
	// the defaults.
	Bytes int64
	Age   time.Duration
}

// Store keeps the records of objects, the most recent ones within its bounds.
type Store struct {
	opts  Options
	clock Clock
	id    string

	changed reconcile.Broadcast // at each record

	mu      sync.Mutex
	seq     uint64
	bytes   int64
	objects map[string]*entry // by key
	names   map[Ref]string    // the key of the newest object of a name; the Ref has no UID
	owned   map[string]map[string]bool
	recent  *list.List // of *entry, the one with the newest record first
	dropped uint64
	observe []func(*Record)
}

var _ Sink = (*Store)(nil)

// entry is an object with its records, in the order of their ends.
type entry struct {
	key     string
	object  Object
	records []Record
	bytes   int64
	last    int64
	seq     uint64 // of the newest record
	gone    bool   // it was deleted
	shared  bool   // a History has records, so they stay as they are
	place   *list.Element
}

// NewStore returns an empty store.
func NewStore(o Options) *Store {
	o.Bytes, o.Age = cmp.Or(o.Bytes, DefaultBytes), cmp.Or(o.Age, DefaultAge)
	return &Store{
		opts:    o,
		clock:   NewClock(),
		id:      strconv.FormatUint(rand.Uint64(), 36),
		objects: map[string]*entry{},
		names:   map[Ref]string{},
		owned:   map[string]map[string]bool{},
		recent:  list.New(),
	}
}

// Clock returns the clock that the store's own records use.
func (s *Store) Clock() Clock { return s.clock }

// ID is another one for each store.
func (s *Store) ID() string { return s.id }

// Observe calls f with each record that is added, in order, until the process ends. f must not block or keep the
// record. It is called before records are added.
func (s *Store) Observe(f func(*Record)) { s.observe = append(s.observe, f) }

// key identifies an object: by its UID or, for one that was never created, by its name.
func (r Ref) key() string {
	if r.UID != "" {
		return r.UID
	}
	return r.Resource + "/" + r.Namespace + "/" + r.Name
}

// named is the Ref without the UID.
func (r Ref) named() Ref { r.UID = ""; return r }

// contradicts reports whether two Refs of one UID have different names.
func (r Ref) contradicts(o Ref) bool {
	return r.Name != "" && o.Name != "" && (r.Name != o.Name || r.Namespace != o.Namespace)
}

// Add implements Sink.
func (s *Store) Add(r Record) {
	r.bound()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(r)
}

func (s *Store) add(r Record) {
	e := s.entry(r.Object)
	if e == nil {
		return
	}
	for _, f := range s.observe {
		f(&r)
	}
	r.Object = e.object.Ref
	if r.Stage == Phase && r.Name == "Deleted" {
		e.gone = true
	}
	s.seq++
	r.Seq, e.seq = s.seq, s.seq
	r.Count = max(r.Count, 1)
	defer s.touch(e, r.End())
	e.own()
	if same := e.repeated(&r); same != nil {
		same.repeat(&r)
		return
	}
	// Sources report what is over, so the order is that of the ends; a moment later than another goes behind it.
	at := len(e.records)
	for at > 0 && at > len(e.records)-32 && e.records[at-1].End() > r.End() {
		at--
	}
	e.records = slices.Insert(e.records, at, r)
	size := r.size()
	if len(e.records) > maxRecords {
		size -= e.records[keepFirst].size()
		e.records = slices.Delete(e.records, keepFirst, keepFirst+1)
		s.dropped++
	}
	e.bytes, s.bytes = e.bytes+size, s.bytes+size
}

// own makes records the entry's alone, with room for another one. They grow by a quarter, which Record.size counts.
func (e *entry) own() {
	if n := len(e.records); e.shared || n == cap(e.records) {
		e.records, e.shared = append(make([]Record, 0, n+n/4+1), e.records...), false
	}
}

// repeated returns the equal record among the last ones, if r may be counted there: moments, probes and syncs, which
// come again and again.
func (e *entry) repeated(r *Record) *Record {
	switch r.Stage {
	case Event, Probe, Sync, Request:
	default:
		return nil
	}
	for i := len(e.records) - 1; i >= 0 && i >= len(e.records)-8; i-- {
		o := &e.records[i]
		if o.Stage != r.Stage || o.Name != r.Name || o.Node != r.Node {
			continue
		}
		// The first success and the first failure of each kind have their own times; so has each sync and request that
		// another record follows.
		if o.Error != r.Error || o.Message != r.Message || o.Code != r.Code || o.Actor != r.Actor || r.Spec || o.Spec {
			return nil
		}
		if (r.Stage == Sync || r.Stage == Request) && (i != len(e.records)-1 || r.Stage == Request && r.Code < 400) {
			return nil
		}
		return o
	}
	return nil
}

// repeat counts another record of the same kind. An agent sends a record again when its count has changed: then r is
// the same one.
func (r *Record) repeat(again *Record) {
	r.Seq = again.Seq
	if r.Start == again.Start {
		r.Count, r.Last = max(r.Count, again.Count), max(r.Last, again.Last)
		return
	}
	r.Count, r.Last = r.Count+again.Count, max(again.Start, again.Last)
}

// Describe implements Sink.
func (s *Store) Describe(o Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.objects[o.key()]; known != nil && known.object.contradicts(o.Ref) {
		s.evict(known) // an Event came first, whose writer named another object
	}
	e := s.entry(o.Ref)
	if e == nil {
		return
	}
	if o.UID != "" {
		s.names[e.object.named()] = e.key // whatever an Event says
	}
	o.Owners = o.Owners[:min(len(o.Owners), maxOwners)]
	if len(o.Owners) > 0 {
		s.disown(e)
	}
	for _, owner := range o.Owners {
		if s.owned[owner] == nil {
			s.owned[owner] = map[string]bool{}
		}
		s.owned[owner][e.key] = true
	}
	before := e.object.size()
	d := &e.object
	keep(&d.Owners, o.Owners)
	keep(&d.Claims, o.Claims)
	keep(&d.InitContainers, o.InitContainers)
	keep(&d.Containers, o.Containers)
	d.Volume, d.Trace, d.Parent = cmp.Or(o.Volume, d.Volume), cmp.Or(o.Trace, d.Trace), cmp.Or(o.Parent, d.Parent)
	if o.Replicas != nil {
		d.Replicas = o.Replicas
	}
	grown := d.size() - before
	e.bytes, s.bytes = e.bytes+grown, s.bytes+grown
	s.touch(e, s.clock.Now())
}

// disown removes an object from what its owners own.
func (s *Store) disown(e *entry) {
	for _, owner := range e.object.Owners {
		if delete(s.owned[owner], e.key); len(s.owned[owner]) == 0 {
			delete(s.owned, owner)
		}
	}
}

func keep(to *[]string, from []string) {
	if len(from) > 0 {
		*to = from
	}
}

// entry returns the object's entry, and adds it if it is new. What a source knows less well, the name or the resource
// of a UID, is completed by one that knows it. It returns nil for a UID that is none, or that of an object with another
// name: the writer of an Event names the UID.
func (s *Store) entry(r Ref) *entry {
	if len(r.UID) > maxUID || strings.Contains(r.UID, "/") {
		return nil
	}
	key := r.key()
	e := s.objects[key]
	// A request that was denied knows a name only: it is about the object of that name, if there is one.
	if named := s.objects[s.names[r.named()]]; r.UID == "" && named != nil && !named.gone {
		key, e = named.key, named
	}
	if e == nil {
		// What a request's path was a part of can go.
		r.UID, r.Resource, r.Namespace, r.Name = strings.Clone(r.UID), intern(r.Resource), intern(r.Namespace), strings.Clone(r.Name)
		key = r.key()
		e = &entry{key: key, object: Object{Ref: r}, bytes: int64(unsafe.Sizeof(entry{})) + 300}
		e.place = s.recent.PushFront(e)
		s.objects[key] = e
		e.bytes += e.object.size()
		s.bytes += e.bytes
		s.names[r.named()] = key
		return e
	}
	known := &e.object.Ref
	if known.contradicts(r) {
		return nil
	}
	if (known.Name == "" && r.Name != "") || (known.Resource == "" && r.Resource != "") {
		known.Name, known.Namespace, known.Resource = cmp.Or(known.Name, r.Name), cmp.Or(known.Namespace, r.Namespace), cmp.Or(known.Resource, r.Resource)
		s.names[known.named()] = key
	}
	return e
}

// touch marks the object as changed at t, and makes room.
func (s *Store) touch(e *entry, t int64) {
	e.last = max(e.last, min(t, s.clock.Now())) // a source may be ahead
	s.recent.MoveToFront(e.place)
	for s.bytes > s.opts.Bytes && s.recent.Len() > 1 {
		s.evict(s.recent.Back().Value.(*entry))
	}
	s.changed.Send()
}

func (s *Store) evict(e *entry) {
	s.recent.Remove(e.place)
	delete(s.objects, e.key)
	if s.names[e.object.named()] == e.key {
		delete(s.names, e.object.named())
	}
	s.disown(e)
	s.bytes -= e.bytes
	s.dropped += uint64(len(e.records))
}

// Expire forgets objects without a record for longer than Options.Age.
func (s *Store) Expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	oldest := s.clock.Now() - int64(s.opts.Age)
	for back := s.recent.Back(); back != nil && back.Value.(*entry).last < oldest; back = s.recent.Back() {
		s.evict(back.Value.(*entry))
	}
}

// History is an object with its records, in the order of their ends. Callers must not change them: they are the
// store's, as of the call.
type History struct {
	Object  Object   `json:"object"`
	Records []Record `json:"records"`
}

// Lookup returns the newest object of a name; ok is false if the store has none.
func (s *Store) Lookup(resource, namespace, name string) (h History, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.history(s.names[Ref{Resource: resource, Namespace: namespace, Name: name}])
}

// Get returns the object of a UID; ok is false if the store has none.
func (s *Store) Get(uid string) (h History, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.history(uid)
}

// Object returns what is known of an object, without its records; ok is false if the store does not have it.
func (s *Store) Object(r Ref) (o Object, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.objects[r.key()]
	if e == nil {
		return Object{}, false
	}
	return e.object, true
}

func (s *Store) history(key string) (History, bool) {
	e := s.objects[key]
	if e == nil {
		return History{}, false
	}
	return e.history(), true
}

// history returns the entry without a copy of its records, which would take long for all of them: the writer that adds
// one copies.
func (e *entry) history() History {
	e.shared = true
	return History{Object: e.object, Records: slices.Clip(e.records)}
}

// Owned returns the objects that this one owns, in the order in which they were first seen.
func (s *Store) Owned(uid string) []History {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []History
	for key := range s.owned[uid] {
		if h, ok := s.history(key); ok {
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b History) int {
		return cmp.Or(cmp.Compare(a.first(), b.first()), cmp.Compare(a.Object.key(), b.Object.key()))
	})
	return all
}

func (h *History) first() int64 {
	if len(h.Records) == 0 {
		return 0
	}
	return h.Records[0].Start
}

// All returns the histories of a resource; empty: of all.
func (s *Store) All(resource string) []History {
	s.mu.Lock()
	n := len(s.objects)
	s.mu.Unlock()
	if resource != "" {
		n = 0
	}
	all := make([]History, 0, n+n/100) // while others may add
	s.mu.Lock()
	defer s.mu.Unlock()
	for at := s.recent.Back(); at != nil; at = at.Prev() {
		if e := at.Value.(*entry); resource == "" || e.object.Resource == resource {
			all = append(all, e.history())
		}
	}
	return all
}

// Since returns up to limit records with a Seq over after, by Seq: what an agent sends to its server. next is what to
// ask for then.
func (s *Store) Since(after uint64, limit int) (records []Record, next uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at := s.recent.Front(); at != nil; at = at.Next() {
		e := at.Value.(*entry)
		if e.seq <= after {
			continue
		}
		for _, r := range e.records {
			if r.Seq > after {
				records = append(records, r)
			}
		}
	}
	slices.SortFunc(records, func(a, b Record) int { return cmp.Compare(a.Seq, b.Seq) })
	if len(records) > limit {
		return records[:limit], records[limit-1].Seq
	}
	return records, s.seq
}

// Last returns the Seq of the last record; 0: there is none.
func (s *Store) Last() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seq
}

// Merge adds records that happened on another node, whose clock is behind this one's by offset.
func (s *Store) Merge(node string, offset time.Duration, records []Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range records {
		r.Node, r.Start = node, r.Start+int64(offset)
		if r.Last != 0 {
			r.Last += int64(offset)
		}
		r.bound()
		s.add(r)
	}
}

// Wait returns when something was recorded after seq, or ctx ends, with the last Seq.
func (s *Store) Wait(ctx context.Context, seq uint64) uint64 {
	for {
		changed := s.changed.Next()
		last := s.Last()
		if last > seq {
			return last
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return last
		}
	}
}

// Usage is how full a store is.
type Usage struct {
	Objects int   `json:"objects"`
	Records int   `json:"records"`
	Bytes   int64 `json:"bytes"`
	Limit   int64 `json:"limit"`
	// Dropped is how many records were forgotten to make room, or for their age.
	Dropped uint64 `json:"dropped"`
}

// Usage returns how full the store is.
func (s *Store) Usage() Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := Usage{Objects: len(s.objects), Bytes: s.bytes, Limit: s.opts.Bytes, Dropped: s.dropped}
	for _, e := range s.objects {
		u.Records += len(e.records)
	}
	return u
}

// size is an estimate of the memory that a record takes: itself, with room for the slice to grow, and its texts.
func (r *Record) size() int64 {
	// Names and users come again and again and are there once; but a client that invents them must not fill the memory.
	n := int64(unsafe.Sizeof(*r))*5/4 + int64(len(r.Name)+len(r.Actor)+len(r.Agent)+len(r.Message)+len(r.Error)+len(r.Version))
	for i := range r.Steps {
		n += int64(unsafe.Sizeof(r.Steps[i])) + int64(len(r.Steps[i].Detail)+len(r.Steps[i].Error))
	}
	for i := range r.Verdicts {
		n += int64(unsafe.Sizeof(r.Verdicts[i])) + int64(len(r.Verdicts[i].Reason)) + 16*int64(len(r.Verdicts[i].Nodes))
	}
	for i := range r.Scores {
		n += int64(unsafe.Sizeof(r.Scores[i])) + 48 + 40*int64(len(r.Scores[i].Plugins))
	}
	return n
}

func (o *Object) size() int64 {
	n := 2*len(o.UID) + len(o.Resource) + 200*len(o.Owners) + len(o.Namespace) + len(o.Name) + len(o.Volume) + len(o.Trace) + len(o.Parent)
	for _, list := range [][]string{o.Owners, o.Claims, o.InitContainers, o.Containers} {
		for _, text := range list {
			n += 16 + len(text)
		}
	}
	return int64(n)
}

// bound cuts what a source, or whatever it listens to, may make long.
func (r *Record) bound() {
	r.Message, r.Error = oneline.Shorten(r.Message, maxText), oneline.Shorten(r.Error, maxText)
	r.Name, r.Node, r.Actor, r.Agent = intern(clip(r.Name)), intern(clip(r.Node)), intern(clip(r.Actor)), intern(clip(r.Agent))
	r.Version = clip(r.Version)
	// What was appended step by step has room for more, which would stay.
	r.Steps = exact(r.Steps[:min(len(r.Steps), maxSteps)])
	r.Verdicts, r.Scores = exact(r.Verdicts), exact(r.Scores)
	for i := range r.Steps {
		s := &r.Steps[i]
		s.Name, s.Detail, s.Error = clip(s.Name), clip(s.Detail), oneline.Shorten(s.Error, maxText)
	}
}

// exact returns a list without room for more.
func exact[T any](list []T) []T {
	if len(list) == cap(list) {
		return list
	}
	return append(make([]T, 0, len(list)), list...)
}

func clip(name string) string {
	if len(name) > maxName {
		return strings.ToValidUTF8(name[:maxName], "")
	}
	return name
}

// intern returns the one copy of a text that comes again and again.
func intern(text string) string {
	if text == "" {
		return ""
	}
	return unique.Make(text).Value()
}
