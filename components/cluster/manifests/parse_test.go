package manifests

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// drawn is "LINE Kind namespace/name" of each document.
func drawn(documents []document) []string {
	var all []string
	for _, d := range documents {
		all = append(all, fmt.Sprintf("%d %s", d.line, describe(d.object)))
	}
	return all
}

func TestParse(t *testing.T) {
	for name, c := range map[string]struct {
		content string
		want    []string
	}{
		"one": {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", []string{"1 ConfigMap a"}},
		"several, with comments and empty documents": {`# what this is
---
# nothing in this one
---
apiVersion: v1
kind: ConfigMap
metadata: {name: a, namespace: x}
data:
  text: |
    ---
    not a document
---
--- # a comment
apiVersion: v1
kind: Secret
metadata:
  name: b
---
`, []string{"5 ConfigMap x/a", "14 Secret b"}},
		"line ends of Windows":   {"apiVersion: v1\r\nkind: A\r\nmetadata: {name: a}\r\n---\r\napiVersion: v1\r\nkind: A\r\nmetadata: {name: b}\r\n", []string{"1 A a", "5 A b"}},
		"no line end at the end": {"---\napiVersion: v1\nkind: A\nmetadata: {name: a}\n---\n{apiVersion: v1, kind: A, metadata: {name: b}}", []string{"2 A a", "6 A b"}},
		"JSON with tabs":         {"{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"A\",\n\t\"metadata\": {\"name\": \"a\"}\n}\n", []string{"1 A a"}},
		"a list": {`---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: A
  metadata: {name: a}
- {apiVersion: v1, kind: B, metadata: {name: b}}
`, []string{"5 A a", "8 B b"}},
		"the items of a list merged in": {"apiVersion: v1\nkind: List\n<<: {items: [{apiVersion: v1, kind: A, metadata: {name: a}},\n  {apiVersion: v1, kind: A, metadata: {name: b}}]}\n",
			[]string{"3 A a", "4 A b"}},
		"an object of anchors":                 {"apiVersion: v1\nkind: A\nx: &x {labels: {a: b}}\ny: &y {name: a}\nmetadata: {<<: [*x, *y]}\n", []string{"1 A a"}},
		"content on the line of the separator": {"--- {apiVersion: v1, kind: A, metadata: {name: a}}\n", []string{"1 A a"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, wrong := parse([]byte(c.content))
			if wrong != nil || !reflect.DeepEqual(drawn(got), c.want) {
				t.Errorf("got %q (%v), want %q", drawn(got), wrong, c.want)
			}
		})
	}
}

// TestParseValues: values are parsed as kubectl parses them.
func TestParseValues(t *testing.T) {
	got, wrong := parse([]byte("apiVersion: v1\nkind: A\nmetadata: {name: a}\nyes: yes\nmode: 0644\nbig: 9007199254740993\ntext: \"yes\"\n"))
	if wrong != nil {
		t.Fatal(wrong.in("a.yaml"))
	}
	for field, want := range map[string]any{"true": true, "mode": int64(420), "big": int64(9007199254740993), "text": "yes"} {
		if have := got[0].object.Object[field]; have != want {
			t.Errorf("%s is %#v, want %#v", field, have, want)
		}
	}
}

// TestParseFaults: a mistake is reported with its line, and no object of the file is returned.
func TestParseFaults(t *testing.T) {
	good := "apiVersion: v1\nkind: A\nmetadata: {name: a}\n---\n" // four lines
	for name, c := range map[string]struct{ content, want string }{
		"empty":                     {"", "f: has no objects: delete the file"},
		"comments":                  {"# nothing\n---\n", "f: has no objects: delete the file"},
		"not closed":                {good + "apiVersion: v1\nkind: \"A\nmetadata: {name: b}\n", "f:6: not valid YAML: "},
		"wrong indentation":         {good + "apiVersion: v1\nkind: A\nmetadata:\n  name: b\n   labels: {}\n", "f:9: not valid YAML: "},
		"a tab":                     {good + "apiVersion: v1\nkind: A\nmetadata:\n\tname: b\n", "f:8: not valid YAML: "},
		"in the first line":         {"a: b: c\n", "f:1: not valid YAML: mapping values are not allowed"},
		"brackets not closed":       {good + "apiVersion: v1\nkind: A\nmetadata: {name: b}\nspec: [a\nb: c\n", "f:8: not valid YAML: did not find expected ',' or ']'"},
		"no such anchor":            {good + "apiVersion: v1\nkind: *a\n", "f:4: not valid YAML: unknown anchor 'a' referenced"},
		"a template":                {good + "apiVersion: v1\nkind: {{ .Kind }}\n", "f:4: not valid YAML: invalid map key"},
		"a key twice":               {good + "apiVersion: v1\nkind: A\nmetadata: {name: b}\nkind: B\n", "f:8: not valid YAML: key \"kind\" already set in map"},
		"a text":                    {good + "just words\n", "f:5: not an object"},
		"an array":                  {good + "- a\n- b\n", "f:5: not an object"},
		"no kind":                   {good + "apiVersion: v1\nmetadata: {name: b}\n", "f:5: kind is missing"},
		"no apiVersion":             {good + "\n\nkind: A\nmetadata: {name: b}\n", "f:7: apiVersion is missing"},
		"no name":                   {good + "apiVersion: v1\nkind: A\nmetadata:\n  generateName: b-\n", "f:7: metadata.name is missing"},
		"a number as name":          {good + "apiVersion: v1\nkind: A\nmetadata:\n  labels: {}\n  name: 7\n", "f:9: metadata.name must be a string"},
		"no metadata at all":        {good + "apiVersion: v1\nkind: A\nmetadata: []\n", "f:7: metadata.name must be a string"},
		"a wrong apiVersion":        {good + "apiVersion: a/b/c\nkind: A\nmetadata: {name: b}\n", "f:5: apiVersion must be GROUP/VERSION or v1"},
		"a label as a number":       {good + "apiVersion: v1\nkind: A\nmetadata:\n  name: b\n  labels:\n    a: 1\n", "f:9: metadata.labels must be strings"},
		"our own label":             {good + "apiVersion: v1\nkind: A\nmetadata:\n  name: b\n  labels:\n    a: b\n    applyset.kubernetes.io/part-of: x\n", "f:11: the label applyset.kubernetes.io/part-of is set by kubelith"},
		"the second in a list":      {"apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: A\n  metadata: {name: a}\n- apiVersion: v1\n  metadata: {name: b}\n", "f:7: kind is missing"},
		"a text in a merged list":   {"apiVersion: v1\nkind: List\n<<: {items: [\n  a]}\n", "f:4: an item of the list is not an object"},
		"a merged name":             {good + "apiVersion: v1\nkind: A\nmetadata:\n  <<:\n    name: 7\n", "f:9: metadata.name must be a string"},
		"a list merged from itself": {"x: &x\n  <<: *x\n", "f:"},
		"a text in a list":          {"apiVersion: v1\nkind: List\nitems:\n- a\n", "f:4: an item of the list is not an object"},
		"an empty list":             {"apiVersion: v1\nkind: List\nitems: []\n", "f: has no object"},
		"a document without --":     {"apiVersion: v1\nkind: A\nmetadata: {name: a}\n...\napiVersion: v1\nkind: A\nmetadata: {name: b}\n", "f:5: not valid YAML: did not find expected <document start>"},
	} {
		t.Run(name, func(t *testing.T) {
			got, wrong := parse([]byte(c.content))
			if wrong == nil || len(got) > 0 || !strings.HasPrefix(wrong.in("f"), c.want) || strings.Contains(wrong.text, "\n") {
				t.Errorf("got %q and %+v, want %q", drawn(got), wrong, c.want)
			}
		})
	}
}

// FuzzParse: any file has objects or a mistake that can be reported, and the line of any field can be looked up.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: A, metadata: {name: a}}\n",
		"{apiVersion: v1, kind: List, <<: {items: [{apiVersion: v1, kind: A, metadata: {name: a}}]}}",
		"a: &a {b: c}\n<<: [*a, {items: [*a]}]\nkind: List\n",
		"---\n--- # x\n...\n--- |\n text\n",
		"apiVersion: v1\nkind: A\nmetadata: {name: a, labels: {a: 1}}\n",
		"a: &a\n- *a\n", "? {a: b}\n: c\n", "%YAML 1.1\n---\n!!map {}\n", "\xff\xfe", "- [", "{a: 1e999999}",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		documents, wrong := parse(content)
		if (wrong == nil) != (len(documents) > 0) {
			t.Fatalf("%d objects and %+v", len(documents), wrong)
		}
		if wrong != nil && (wrong.line < 0 || wrong.text == "" || strings.Contains(wrong.text, "\n")) {
			t.Errorf("the mistake is %+v", wrong)
		}
		for _, d := range documents {
			if d.object.GetName() == "" || d.object.GetKind() == "" || d.line < 1 {
				t.Errorf("an object without name, kind or line: %+v", d)
			}
			for _, path := range []string{"metadata.name", ".spec.containers[name=\"a\"].image", "metadata.labels[a.b/c]", "items[0].x", "[="} {
				_ = lineOf(d.node, path)
			}
		}
	})
}
