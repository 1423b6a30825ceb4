package plugins

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/plugins/pluginadmin"
)

const (
	strictPath     = "/opt/kubelith/bad/strict"
	lenientPath    = "/opt/kubelith/bad/lenient"
	faultyPlugins  = "plugins:\n" + strictPlugin + lenientPlugin + choosyPlugin
	strictPlugin   = "- {name: strict, kind: scheduling, path: " + strictPath + ", failurePolicy: Fail, timeout: 2s}\n"
	lenientPlugin  = "- {name: lenient, kind: scheduling, path: " + lenientPath + ", failurePolicy: Ignore, timeout: 2s}\n"
	choosyPlugin   = "- {name: choosy, kind: scheduling, path: " + lenientPath + ", failurePolicy: Fail, timeout: 2s, config: {forbid: true}}\n"
	faultyProfiles = schedulerHead + `  plugins: {multiPoint: {disabled: [{name: strict}, {name: lenient}, {name: choosy}]}}
- schedulerName: strict
  plugins: {multiPoint: {enabled: [{name: strict}]}}
- schedulerName: lenient
  plugins: {multiPoint: {enabled: [{name: lenient}]}}
- schedulerName: choosy
  plugins: {multiPoint: {enabled: [{name: choosy}]}}
`
)

// TestSchedulingFaults: what goes wrong with the process of a scheduling plugin, whether it may fail or not. Each
// profile has one plugin, the default profile none.
func TestSchedulingFaults(t *testing.T) {
	t.Parallel()
	program := harness.BuildProgram(t, "./badscheduler")
	s := schedulingServer(t, header+faultyPlugins, faultyProfiles, map[string]string{strictPath: program, lenientPath: program})
	for _, name := range []string{"strict", "lenient", "choosy"} {
		wait(t, s, name, "is ready", ready)
	}
	for _, tc := range []struct {
		name string
		run  func(*testing.T, *harness.Server)
	}{
		{"answers", testBadAnswers}, {"down", testDown}, {"hangs", testHangs}, {"changes its mind", testChangesItsMind},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.run(t, s) })
	}
}

// by is a pod for a profile.
func by(profile string, pod *corev1.Pod) *corev1.Pod {
	pod.Spec.SchedulerName = profile
	return pod
}

// failedScheduling waits for an Event of a pod.
func failedScheduling(t *testing.T, s *harness.Server, pod *corev1.Pod, message string) {
	t.Helper()
	eventWithin(t, s, soon, pod.Namespace, "Pod", pod.Name, "FailedScheduling", message)
}

// unboundStill fails when a pod has a node.
func unboundStill(t *testing.T, s *harness.Server, pod *corev1.Pod) {
	t.Helper()
	got, err := s.Client(t).CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Spec.NodeName != "" {
		t.Errorf("pod %s is on %s", pod.Name, got.Spec.NodeName)
	}
}

// testBadAnswers: an invalid answer counts as none. The pod of a plugin that must answer gets the error, and the
// process goes on.
func testBadAnswers(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	before := processes(t, s, strictPath)
	faults := map[string]string{
		"score-101":    "the score 101 for node",
		"score-255":    "the score 255 for node",
		"few-scores":   "it returned 2 scores for 3 nodes",
		"many-scores":  "it returned 4 scores for 3 nodes",
		"unknown-node": "it rejected node 4711, which does not exist",
		"no-reason":    "it rejected nodes without a reason",
	}
	for fault, says := range faults {
		pod := s.Create(t, by("strict", unbound(ns, "strict-"+fault, "fault="+fault)))
		failedScheduling(t, s, pod, says)
		refused(t, s, pod, "plugin strict: ")
		bound(t, s, s.Create(t, by("lenient", unbound(ns, "lenient-"+fault, "fault="+fault))))
		unboundStill(t, s, pod)
	}
	for _, profile := range []string{"strict", "lenient"} {
		logged(t, s, ` error .*The plugin does not (filter|score): it (returned|rejected) .*plugin=`+profile)
		bound(t, s, s.Create(t, by(profile, unbound(ns, profile+"-sound"))))
	}
	if after := processes(t, s, strictPath); len(before) != 1 || len(after) != 1 || before[0] != after[0] {
		t.Errorf("processes %v, and %v after wrong answers", before, after)
	}
}

// testDown: a plugin that cannot be started keeps its pods, and no others, waiting until it can.
func testDown(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	if err := os.Chmod(s.Path(strictPath), 0o644); err != nil {
		t.Fatal(err)
	}
	wait(t, s, "strict", "keeps running", func(p pluginadmin.Plugin) bool {
		return p.Phase == "ready" && strings.Contains(p.Message, "is not executable")
	})
	if err := syscall.Kill(list(t, s)["strict"].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait(t, s, "strict", "has no process", func(p pluginadmin.Plugin) bool { return p.PID == 0 && strings.Contains(p.Message, "is not executable") })
	pod := s.Create(t, by("strict", unbound(ns, "strict")))
	failedScheduling(t, s, pod, "plugin strict: it is not running: "+strictPath+" is not executable")
	for _, profile := range []string{"default-scheduler", "lenient"} {
		bound(t, s, s.Create(t, by(profile, unbound(ns, profile))))
	}
	unboundStill(t, s, pod)
	if err := os.Chmod(s.Path(strictPath), 0o755); err != nil {
		t.Fatal(err)
	}
	bound(t, s, pod)
}

// testHangs: so does one that hangs, until the host has replaced its process.
func testHangs(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	before := wait(t, s, "strict", "is ready", ready)
	if err := syscall.Kill(before.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	pod := s.Create(t, by("strict", unbound(ns, "strict")))
	for _, profile := range []string{"default-scheduler", "lenient"} {
		bound(t, s, s.Create(t, by(profile, unbound(ns, profile))))
	}
	failedScheduling(t, s, pod, "plugin strict: it did not answer in time")
	bound(t, s, pod)
	harness.Eventually(t, time.Minute, "another process", func() error {
		if now := list(t, s)["strict"]; now.PID == before.PID || now.PID == 0 {
			return fmt.Errorf("it is %+v", now)
		}
		return nil
	})
}

// testChangesItsMind: pods that a plugin has refused are tried again when it runs with another configuration, and when
// there is none any more, though nothing else in the cluster changes.
func testChangesItsMind(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	first := s.Create(t, by("choosy", unbound(ns, "first")))
	refused(t, s, first, "3 forbidden for now")
	configure(t, s, strings.Replace(faultyPlugins, "forbid: true", "forbid: false", 1))
	bound(t, s, first)

	before := list(t, s)["choosy"]
	configure(t, s, faultyPlugins)
	wait(t, s, "choosy", "is replaced", func(p pluginadmin.Plugin) bool { return ready(p) && p.PID != before.PID })
	second := s.Create(t, by("choosy", unbound(ns, "second")))
	refused(t, s, second, "3 forbidden for now")
	configure(t, s, strings.TrimSuffix(faultyPlugins, choosyPlugin))
	bound(t, s, second)
}
