package manifests

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// lineOf returns the line of a field as API errors name it: spec.ports[0].port, .spec.containers[name="a"].image,
// metadata.labels[a.b/c]. If the document does not have the field, it returns the line of the nearest one around it.
func lineOf(node *yaml.Node, path string) int {
	line := node.Line
	for path = strings.TrimPrefix(path, "."); path != ""; path = strings.TrimPrefix(path, ".") {
		var at *yaml.Node
		switch node = resolve(node); node.Kind {
		case yaml.MappingNode:
			at, node, path = entry(node, path)
		case yaml.SequenceNode:
			node, path = item(node, path)
			at = node
		}
		if at == nil {
			return line
		}
		line = at.Line
	}
	return line
}

// resolve follows aliases.
func resolve(node *yaml.Node) *yaml.Node {
	for node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	return node
}

// value returns the value of a key, its own or a merged one ("<<"); a node without content when there is none.
func value(mapping *yaml.Node, name string) *yaml.Node {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == name {
			return resolve(mapping.Content[i+1])
		}
	}
	for _, from := range merged(mapping) {
		if found := value(from, name); found.Kind != 0 {
			return found
		}
	}
	return &yaml.Node{}
}

// merged returns the mappings whose entries count as entries of this one, in order of precedence. No mapping merges
// itself: the decoder rejects an anchor inside what it names.
func merged(mapping *yaml.Node) (all []*yaml.Node) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Kind != yaml.MappingNode || mapping.Content[i].Tag != "!!merge" {
			continue
		}
		switch from := resolve(mapping.Content[i+1]); from.Kind {
		case yaml.MappingNode:
			all = append(all, from)
		case yaml.SequenceNode:
			for _, element := range from.Content {
				if element = resolve(element); element.Kind == yaml.MappingNode {
					all = append(all, element)
				}
			}
		}
	}
	return all
}

// entry finds the key at the start of path, and returns it, its value and the rest of path. Keys may contain dots and
// slashes: the longest match is taken.
func entry(mapping *yaml.Node, path string) (found, content *yaml.Node, rest string) {
	quoted, afterBracket, bracket := brackets(path)
	longest := -1
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		name := mapping.Content[i].Value
		after, ok := strings.CutPrefix(path, name)
		ok = ok && (after == "" || after[0] == '.' || after[0] == '[')
		if bracket {
			after, ok = afterBracket, unquote(quoted) == name
		}
		if ok && len(name) > longest {
			longest, found, content, rest = len(name), mapping.Content[i], mapping.Content[i+1], after
		}
	}
	for _, from := range merged(mapping) {
		if found != nil {
			break
		}
		found, content, rest = entry(from, path)
	}
	return found, content, rest
}

// item finds the list element at the start of path: [0], [="a"], [name="a"] or [port=80,protocol="TCP"].
func item(sequence *yaml.Node, path string) (found *yaml.Node, rest string) {
	selector, rest, ok := brackets(path)
	if !ok {
		return nil, rest
	}
	if i, err := strconv.Atoi(selector); err == nil {
		if i < 0 || i >= len(sequence.Content) {
			return nil, rest
		}
		return sequence.Content[i], rest
	}
	for _, element := range sequence.Content {
		if selects(selector, resolve(element)) {
			return element, rest
		}
	}
	return nil, rest
}

// selects reports whether the element has the values of the selector. A missing value is a default.
func selects(selector string, element *yaml.Node) bool {
	stated := 0
	for _, pair := range commas(selector) {
		name, want, _ := strings.Cut(pair, "=")
		have := element
		if name != "" {
			have = value(element, name)
		}
		if have.Kind == 0 {
			continue
		}
		if have.Value != unquote(want) {
			return false
		}
		stated++
	}
	return stated > 0
}

// brackets cuts "[inner]" off the front of a path. It ignores brackets inside quotes.
func brackets(path string) (inner, rest string, ok bool) {
	if !strings.HasPrefix(path, "[") {
		return "", path, false
	}
	quoted := false
	for i, r := range path {
		switch {
		case r == '"':
			quoted = !quoted
		case r == ']' && !quoted:
			return path[1:i], path[i+1:], true
		}
	}
	return "", path, false
}

// commas splits at commas outside of quotes.
func commas(text string) []string {
	var parts []string
	quoted, start := false, 0
	for i, r := range text {
		switch {
		case r == '"':
			quoted = !quoted
		case r == ',' && !quoted:
			parts = append(parts, text[start:i])
			start = i + 1
		}
	}
	return append(parts, text[start:])
}

func unquote(text string) string {
	if plain, err := strconv.Unquote(text); err == nil {
		return plain
	}
	return text
}
