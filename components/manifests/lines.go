package manifests

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// lineOf is the line of a field as errors of the API name it: spec.ports[0].port, .spec.containers[name="a"].image,
// metadata.labels[a.b/c]. Where the document does not have the field, it is that of the nearest one around it.
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

// value is the value of a key, its own or one that it merges ("<<"); a node without content when there is none.
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

// merged are the mappings whose entries count as those of this one, the first before the others. No mapping merges itself: the
// decoder refuses an anchor inside of what it names.
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

// entry finds the key with which path begins, and returns it, its value and the rest of path. Keys may have dots and
// slashes in them: the longest that fits is taken.
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

// item finds the element of a list that path begins with: [0], [="a"], [name="a"] or [port=80,protocol="TCP"].
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

// selects tells whether the element has the values of the selector. One that it does not state is a default.
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

// brackets cuts "[inner]" off the front of a path. A bracket inside of quotes ends nothing.
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
