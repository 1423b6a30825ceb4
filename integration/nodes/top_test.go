package nodes

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// testTop: kubectl top knows the use of each of the nodes, and of a pod there.
func testTop(t *testing.T, c *harness.Cluster, ns string, nodes []*harness.Server) {
	for _, n := range nodes {
		c.Server.Create(t, on(n, web(ns, "used-"+n.NodeName(), "used")))
	}
	harness.Eventually(t, 2*time.Minute, "kubectl top to know all", func() error {
		// A start of kubectl costs 0.3 s of CPU: the API must have the metrics first.
		const metrics = "/apis/metrics.k8s.io/v1beta1/"
		for path, prefix := range map[string]string{metrics + "nodes": "", metrics + "namespaces/" + ns + "/pods": "used-"} {
			known, err := raw(t, c, path)
			if err != nil {
				return err
			}
			for _, n := range nodes {
				if !strings.Contains(known, `"`+prefix+n.NodeName()+`"`) {
					return fmt.Errorf("%s lacks %s%s", path, prefix, n.NodeName())
				}
			}
		}
		var errs []error
		ofNodes, ofPods := c.Server.TryKubectl(t, "top", "nodes", "--no-headers"), c.Server.TryKubectl(t, "-n", ns, "top", "pods", "--no-headers")
		for _, n := range nodes {
			errs = append(errs, used(ofNodes, n.NodeName()), used(ofPods, "used-"+n.NodeName()))
		}
		return errors.Join(errs...)
	})
}

// used wants a line of kubectl top with the name, some CPU in milli-cores, and memory of at least 1 Mi.
func used(res harness.Result, name string) error {
	for line := range strings.Lines(res.Stdout) {
		f := strings.Fields(line)
		if len(f) < 3 || f[0] != name {
			continue
		}
		if !strings.HasSuffix(f[1], "m") {
			return fmt.Errorf("%s uses %q of CPU", name, f[1])
		}
		for _, field := range f[2:] {
			if strings.HasSuffix(field, "Mi") && field != "0Mi" {
				return nil
			}
		}
		return fmt.Errorf("no use of memory in %q", line)
	}
	return fmt.Errorf("%s is not in %q %s", name, res.Stdout, res.Stderr)
}
