package policy

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"kubelith.io/kubelith/base/suggest"
)

// Parse reads a policy, YAML or JSON. An error is one line.
func Parse(text []byte) (*Policy, error) {
	documents := yaml.NewDecoder(bytes.NewReader(text))
	var document, second yaml.Node
	if err := documents.Decode(&document); errors.Is(err, io.EOF) {
		return nil, at(1, "it is empty: write a policy, with kind: Policy and apiVersion: v1")
	} else if err != nil {
		return nil, syntax(text, err)
	}
	if err := documents.Decode(&second); err == nil {
		return nil, at(second.Line, "a second document: a file has one policy")
	} else if !errors.Is(err, io.EOF) {
		return nil, syntax(text, err)
	}
	root := document.Content[0]
	if err := header(root); err != nil {
		return nil, err
	}
	p := &Policy{}
	if err := fill(root, "policy", reflect.ValueOf(p).Elem(), false); err != nil {
		return nil, err
	}
	return p, nil
}

// syntax returns the error of a text that is neither YAML nor JSON.
func syntax(text []byte, err error) error {
	var wrong *json.SyntaxError
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) && errors.As(json.Unmarshal(text, new(any)), &wrong) {
		return at(1+bytes.Count(text[:wrong.Offset], []byte("\n")), "%v", wrong)
	}
	said := strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\n", " "), "yaml: ")
	if !strings.HasPrefix(said, "line ") {
		said = "line 1: " + said
	}
	return errors.New(said)
}

// header checks what the file is before its fields, which would all be wrong in another kind.
func header(root *yaml.Node) error {
	if root.Kind != yaml.MappingNode {
		return at(root.Line, "a policy must be a mapping, with kind: Policy and apiVersion: v1")
	}
	want := map[string][]string{"kind": {"Policy"}, "apiVersion": {"v1", "kubescheduler.config.k8s.io/v1"}}
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i].Value, root.Content[i+1]
		accepted := want[key]
		if accepted == nil {
			continue
		}
		if value.Value != accepted[0] && value.Value != accepted[len(accepted)-1] {
			hint := ""
			if value.Value == "KubeSchedulerConfiguration" {
				hint = "; --scheduler-arg=config=FILE reads this one"
			}
			return at(value.Line, "%s %q is not known: a policy has %s: %s%s", key, value.Value, key, accepted[0], hint)
		}
		delete(want, key)
	}
	for _, key := range []string{"kind", "apiVersion"} {
		if want[key] != nil {
			return at(root.Line, "%s is missing: a policy has kind: Policy and apiVersion: v1", key)
		}
	}
	return nil
}

// fill sets v to what a node has. With fold, the names of fields may be in upper or lower case. Null leaves v as it is.
func fill(n *yaml.Node, what string, v reflect.Value, fold bool) error {
	if n.Kind == yaml.AliasNode {
		return at(n.Line, "%s: an alias: write it out", what)
	}
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return nil
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return fill(n, what, v.Elem(), fold)
	case reflect.Struct:
		return fillStruct(n, what, v, fold || v.Type() == reflect.TypeFor[Extender]())
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			data, err := base64.StdEncoding.DecodeString(n.Value)
			if n.Kind != yaml.ScalarNode || err != nil {
				return at(n.Line, "%s must be base64", what)
			}
			v.SetBytes(data)
			return nil
		}
		if n.Kind != yaml.SequenceNode {
			return at(n.Line, "%s must be a list", what)
		}
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		for i, item := range n.Content {
			if err := fill(item, fmt.Sprintf("%s[%d]", what, i), v.Index(i), fold); err != nil {
				return err
			}
		}
		return nil
	}
	return fillScalar(n, what, v)
}

func fillScalar(n *yaml.Node, what string, v reflect.Value) error {
	tag := n.ShortTag()
	if n.Kind != yaml.ScalarNode {
		tag = ""
	}
	switch v.Kind() {
	case reflect.String:
		if tag != "!!str" {
			return at(n.Line, "%s must be a string", what)
		}
		v.SetString(n.Value)
	case reflect.Bool:
		var b bool
		if tag == "" || n.Decode(&b) != nil {
			return at(n.Line, "%s must be true or false", what)
		}
		v.SetBool(b)
	default:
		var i int64
		if tag != "!!int" || n.Decode(&i) != nil || v.OverflowInt(i) {
			return at(n.Line, "%s must be a whole number of at most %d bits", what, v.Type().Bits())
		}
		v.SetInt(i)
	}
	return nil
}

func fillStruct(n *yaml.Node, what string, v reflect.Value, fold bool) error {
	if n.Kind != yaml.MappingNode {
		return at(n.Line, "%s must be a mapping", what)
	}
	names := make([]string, v.NumField()) // "-": not in files
	for i := range names {
		names[i] = v.Type().Field(i).Tag.Get("json")
	}
	line := n.Line
	seen := map[int]int{} // the line of each field
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		field := -1
		for j, name := range names {
			if name != "-" && (key.Value == name || fold && strings.EqualFold(key.Value, name)) {
				field = j
			}
		}
		switch {
		case key.Kind != yaml.ScalarNode || field < 0:
			known := slices.DeleteFunc(names, func(name string) bool { return name == "-" })
			return at(key.Line, "%s has no field %q%s", what, key.Value, suggest.Nearest(key.Value, known))
		case seen[field] != 0:
			return at(key.Line, "%s has the field %q twice, first in line %d", what, key.Value, seen[field])
		}
		seen[field] = key.Line
		if names[field] == "name" {
			line = value.Line
		}
		inner := names[field]
		if what != "policy" {
			inner = what + "." + inner
		}
		if err := fill(value, inner, v.Field(field), fold); err != nil {
			return err
		}
	}
	if f := v.FieldByName("Line"); f.IsValid() {
		f.SetInt(int64(line))
	}
	return nil
}
