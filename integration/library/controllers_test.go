package library

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/kubernetes/cmd/kube-controller-manager/app"

	"kubelith.io/kubelith/cluster"
	"kubelith.io/kubelith/integration/harness"
)

// TestControllers: every controller that upstream enables runs. Upstream skips those whose feature is off and logs it.
func TestControllers(t *testing.T) {
	t.Parallel()
	c, _ := start(t, cluster.Options{Args: []string{"--log-level=debug"}})
	var want []string
	for name, c := range app.NewControllerDescriptors() {
		if !c.IsDisabledByDefault() {
			want = append(want, name)
		}
	}
	slices.Sort(want)
	starting := regexp.MustCompile(`Controller starting\.\.\..* controller=(\S+)`)
	skipped := regexp.MustCompile(`Warning: skipping controller.* controller=(\S+)`)
	var missing []string
	harness.Eventually(t, 60*time.Second, "the controllers", func() error {
		content, err := os.ReadFile(c.LogFile())
		if err != nil {
			return err
		}
		log := string(content)
		started := matches(starting, log)
		missing = slices.DeleteFunc(slices.Clone(want), func(name string) bool { return slices.Contains(started, name) })
		unsaid := slices.DeleteFunc(slices.Clone(missing), func(name string) bool { return slices.Contains(matches(skipped, log), name) })
		if len(unsaid) > 0 {
			return fmt.Errorf("neither started nor left out: %s", strings.Join(unsaid, ", "))
		}
		return nil
	})
	for _, name := range missing {
		if gates := app.NewControllerDescriptors()[name].GetRequiredFeatureGates(); len(gates) == 0 {
			t.Errorf("%s does not run", name)
		}
	}
	t.Logf("%d controllers run, upstream leaves out %s", len(want)-len(missing), strings.Join(missing, ", "))
}

// matches returns the first group of every match.
func matches(re *regexp.Regexp, text string) []string {
	var found []string
	for _, m := range re.FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	return found
}
