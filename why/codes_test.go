package why

import (
	"bytes"
	"os"
	"regexp"
	"testing"
)

var (
	inSource = regexp.MustCompile(`(?m)^\t(\w+) +Code = "(\w+)" +// (.+)$`)
	inDocs   = regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (.+) \\|$")
)

// docs/why.md lists the codes as codes.go does, in the same order and words.
func TestDocumentedCodes(t *testing.T) {
	source, err := os.ReadFile("codes.go")
	if err != nil {
		t.Fatal(err)
	}
	docs, err := os.ReadFile("../docs/why.md")
	if err != nil {
		t.Fatal(err)
	}
	_, docs, _ = bytes.Cut(docs, []byte("\n## Codes\n"))
	want, got := inSource.FindAllStringSubmatch(string(source), -1), inDocs.FindAllStringSubmatch(string(docs), -1)
	if len(want) < 5 {
		t.Fatalf("codes.go has only %d codes of the form NAME Code = \"NAME\" // MEANING", len(want))
	}
	for i, w := range want {
		if w[1] != w[2] {
			t.Errorf("the constant %s has the value %q", w[1], w[2])
		}
		row := "| `" + w[2] + "` | " + w[3] + " |"
		if i >= len(got) || got[i][0] != row {
			t.Fatalf("docs/why.md, Codes, row %d: want\n%s", i+1, row)
		}
	}
	if len(got) > len(want) {
		t.Errorf("docs/why.md has %d codes, codes.go %d", len(got), len(want))
	}
}
