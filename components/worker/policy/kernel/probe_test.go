package kernel

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"kubelith.io/kubelith/components/worker/policy/rules"
)

// TestProbe: the probe has each kind of map and rule that a table of any policy has, and the kernel takes it.
func TestProbe(t *testing.T) {
	have := kinds(Probe())
	for _, spec := range specs {
		c := rules.NewCompiler()
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "p"}}
		if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
			t.Fatal(err)
		}
		c.SetPolicy(p)
		for _, app := range []string{"a", "b", "c"} {
			c.SetPod(&rules.Pod{Namespace: "x", Name: app, UID: "uid", Labels: map[string]string{"app": app}, IPs: probeIPs})
			c.AddLocal("uid", probeIPs)
			table := fake(t)
			tx := table.nft.NewTransaction()
			table.build(tx, c.All())
			for kind := range kinds(tx.String()) {
				if !have[kind] {
					t.Errorf("the probe has no %q, which the table of this policy has:\n%s", kind, spec)
				}
			}
			c.DeletePod("uid")
			c.DeleteLocal("uid")
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	nft := exec.Command("unshare", "-n", "nft", "-f", "-")
	nft.Stdin = strings.NewReader(Probe())
	if out, err := nft.CombinedOutput(); err != nil {
		t.Errorf("%v: %s\n%s", err, out, Probe())
	}
}

// classNames are names of classes in a table, which are numbered.
var classNames = regexp.MustCompile(`(e|in)gress-\d+`)

// kinds are the lines of a table without what differs between two that need the same of the kernel.
func kinds(text string) map[string]bool {
	out := map[string]bool{}
	for _, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, "add element") {
			line, _, _ = strings.Cut(line, "{")
		}
		line, _, _ = strings.Cut(line, " comment ")
		line, _, _ = strings.Cut(line, " ;")
		out[classNames.ReplaceAllString(line, "${1}gress-N")] = true
	}
	return out
}
