package trace

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var stageConstant = regexp.MustCompile(`(?m)^\t\w+ +(?:record\.)?Stage += "([a-z-]+)"$|^\t\w+ += "([a-z-]+)"$`)

// docs/how-a-pod-starts.md has every stage by the name that is printed.
func TestDocumentedStages(t *testing.T) {
	docs, err := os.ReadFile("../docs/how-a-pod-starts.md")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, file := range []string{"record/record.go", "timeline.go"} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range stageConstant.FindAllStringSubmatch(string(source), -1) {
			count++
			if stage := m[1] + m[2]; !strings.Contains(string(docs), "`"+stage+"`") {
				t.Errorf("docs/how-a-pod-starts.md does not name the stage %s", stage)
			}
		}
	}
	if count < 20 {
		t.Errorf("only %d stages found in the source", count)
	}
}
