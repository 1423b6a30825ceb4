package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"kubelith.io/kubelith/base/suggest"
)

// The version of the file.
const v1alpha1 = "kubelith.io/v1alpha1"

// decoder reads one version of the file into the newest, which is Server or Agent. It reports every wrong key, and
// still sets the others.
//
// To add v1beta1: copy Server, Agent and Node as they are now to types serverV1alpha1 and so on that never change
// again, let decodeV1alpha1 fill those and convert them, change Server, and give decoderOf a second case. No other part
// of the program sees an old version.
type decoder func(d document, into settings) error

// wrongKeys are the errors, one per line, of a file whose other keys were read.
type wrongKeys struct{ error }

// Unwrap lets errors.Is and errors.As see the errors.
func (w wrongKeys) Unwrap() error { return w.error }

// wrongKind is the error for a file of another command.
type wrongKind struct{ error }

func decoderOf(apiVersion string) decoder {
	switch apiVersion {
	case v1alpha1:
		return decodeV1alpha1
	}
	return nil
}

func decodeV1alpha1(d document, into settings) error {
	table := fields(into)
	known := make([]string, 0, len(table))
	byKey := make(map[string]field, len(table))
	for _, f := range table {
		if f.key == "" {
			continue
		}
		known = append(known, f.key)
		byKey[f.key] = f
	}
	errs := d.twice
	for _, p := range d.pairs {
		if f, ok := byKey[p.key.Value]; !ok {
			errs = append(errs, d.errorf(p.key, "unknown key %q%s", p.key.Value, suggestion(p.key.Value, known)))
		} else if err := d.set(f.in(into), p); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// document is a parsed file: its settings without apiVersion and kind. Keys are unique.
type document struct {
	file  string
	pairs []pair
	twice []error // duplicate keys
}

type pair struct{ key, value *yaml.Node }

// decode overwrites s with the settings in data; file is for messages. It is strict: an unknown key, a duplicate key, a
// value of the wrong type or a second document is an error with the line. Wrong keys are reported together, as
// wrongKeys, and the others are set.
func decode(file string, data []byte, s settings) error {
	d := document{file: file}
	var root yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	err := dec.Decode(&root)
	if err != nil && !errors.Is(err, io.EOF) {
		return d.syntax(err)
	}
	if err != nil || root.Content[0].Tag == "!!null" {
		return fmt.Errorf("%s: the file is empty: it must begin with \"apiVersion: %s\" and \"kind: %s\"", file, v1alpha1, s.kind())
	}
	var next yaml.Node
	if err := dec.Decode(&next); err == nil {
		return d.errorf(&next, "a second document: put all settings into one")
	} else if !errors.Is(err, io.EOF) {
		return d.syntax(err)
	}
	top := root.Content[0]
	if top.Kind != yaml.MappingNode {
		return d.errorf(top, "must be settings in the form \"key: value\"")
	}
	decodeVersion, err := d.read(top, s.kind())
	if err != nil {
		return err
	}
	if err := decodeVersion(d, s); err != nil {
		return wrongKeys{err}
	}
	return nil
}

// read takes apiVersion and kind, which must be want, out of top and keeps the rest.
func (d *document) read(top *yaml.Node, want string) (decoder, error) {
	seen := map[string]int{}
	header := map[string]pair{}
	for i := 0; i < len(top.Content); i += 2 {
		p := pair{top.Content[i], top.Content[i+1]}
		for p.value.Kind == yaml.AliasNode {
			p.value = p.value.Alias
		}
		name := p.key.Value
		if line, twice := seen[name]; twice {
			d.twice = append(d.twice, d.errorf(p.key, "key %q is already given in line %d: remove one", name, line))
			continue
		}
		seen[name] = p.key.Line
		if name == "apiVersion" || name == "kind" {
			header[name] = p
			continue
		}
		d.pairs = append(d.pairs, p)
	}
	for _, name := range []string{"apiVersion", "kind"} {
		if _, ok := header[name]; !ok {
			return nil, fmt.Errorf("%s: %s is missing: the file must begin with \"apiVersion: %s\" and \"kind: %s\"", d.file, name, v1alpha1, want)
		}
	}
	if k := header["kind"]; k.value.Value != want {
		return nil, wrongKind{d.errorf(k.key, "kind %q is not for this command: use %q", k.value.Value, want)}
	}
	v := header["apiVersion"]
	dec := decoderOf(v.value.Value)
	if dec == nil {
		return nil, d.errorf(v.key, "apiVersion %q is not known to this kubelith: use %q", v.value.Value, v1alpha1)
	}
	return dec, nil
}

// set sets the field dst to the value of p. It converts nothing: a number is not a string.
func (d document) set(dst reflect.Value, p pair) error {
	if p.value.Tag == "!!null" {
		return d.errorf(p.key, "%s has no value: give it one or remove the line", p.key.Value)
	}
	switch dst.Kind() {
	case reflect.String:
		s, err := d.text(p.key.Value, p.value)
		if err != nil {
			return err
		}
		dst.SetString(s)
	case reflect.Bool:
		var b bool
		if p.value.Tag != "!!bool" || p.value.Decode(&b) != nil {
			return d.errorf(p.value, "%s must be true or false, without quotes", p.key.Value)
		}
		dst.SetBool(b)
	case reflect.Int:
		var n int
		if p.value.Tag != "!!int" || p.value.Decode(&n) != nil {
			return d.errorf(p.value, "%s must be a whole number, without quotes", p.key.Value)
		}
		dst.SetInt(int64(n))
	default:
		if dst.Type() == reflect.TypeFor[[]Plugin]() {
			plugins, err := d.plugins(p)
			dst.Set(reflect.ValueOf(plugins))
			return err
		}
		values, err := d.texts(p)
		if err != nil {
			return err
		}
		dst.Set(reflect.ValueOf(values).Convert(dst.Type()))
	}
	return nil
}

// texts returns a list of strings.
func (d document) texts(p pair) ([]string, error) {
	if p.value.Kind != yaml.SequenceNode {
		return nil, d.errorf(p.value, "%s must be a list: write %s: [a, b]", p.key.Value, p.key.Value)
	}
	values := make([]string, 0, len(p.value.Content))
	for _, item := range p.value.Content {
		s, err := d.text("an item of "+p.key.Value, item)
		if err != nil {
			return nil, err
		}
		values = append(values, s)
	}
	return values, nil
}

func (d document) text(what string, n *yaml.Node) (string, error) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch {
	case n.Kind != yaml.ScalarNode:
		return "", d.errorf(n, "%s must be a string", what)
	case n.Tag != "!!str":
		return "", d.errorf(n, "%s must be a string: put %s in quotes", what, n.Value)
	}
	return n.Value, nil
}

func (d document) errorf(at *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %s", d.file, at.Line, fmt.Sprintf(format, args...))
}

// syntax rewrites an error of the YAML parser ("yaml: line 3: ...") in our form.
func (d document) syntax(err error) error {
	m := regexp.MustCompile(`(?s)^(?:\w+: )*line (\d+): (.*)$`).FindStringSubmatch(err.Error())
	if m == nil {
		return fmt.Errorf("%s: not valid YAML: %w", d.file, err)
	}
	return fmt.Errorf("%s:%s: not valid YAML: %s", d.file, m[1], m[2])
}

// suggestion ends the message about an unknown word: with the nearest of known, or with all of them when none is near.
func suggestion(word string, known []string) string {
	switch near := suggest.Nearest(word, known); {
	case near != "":
		return near
	case len(known) <= 12:
		return ": use one of " + strings.Join(known, ", ")
	}
	return ": remove it"
}
