// Package hardening checks servers with kube-bench (github.com/aquasecurity/kube-bench) and Kubelith's own checks for
// it.
package hardening

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// TestProfile: with the profile no check fails, only what a person has to judge is left, and what the profile sets is
// there.
func TestProfile(t *testing.T) {
	t.Parallel()
	bench := harness.Tool(t, "kube-bench")
	s := harness.Start(t, harness.Options{Args: []string{"--profile=cis"}})
	for id, r := range check(t, s, bench) {
		if r.Status != "PASS" && r.Type != "manual" {
			t.Errorf("%s is %s: %s\ngot: %s\nexpected: %s %s", id, r.Status, r.Text, r.Actual, r.Expected, r.Reason)
		}
	}

	ns := s.Namespace(t)
	pod := harness.Pod(ns, "privileged", "sleep", "1000")
	privileged := true
	pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &privileged}
	if _, err := s.Client(t).CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), `violates PodSecurity "baseline`) {
		t.Errorf("a privileged pod: %v", err)
	}
	small := s.Run(t, harness.Pod(ns, "small", "sleep", "1000"))
	if limit := podPIDs(t, s, small); limit != 4096 {
		t.Errorf("a pod may have %d processes, not 4096", limit)
	}

	audit, err := os.ReadFile(s.Path(harness.DataDir + "/server/profile/audit/audit.log"))
	if err != nil || !strings.Contains(string(audit), `"name":"small"`) {
		t.Errorf("the audit log of %d bytes does not name the pod, %v", len(audit), err)
	}
	if strings.Contains(string(audit), `"resource":"leases"`) || strings.Contains(string(audit), `"responseObject"`) {
		t.Error("the audit log has leases or contents of objects")
	}
}

// TestDefault: without the profile those checks fail that docs/hardening.md lists with a reason, and no others.
func TestDefault(t *testing.T) {
	t.Parallel()
	bench := harness.Tool(t, "kube-bench")
	s := harness.Start(t, harness.Options{})
	var failed []string
	for id, r := range check(t, s, bench) {
		if r.Status == "FAIL" {
			failed = append(failed, id)
		}
	}
	slices.Sort(failed)
	if listed := listed(t); !slices.Equal(failed, listed) {
		t.Errorf("without the profile these fail: %q, and docs/hardening.md lists %q", failed, listed)
	}
	// What keeps a fork bomb of a pod from taking the control plane down.
	pod := s.Run(t, harness.Pod(s.Namespace(t), "a", "sleep", "1000"))
	if limit := podPIDs(t, s, pod); limit > 16384 {
		t.Errorf("a pod may have %d processes", limit)
	}
}

// podPIDs is how many processes the kernel lets the pod have. Its cgroup is the one around the container's.
func podPIDs(t *testing.T, s *harness.Server, pod *corev1.Pod) int {
	t.Helper()
	dir := filepath.Dir(harness.CgroupDir(t, s.ContainerPID(t, pod, "main"), "pids"))
	text, err := os.ReadFile(filepath.Join(dir, "pids.max"))
	if err != nil {
		t.Fatal(err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatalf("%s: the pod has no limit: %v", dir, err)
	}
	return limit
}

// result is one check as kube-bench reports it.
type result struct {
	ID       string `json:"test_number"`
	Text     string `json:"test_desc"`
	Type     string `json:"type"`
	Status   string `json:"status"`
	Reason   string `json:"reason"`
	Actual   string `json:"actual_value"`
	Expected string `json:"expected_result"`
}

// check runs kube-bench on the server, as an operator does.
func check(t *testing.T, s *harness.Server, bench string) map[string]result {
	t.Helper()
	script, err := filepath.Abs("../../scripts/cis.sh")
	if err != nil {
		t.Fatal(err)
	}
	out := s.Exec(t, "env", "KUBELITH="+s.BinaryPath(), "NODE="+s.NodeName(), script, bench, "--json")
	var report struct {
		Controls []struct {
			Tests []struct{ Results []result }
		}
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	found := map[string]result{}
	for _, c := range report.Controls {
		for _, group := range c.Tests {
			for _, r := range group.Results {
				found[r.ID] = r
			}
		}
	}
	if len(found) < 90 {
		t.Fatalf("only %d checks ran: %q", len(found), slices.Sorted(maps.Keys(found)))
	}
	return found
}

var row = regexp.MustCompile(`(?m)^\| ([0-9][0-9.,-]*) \|`)

// listed are the checks in the table of docs/hardening.md that fail without the profile.
func listed(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile("../../docs/hardening.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "## What fails without the profile")
	section, _, _ := strings.Cut(rest, "\n## ")
	var ids []string
	for _, m := range row.FindAllStringSubmatch(section, -1) {
		ids = append(ids, m[1])
	}
	slices.Sort(ids)
	return ids
}
