package scheduler

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
)

const policyText = "kind: Policy\napiVersion: v1\npredicates: []\npriorities: [{name: ImageLocalityPriority, weight: 7}]\n"

// policyFile has a policy.
func policyFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// follows reports whether a configuration is that of policyText.
func follows(c *config.KubeSchedulerConfiguration) bool {
	if c == nil || len(c.Profiles) != 1 {
		return false
	}
	scores := c.Profiles[0].Plugins.Score.Enabled
	return len(scores) == 1 && scores[0] == config.Plugin{Name: "ImageLocality", Weight: 7}
}

func TestPolicyFile(t *testing.T) {
	file, broken := policyFile(t, policyText), policyFile(t, policyText+"oops: 1\n")
	for args, want := range map[string]string{
		"policy-config-file=" + file: "",
		"policy-config-file=" + file + " use-legacy-policy-config=true policy-configmap=c": "",
		"policy-config-file=" + broken:             "--scheduler-arg policy-config-file=" + broken + `: line 5: policy has no field "oops"`,
		"policy-config-file=/no/such/file":         "/no/such/file",
		"policy-config-file=" + file + " config=c": "--scheduler-arg policy-config-file: a file of config=FILE replaces it",
		"policy-configmap=m config=c":              "--scheduler-arg policy-configmap: a file of config=FILE replaces it",
		"use-legacy-policy-config=true":            "--scheduler-arg use-legacy-policy-config: set policy-config-file as well",
	} {
		s, err := New(Options{Args: strings.Fields(args)})
		switch {
		case want != "":
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v, want %s", args, err, want)
			}
		case err != nil || !follows(s.config) || !follows(s.followed(t.Context(), fake.NewClientset())):
			t.Errorf("%s: %v", args, err)
		}
	}
	// The ConfigMap takes precedence, and the file is not even read.
	if s, err := New(Options{Args: []string{"policy-config-file=/no/such/file", "policy-configmap=m"}}); err != nil || follows(s.config) {
		t.Error(err)
	}
}

func TestPolicyConfigMap(t *testing.T) {
	for args, want := range map[string]types.NamespacedName{
		"":                   {},
		"policy-configmap=m": {Namespace: "kube-system", Name: "m"},
		"--policy_configmap=m policy-configmap-namespace=n unknown=1":                         {Namespace: "n", Name: "m"},
		"policy-configmap=m policy-configmap-namespace=":                                      {Namespace: "kube-system", Name: "m"},
		"policy-configmap=m use-legacy-policy-config=true policy-config-file=f config=/dev/x": {},
	} {
		if got := PolicyConfigMap(strings.Fields(args)); got != want {
			t.Errorf("%s: %v, want %v", args, got, want)
		}
	}

	log, lines := logrustest.NewNullLogger()
	s, err := New(Options{Args: []string{"policy-configmap=m", "policy-configmap-namespace=n"}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	holds := func(data map[string]string) *fake.Clientset {
		return fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "m"}, Data: data})
	}
	if c := s.followed(t.Context(), holds(map[string]string{policyKey: policyText})); !follows(c) {
		t.Errorf("%+v", c)
	}
	if e := lines.LastEntry(); e == nil || e.Level != logrus.WarnLevel || !strings.Contains(e.Message, "the ConfigMap n/m") || !strings.Contains(e.Message, "| kubelith scheduler-policy -") {
		t.Errorf("log: %+v", e)
	}
	for want, cs := range map[string]*fake.Clientset{
		"ConfigMap n/m: it does not exist":                           fake.NewClientset(),
		`ConfigMap n/m: it has no key "policy.cfg"`:                  holds(map[string]string{"other": policyText}),
		`ConfigMap n/m: policy.cfg: line 5: policy has no field "x"`: holds(map[string]string{policyKey: policyText + "x: 1\n"}),
	} {
		ctx, cancel := context.WithCancel(t.Context())
		log.ReplaceHooks(logrus.LevelHooks{})
		log.AddHook(lines)
		log.AddHook(onLine(cancel))
		if c := s.followed(ctx, cs); c != nil || !strings.Contains(lines.LastEntry().Message, want) {
			t.Errorf("%v, %q, want %s", c, lines.LastEntry().Message, want)
		}
	}
}

// onLine is called for each line of a log.
type onLine func()

func (onLine) Levels() []logrus.Level { return logrus.AllLevels }

func (f onLine) Fire(*logrus.Entry) error {
	f()
	return nil
}
