package dns

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/coredns/caddy/caddyfile"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The ConfigMap with the administrator's additions to CoreDNS's configuration, in a common form: the keys *.override
// hold directives for the default server block, the keys *.server separate server blocks.
const (
	customNamespace = metav1.NamespaceSystem
	overrideSuffix  = ".override"
	serverSuffix    = ".server"
)

// custom holds the additions.
type custom struct {
	text      string // the ConfigMap's text, to notice changes
	Overrides string // lines for the default block
	Servers   []customServer
}

// customServer is a server block, without the directives that all our blocks have.
type customServer struct {
	Zones []string // without ports
	Body  string
}

// reserved are the directives that stay ours: where CoreDNS listens, which clients it answers, and the cluster's names.
var reserved = map[string]bool{"bind": true, sourcesPlugin: true, kubernetesPlugin: true}

// parseCustom reads the data of the ConfigMap. It copies nothing as text: an extra bracket would end our own block.
func parseCustom(data map[string]string) (c custom, err error) {
	c.text = textOf(data)
	for _, key := range slices.Sorted(maps.Keys(data)) {
		switch {
		case strings.HasSuffix(key, overrideSuffix):
			// As a block, because line breaks matter.
			blocks, err := parseBlocks(key, data[key], ". {\n", "\n}\n")
			if err != nil {
				return c, err
			}
			if len(blocks) != 1 {
				return c, fmt.Errorf("%s: a server block ends or begins in it: use a key *%s", key, serverSuffix)
			}
			c.Overrides += body(blocks[0])
		case strings.HasSuffix(key, serverSuffix):
			blocks, err := parseBlocks(key, data[key], "", "")
			if err != nil {
				return c, err
			}
			for _, block := range blocks {
				server := customServer{Body: body(block)}
				for _, zone := range block.Keys {
					if zone, err = withoutPort(zone); err != nil {
						return c, fmt.Errorf("%s: %w", key, err)
					}
					server.Zones = append(server.Zones, zone)
				}
				c.Servers = append(c.Servers, server)
			}
		}
	}
	return c, nil
}

// textOf returns the ConfigMap's data for comparison, without irrelevant keys.
func textOf(data map[string]string) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if strings.HasSuffix(key, overrideSuffix) || strings.HasSuffix(key, serverSuffix) {
			fmt.Fprintf(&b, "%q %q\n", key, data[key])
		}
	}
	return b.String()
}

// parseBlocks reads server blocks as CoreDNS does, between the texts before and after.
func parseBlocks(key, text, before, after string) ([]caddyfile.ServerBlock, error) {
	depth := 0
	for words := caddyfile.NewDispenser(key, strings.NewReader(text)); words.Next(); {
		switch words.Val() {
		case "import": // the parser would read files of the host
			return nil, fmt.Errorf("%s: import is not supported here: copy the contents instead", key)
		case "{":
			depth++
		case "}":
			depth--
		}
		if depth < 0 {
			return nil, fmt.Errorf("%s:%d: unexpected }", key, words.Line())
		}
	}
	if depth > 0 {
		return nil, fmt.Errorf("%s: missing } at the end", key)
	}
	blocks, err := caddyfile.Parse(key, strings.NewReader(before+text+after), nil)
	if err != nil {
		return nil, err // it names the key, and the line
	}
	for _, block := range blocks {
		for directive := range block.Tokens {
			if reserved[directive] {
				return nil, fmt.Errorf("%s: %s cannot be set: Kubelith sets it", key, directive)
			}
		}
		if slices.ContainsFunc(block.Keys, func(k string) bool { return strings.ContainsAny(k, "(){}\"") }) {
			return nil, fmt.Errorf("%s: %q is not a zone", key, block.Keys)
		}
	}
	return blocks, nil
}

// body writes the directives of a block, one output line for each input line.
func body(block caddyfile.ServerBlock) string {
	var b strings.Builder
	for _, directive := range slices.Sorted(maps.Keys(block.Tokens)) {
		tokens := block.Tokens[directive]
		for i, t := range tokens {
			switch {
			case i == 0:
				b.WriteString("\t")
			case t.Line != tokens[i-1].Line+strings.Count(tokens[i-1].Text, "\n"):
				b.WriteString("\n\t")
			default:
				b.WriteString(" ")
			}
			b.WriteString(quote(t.Text))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// plain matches a word that needs no quotes.
var plain = regexp.MustCompile(`^[^\s"#\\]+$`)

// quote writes a word so that CoreDNS reads it again.
func quote(word string) string {
	if plain.MatchString(word) {
		return word
	}
	return `"` + strings.ReplaceAll(word, `"`, `\"`) + `"`
}

// port matches a zone with a port; a match in an address with a prefix length is not a port.
var port = regexp.MustCompile(`^(.*[^:]|):(\d+)$`)

// withoutPort returns the zone of a key "[dns://]ZONE[:53]".
func withoutPort(key string) (string, error) {
	zone := strings.TrimPrefix(key, "dns://")
	if strings.Contains(zone, "://") {
		return "", fmt.Errorf("the zone %s: only DNS over UDP and TCP is served", key)
	}
	if m := port.FindStringSubmatch(zone); m != nil && !strings.Contains(m[1], ":") {
		if m[2] != "53" {
			return "", fmt.Errorf("the zone %s: only the port of the cluster's DNS is served: leave the port out", key)
		}
		zone = m[1]
	}
	zone = cmp.Or(zone, ".")
	if strings.ContainsAny(zone, " \t\r\n") {
		return "", errors.New("a zone contains whitespace")
	}
	return zone, nil
}
