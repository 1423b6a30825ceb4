package why

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
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

// unmade are the codes without a case in integration/why/cases, and why: what makes them is not to be had on one server
// within a test. Each has a unit test here.
func unmade() map[Code]string {
	const (
		refused   = "the API server refuses the object that would have it; one of an older version may"
		server    = "the component that would have to fail serves all cases"
		otherNode = "it takes a second node"
		passing   = "it lasts for a moment only"
	)
	return map[Code]string{
		EventWarns: "no component writes such Events about a kind without conditions", ObservationBehind: passing,
		SchedulerSilent: server, NoNodes: "the server is a node", NodePressure: "it would evict the pods of all cases", NodeCordoned: "the node takes the pods of all cases",
		ClaimUnbound: server, VolumeFailing: passing, PullDenied: "each registry words it differently", PullFailed: "each registry words it differently",
		StartupProbeFailing: "the kubelet kills it as soon as it is more than InProgress", CreateRefused: "every refusal that a test can make has a code",
		PriorityClassMissing: "it is a message like that of ServiceAccountMissing", ProgressDeadline: "with a fault of a pod, that is the answer",
		JobIndexesFailed: "it is a condition like that of JobBackoffLimit", TimeZoneInvalid: refused, ScheduleInvalid: refused,
		ScheduleMissed: "the controller would have to be away", PodsNotReady: "it is a status like that of NoEndpoints", NoEndpoints: passing,
		OutsideCluster: "it is one field of the Service", PodNotRunning: "it is one field of the pod",
		PodUnreachable: otherNode, ClusterDNSDown: server, NodeNetworkDown: otherNode, RolloutNoRoom: "the API server's defaults do not have it; it is ruled out only",
		PredecessorNotReady: "it is ruled out only",
	}
}

// TestCovered: each code is the answer of a case, or has a reason why no case makes it; then a unit test has it, or a
// case rules it out.
func TestCovered(t *testing.T) {
	files, err := filepath.Glob("../integration/why/cases/*/case.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	made, tested := map[Code]bool{}, map[Code]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			key, codes, _ := strings.Cut(line, ":")
			for _, code := range strings.FieldsFunc(codes, func(r rune) bool { return strings.ContainsRune(" [],\n", r) }) {
				switch key {
				case "code":
					made[Code(code)] = true
				case "ruledOut":
					tested[Code(code)] = true
				}
			}
		}
	}
	tests, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range tests {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if file == "codes_test.go" { // it has all of them
			continue
		}
		for _, word := range regexp.MustCompile(`\w+`).FindAllString(string(text), -1) {
			tested[Code(word)] = true
		}
	}
	source, err := os.ReadFile("codes.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range inSource.FindAllStringSubmatch(string(source), -1) {
		code := Code(m[2])
		switch reason := unmade()[code]; {
		case made[code] && reason != "":
			t.Errorf("%s has a case: remove it from unmade", code)
		case !made[code] && reason == "":
			t.Errorf("%s has no case in integration/why/cases: add one, or say in unmade why not", code)
		case !made[code] && !tested[code]:
			t.Errorf("%s has no case and no unit test", code)
		}
	}
}
