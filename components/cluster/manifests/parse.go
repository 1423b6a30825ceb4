package manifests

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	sigsyaml "sigs.k8s.io/yaml"

	"kubelith.io/kubelith/base/oneline"
)

// document is one object of a file.
type document struct {
	object *unstructured.Unstructured
	node   *yaml.Node // the same, with line numbers
	line   int        // its first line
}

// key identifies an object. Without a namespace it has the one in which the object would be created; cluster-scoped
// objects have that too, because no object of the same kind is in a namespace.
type key struct {
	schema.GroupKind
	namespace, name string
}

func keyOf(object *unstructured.Unstructured) key {
	return key{object.GroupVersionKind().GroupKind(), namespaceOf(object), object.GetName()}
}

// namespaceOf returns the namespace of an object, if its kind has one.
func namespaceOf(object *unstructured.Unstructured) string {
	if ns := object.GetNamespace(); ns != "" {
		return ns
	}
	return metav1.NamespaceDefault // as kubectl does without a context
}

// describe names an object for the user.
func describe(object *unstructured.Unstructured) string {
	if ns := object.GetNamespace(); ns != "" {
		return object.GetKind() + " " + ns + "/" + object.GetName()
	}
	return object.GetKind() + " " + object.GetName()
}

// parse reads all objects of a file, with the lines of the file. A file with an error has no objects: missing ones must
// not be taken for removed.
func parse(content []byte) ([]document, *fault) {
	var all []document
	line := 1
	for _, text := range split(string(content)) {
		// With the empty lines the parsers count as if they had the whole file.
		documents, wrong := parseSafely(strings.Repeat("\n", line-1) + text)
		if wrong != nil {
			wrong.line = max(wrong.line, line) // not every parser error has one
			return nil, wrong
		}
		all = append(all, documents...)
		line += strings.Count(text, "\n")
	}
	if len(all) == 0 {
		return nil, &fault{text: "has no objects: delete the file to delete the objects that it had"}
	}
	return all, nil
}

// split cuts a file before each line that begins a document.
func split(content string) []string {
	var texts []string
	var text strings.Builder
	for line := range strings.Lines(content) {
		if separator.MatchString(line) && text.Len() > 0 {
			texts = append(texts, text.String())
			text.Reset()
		}
		text.WriteString(line)
	}
	return append(texts, text.String())
}

// separator matches the line that begins a document; no other line in YAML may look like it, not even in a block of
// text.
var separator = regexp.MustCompile(`^---(\s|$)`)

// parseSafely is parseOne, but a text on which the parsers panic is an error like any other: a user's file must not end
// the process.
func parseSafely(text string) (documents []document, wrong *fault) {
	defer func() {
		if r := recover(); r != nil {
			documents, wrong = nil, &fault{text: fmt.Sprintf("cannot be parsed: simplify it (%s)", oneline.Of(fmt.Sprint(r)))}
		}
	}()
	return parseOne(text)
}

// parseOne reads a text of at most one document, which may be a list of objects.
func parseOne(text string) ([]document, *fault) {
	var root, next yaml.Node
	decoder := yaml.NewDecoder(strings.NewReader(text))
	err := decoder.Decode(&root)
	if errors.Is(err, io.EOF) || err == nil && root.Content[0].Tag == "!!null" {
		return nil, nil // only comments
	}
	if err != nil {
		return nil, syntax(err)
	}
	// Content after the end of a document ("...") would be ignored silently.
	if err := decoder.Decode(&next); err != nil && !errors.Is(err, io.EOF) {
		return nil, syntax(err)
	}
	top := root.Content[0]
	if top.Kind != yaml.MappingNode {
		return nil, &fault{top.Line, "not an object: it must have apiVersion, kind and metadata"}
	}
	// The values are read as kubectl reads them, as YAML 1.1. Strict: no duplicate keys.
	data, err := sigsyaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		return nil, syntax(err)
	}
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal(data, &object.Object); err != nil {
		return nil, &fault{top.Line, "not an object: " + oneline.Of(err.Error())}
	}
	return objects(object, top)
}

// objects returns the document, or the items of a list.
func objects(object *unstructured.Unstructured, node *yaml.Node) ([]document, *fault) {
	if !object.IsList() {
		d := document{object, node, node.Line}
		return []document{d}, d.check()
	}
	var all []document
	nodes := value(node, "items").Content
	items, _ := object.Object["items"].([]any)
	for i, item := range items {
		at := node // the two parsers disagree about the content of the list
		if i < len(nodes) {
			at = nodes[i]
		}
		content, ok := item.(map[string]any)
		if !ok {
			return nil, &fault{at.Line, "an item of the list is not an object"}
		}
		d := document{&unstructured.Unstructured{Object: content}, resolve(at), at.Line}
		if wrong := d.check(); wrong != nil {
			return nil, wrong
		}
		all = append(all, d)
	}
	return all, nil
}

// check returns an error if the object lacks a field that every object needs.
func (d document) check() *fault {
	for _, field := range [][]string{{"apiVersion"}, {"kind"}, {"metadata", "name"}} {
		name := strings.Join(field, ".")
		text, found, err := unstructured.NestedString(d.object.Object, field...)
		switch {
		case err != nil:
			return &fault{lineOf(d.node, name), name + " must be a string"}
		case !found || text == "":
			return &fault{lineOf(d.node, name), name + " is missing"}
		}
	}
	if _, err := schema.ParseGroupVersion(d.object.GetAPIVersion()); err != nil {
		return &fault{lineOf(d.node, "apiVersion"), "apiVersion must be GROUP/VERSION or v1"}
	}
	if _, _, err := unstructured.NestedStringMap(d.object.Object, "metadata", "labels"); err != nil {
		return &fault{lineOf(d.node, "metadata.labels"), "metadata.labels must be strings: put numbers, true and false in quotes"}
	}
	if _, ok := d.object.GetLabels()[partOfLabel]; ok {
		return &fault{lineOf(d.node, "metadata.labels["+partOfLabel+"]"), "the label " + partOfLabel + " is set by kubelith: remove it"}
	}
	return nil
}

// syntax finds the line in an error of a YAML parser; 0 if there is none.
func syntax(err error) *fault {
	text := oneline.Of(strings.TrimPrefix(err.Error(), "yaml: "))
	m := regexp.MustCompile(`^(.*?)\bline (\d+): (.*)$`).FindStringSubmatch(text)
	if m == nil {
		return &fault{text: "not valid YAML: " + text}
	}
	line, _ := strconv.Atoi(m[2])
	if strings.HasPrefix(m[3], "did not find expected") {
		line++ // the parser counts from 0, unlike the scanner and decoder
	}
	return &fault{line, "not valid YAML: " + m[3]}
}
