package manifests

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/oneline"
)

// cluster is how a pass uses the API.
type cluster interface {
	// parents returns our parents, by name.
	parents(context.Context) (map[string]parent, error)
	// save creates or updates a parent and returns its UID.
	save(context.Context, parent) (types.UID, error)
	// drop deletes a parent.
	drop(context.Context, parent) error
	// apply applies the object of the document, as a member of the set partOf unless that is empty. awaited means that
	// its kind was just defined and may not be served yet.
	apply(ctx context.Context, d document, partOf string, awaited bool) (reference, error)
	// setOf returns the set of an existing namespace.
	setOf(ctx context.Context, namespace string) (set string, exists bool, err error)
	// members returns the objects of a set, from the kinds and namespaces that the parent records.
	members(context.Context, parent) ([]member, error)
	// release removes the label of the set from a member.
	release(context.Context, member) error
	// remove deletes a member, with what it owns.
	remove(context.Context, member) error
	// warn creates an Event about the parent.
	warn(ctx context.Context, p parent, message string) error
}

// reference identifies an object that was applied.
type reference struct {
	uid       types.UID
	namespace string // empty for cluster-scoped kinds
}

// member is an object in the cluster that belongs to a set.
type member struct {
	object     *unstructured.Unstructured
	controlled bool // a controller created it, and copied the labels of its owner
}

// keeper remembers between two passes what was applied and what was logged.
type keeper struct {
	cluster  cluster
	log      logrus.FieldLogger
	complete bool // the last pass left nothing to do
	// directory is the identity of the files' directory; adopts means that the identity is new, so that objects applied
	// by an earlier release count as its own.
	directory string
	adopts    bool

	done   map[string]applied // by the name of the parent; a file that is missing here must be applied
	logged logging.Once       // for each file, and for errors about no single file
}

// applied is a file whose objects are all in the cluster.
type applied struct {
	hash    [sha256.Size]byte
	uids    sets.Set[types.UID]
	yielded bool // except those that other files have
}

func newKeeper(c cluster, log logrus.FieldLogger) *keeper {
	return &keeper{cluster: c, log: log, done: map[string]applied{}}
}

// set is a file, or the remains of a removed one, during a pass.
type set struct {
	file      file
	parent    parent
	documents []document
	gone      bool
	pending   bool // the cluster does not have the file as it is now
	unread    bool // its content is unknown
	refused   bool // nothing in it can be applied
	pruned    bool // objects that it no longer has are deleted
	yielded   bool // other files have some of its objects
	uids      sets.Set[types.UID]
	used      parent // kinds and namespaces of the applied objects
	faults    []fault
}

// fail records an error.
func (s *set) fail(line int, format string, args ...any) {
	s.faults = append(s.faults, fault{line, fmt.Sprintf(format, args...)})
}

// pass brings the cluster in line with the files and reports whether nothing is left to do. It applies everything first
// and then deletes objects that are no longer in any file, so that an object survives its move to another file.
func (k *keeper) pass(ctx context.Context, files []file) bool {
	if k.complete && k.unchanged(files) {
		return true
	}
	k.complete = false
	parents, err := k.cluster.parents(ctx)
	if err != nil {
		k.logOnce("parents", "list the files applied before: "+oneline.Of(err.Error()))
		return false
	}
	k.logged.News("parents", "")
	all := k.sets(files, parents)
	wanted := claim(all)
	k.apply(ctx, all)
	// An unreadable file may have taken over any object: nothing is deleted until it can be read.
	if ctx.Err() == nil && !slices.ContainsFunc(all, func(s *set) bool { return s.unread }) {
		made := k.made(all)
		for _, s := range all {
			if s.pending && len(s.faults) == 0 {
				k.prune(ctx, s, made, wanted)
			}
		}
	}
	if ctx.Err() == nil {
		k.complete = k.report(ctx, all)
	}
	return k.complete
}

// unchanged reports whether the files are those of the last pass.
func (k *keeper) unchanged(files []file) bool {
	if len(files) != len(k.done) {
		return false
	}
	for _, f := range files {
		if last, ok := k.done[f.parent]; !ok || f.err != nil || last.hash != f.hash() {
			return false
		}
	}
	return true
}

// sets parses the files, and adds a set for each parent without a file.
func (k *keeper) sets(files []file, parents map[string]parent) []*set {
	var all []*set
	maps.DeleteFunc(k.done, func(name string, _ applied) bool {
		return !slices.ContainsFunc(files, func(f file) bool { return f.parent == name })
	})
	for _, f := range files {
		s := &set{file: f, uids: sets.New[types.UID]()}
		var found bool
		if s.parent, found = parents[f.parent]; !found {
			s.parent = newParent(f.parent, f.name)
		}
		s.parent.file = f.name
		if !f.yields {
			s.parent.directory = k.directory
		}
		delete(parents, f.parent)
		s.parse()
		last, ok := k.done[f.parent]
		s.pending = !found || !ok || last.yielded || last.hash != f.hash()
		all = append(all, s)
	}
	for _, name := range slices.Sorted(maps.Keys(parents)) {
		p := parents[name]
		ours := k.owns(p)
		if !ours {
			k.logOnce("elsewhere "+name, fmt.Sprintf("%s was applied from another directory: its objects stay; "+
				"if that directory is gone for good, delete them and ConfigMap %s/%s", p.file, parentNamespace, name))
		}
		all = append(all, &set{file: file{name: p.file, parent: name}, parent: p, gone: true, pending: ours})
	}
	return all
}

// owns reports whether a missing file was deleted from the directory, and is not in another one.
func (k *keeper) owns(p parent) bool {
	return !strings.HasPrefix(p.name, filePrefix) || p.directory == k.directory || p.directory == "" && k.adopts
}

func (s *set) parse() {
	if s.file.err != nil {
		s.unread = true
		s.fail(0, "cannot be read: %v", s.file.err)
		return
	}
	var wrong *fault
	if s.documents, wrong = parse(s.file.content); wrong != nil {
		s.unread = true
		s.faults = append(s.faults, *wrong)
	}
}

// claim gives each object to the first file that has it, and removes it from the others, with a fault unless they
// yield. It returns all wanted objects.
func claim(all []*set) sets.Set[key] {
	type place struct {
		file string
		line int
	}
	taken := map[key]place{}
	for _, s := range all {
		s.documents = slices.DeleteFunc(s.documents, func(d document) bool {
			k := keyOf(d.object)
			first, twice := taken[k]
			if twice && s.file.yields {
				s.pending, s.yielded = true, true
				return true
			}
			if twice {
				s.pending = true
				s.fail(d.line, "%s is already in %s:%d: remove one of them", describe(d.object), first.file, first.line)
				return true
			}
			taken[k] = place{s.file.name, d.line}
			return false
		})
	}
	return sets.KeySet(taken)
}

// step is a document to apply.
type step struct {
	set *set
	document
}

// order returns the documents in the order in which they are applied: definitions, namespaces and then the others,
// which need both.
func order(all []*set) []step {
	var steps []step
	for _, s := range all {
		for _, d := range s.documents {
			if s.pending {
				steps = append(steps, step{s, d})
			}
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int { return rank(a.object) - rank(b.object) })
	return steps
}

func rank(object *unstructured.Unstructured) int {
	switch object.GroupVersionKind().GroupKind() {
	case definitionKind:
		return 0
	case namespaceKind:
		return 1
	}
	return 2
}

var (
	definitionKind = schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}
	namespaceKind  = schema.GroupKind{Kind: "Namespace"}
)

// apply applies the objects of all pending sets.
func (k *keeper) apply(ctx context.Context, all []*set) {
	ids := sets.New[string]()
	for _, s := range all {
		ids.Insert(s.parent.id())
		if s.pending && !s.gone {
			k.open(ctx, s)
		}
	}
	steps := order(all)
	awaited := definitions(steps)
	for _, next := range steps {
		s, d := next.set, next.document
		if s.refused {
			continue
		}
		partOf, err := k.partOf(ctx, s, d, ids)
		var ref reference
		if err == nil {
			ref, err = k.cluster.apply(ctx, d, partOf, awaited.Has(d.object.GroupVersionKind().GroupKind()))
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.faults = append(s.faults, explain(d, err)...)
			continue
		}
		s.uids.Insert(ref.uid)
		s.used.kinds.Insert(d.object.GroupVersionKind().GroupKind())
		if ref.namespace != "" {
			s.used.namespaces.Insert(ref.namespace)
		}
	}
}

// open records on the parent where the file's objects will be, before there are any.
func (k *keeper) open(ctx context.Context, s *set) {
	s.used = newParent(s.parent.name, s.parent.file)
	for _, d := range s.documents {
		s.parent.kinds.Insert(d.object.GroupVersionKind().GroupKind())
		s.parent.namespaces.Insert(namespaceOf(d.object))
	}
	uid, err := k.cluster.save(ctx, s.parent)
	if err != nil {
		s.refused = true
		s.fail(0, "%v", err)
		return
	}
	s.parent.uid = uid
}

// definitions returns the kinds that the documents define.
func definitions(steps []step) sets.Set[schema.GroupKind] {
	kinds := sets.New[schema.GroupKind]()
	for _, s := range steps {
		if s.object.GroupVersionKind().GroupKind() == definitionKind {
			kinds.Insert(defined(s.object))
		}
	}
	return kinds
}

// defined returns the kind that a CustomResourceDefinition defines.
func defined(definition *unstructured.Unstructured) schema.GroupKind {
	group, _, _ := unstructured.NestedString(definition.Object, "spec", "group")
	kind, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "kind")
	return schema.GroupKind{Group: group, Kind: kind}
}

// partOf returns the set that an object joins. A namespace that exists without us, or that every cluster needs, joins
// none: it would be deleted with everything in it. A file can request the deletion of one of the first kind.
func (k *keeper) partOf(ctx context.Context, s *set, d document, ours sets.Set[string]) (string, error) {
	name := d.object.GetName()
	if d.object.GroupVersionKind().GroupKind() != namespaceKind {
		return s.parent.id(), nil
	}
	if name == metav1.NamespaceDefault || strings.HasPrefix(name, "kube-") {
		return "", nil
	}
	of, exists, err := k.cluster.setOf(ctx, name)
	if err != nil || exists && !ours.Has(of) && d.object.GetAnnotations()[pruneAnnotation] != "true" {
		return "", err
	}
	return s.parent.id(), nil
}

// made returns the objects that all files together have created.
func (k *keeper) made(all []*set) sets.Set[types.UID] {
	uids := sets.New[types.UID]()
	for _, s := range all {
		uids = uids.Union(s.uids)
		if !s.pending {
			uids = uids.Union(k.done[s.file.parent].uids)
		}
	}
	return uids
}

// prune deletes the members of a set that are no longer in any file, and records on the parent what is left.
func (k *keeper) prune(ctx context.Context, s *set, made sets.Set[types.UID], wanted sets.Set[key]) {
	members, err := k.cluster.members(ctx, s.parent)
	if err != nil {
		s.fail(0, "list the objects that are no longer in it: %s", oneline.Of(err.Error()))
		return
	}
	slices.SortStableFunc(members, func(a, b member) int { return rank(b.object) - rank(a.object) })
	awaited := false
	for _, m := range members {
		switch {
		case m.controlled || made.Has(m.object.GetUID()):
		case wanted.Has(keyOf(m.object)): // by a file that could not take it over yet
			awaited = true
		default:
			if err := k.discard(ctx, s, m, wanted); err != nil {
				s.fail(0, "cannot delete %s, which is no longer in it: %s", describe(m.object), oneline.Of(err.Error()))
			}
		}
	}
	if awaited || len(s.faults) > 0 {
		return
	}
	if s.gone {
		err = k.cluster.drop(ctx, s.parent)
	} else {
		s.parent.kinds, s.parent.namespaces = s.used.kinds, s.used.namespaces
		_, err = k.cluster.save(ctx, s.parent)
	}
	if err != nil {
		s.fail(0, "%v", err)
	}
	s.pruned = err == nil
}

// discard deletes a member, or releases it.
func (k *keeper) discard(ctx context.Context, s *set, m member, wanted sets.Set[key]) error {
	if kept(m.object) {
		if err := k.cluster.release(ctx, m); err != nil {
			return err
		}
		k.log.Infof("kept %s, which is no longer in %s: delete it with kubectl if it is no longer needed", describe(m.object), s.file.name)
		return nil
	}
	if needed(m.object, wanted) {
		return errors.New("objects that files still have would be deleted with it")
	}
	if err := k.cluster.remove(ctx, m); err != nil {
		return err
	}
	k.log.Infof("deleted %s, which is no longer in %s", describe(m.object), s.file.name)
	return nil
}

// needed reports whether a wanted object would be deleted with this one.
func needed(object *unstructured.Unstructured, wanted sets.Set[key]) bool {
	var within func(key) bool
	switch object.GroupVersionKind().GroupKind() {
	case namespaceKind:
		within = func(k key) bool { return k.namespace == object.GetName() }
	case definitionKind:
		within = func(k key) bool { return k.GroupKind == defined(object) }
	default:
		return false
	}
	return slices.ContainsFunc(wanted.UnsortedList(), within)
}

// report reports the errors of each file, once, and records which files are done. It returns whether all are.
func (k *keeper) report(ctx context.Context, all []*set) bool {
	complete := true
	for _, s := range all {
		if len(s.faults) > 0 {
			complete = false
			delete(k.done, s.file.parent)
			k.reportFaults(ctx, s)
			continue
		}
		k.logged.News(s.file.parent, "")
		if s.pending && !s.pruned {
			complete = false
		}
		if s.gone || !s.pruned {
			continue
		}
		k.done[s.file.parent] = applied{s.file.hash(), s.uids, s.yielded}
		k.log.Infof("applied %s: %d objects", s.file.name, len(s.documents))
	}
	return complete
}

// reportFaults logs the faults of a set and creates an Event for each, unless they are the same as last time.
func (k *keeper) reportFaults(ctx context.Context, s *set) {
	var lines []string
	for _, f := range s.faults {
		lines = append(lines, f.in(s.file.name))
	}
	if !k.logged.News(s.file.parent, strings.Join(lines, "\n")) {
		return
	}
	for _, line := range lines {
		k.log.Error(line)
		if err := k.cluster.warn(ctx, s.parent, line); err != nil && ctx.Err() == nil {
			k.log.WithError(err).Warn("cannot create an Event for this error")
		}
	}
}

// logOnce logs an error that concerns no single file.
func (k *keeper) logOnce(about, text string) {
	if k.logged.News(about, text) {
		k.log.Error(text)
	}
}
