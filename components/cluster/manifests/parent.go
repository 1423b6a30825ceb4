package manifests

import (
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Names from the specification of ApplySets.
// Source: k8s.io/kubectl/pkg/cmd/apply/applyset.go, which exports the names, and with them all of kubectl's apply.
const (
	idLabel              = "applyset.kubernetes.io/id"
	partOfLabel          = "applyset.kubernetes.io/part-of"
	toolingAnnotation    = "applyset.kubernetes.io/tooling"
	kindsAnnotation      = "applyset.kubernetes.io/contains-group-kinds"
	namespacesAnnotation = "applyset.kubernetes.io/additional-namespaces"

	// tooling identifies Kubelith; other tools leave its sets alone.
	tooling = "kubelith/v1"
	// fileAnnotation is the file that a parent represents, for the user.
	fileAnnotation = "kubelith.io/file"
	// directoryAnnotation is the directory of the file.
	directoryAnnotation = "kubelith.io/directory"
	// parentNamespace is where the parents are.
	parentNamespace = metav1.NamespaceSystem
)

// parent is the ConfigMap that represents a file.
type parent struct {
	name string
	uid  types.UID // empty while it does not exist in the cluster
	file string    // the file's name
	// directory is the identity of the file's directory; empty for embedded files, and for files of releases that did
	// not record it.
	directory string
	// kinds and namespaces are where members may be: the old and the new ones while the file is applied, so that no
	// member is lost when that fails half-way.
	kinds      sets.Set[schema.GroupKind]
	namespaces sets.Set[string]
}

func newParent(name, file string) parent {
	return parent{name: name, file: file, kinds: sets.New[schema.GroupKind](), namespaces: sets.New[string]()}
}

// id is the value of the members' label.
func (p parent) id() string {
	hash := sha256.Sum256([]byte(p.name + "." + parentNamespace + ".ConfigMap."))
	return "applyset-" + base64.RawURLEncoding.EncodeToString(hash[:]) + "-v1"
}

// annotations returns the annotations that the specification requires of a parent.
func (p parent) annotations() map[string]string {
	var kinds []string
	for gk := range p.kinds {
		kinds = append(kinds, gk.String())
	}
	slices.Sort(kinds)
	// The parent's own namespace belongs to the set without being listed.
	namespaces := sets.List(p.namespaces.Clone().Delete(parentNamespace))
	all := map[string]string{
		toolingAnnotation:    tooling,
		kindsAnnotation:      strings.Join(kinds, ","),
		namespacesAnnotation: strings.Join(namespaces, ","),
		fileAnnotation:       p.file,
	}
	if p.directory != "" {
		all[directoryAnnotation] = p.directory
	}
	return all
}

// parentOf reads a parent from its metadata.
func parentOf(m metav1.ObjectMeta) parent {
	p := newParent(m.Name, m.Annotations[fileAnnotation])
	p.uid, p.directory = m.UID, m.Annotations[directoryAnnotation]
	for _, gk := range list(m.Annotations[kindsAnnotation]) {
		p.kinds.Insert(schema.ParseGroupKind(gk))
	}
	p.namespaces.Insert(parentNamespace).Insert(list(m.Annotations[namespacesAnnotation])...)
	return p
}

func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}
