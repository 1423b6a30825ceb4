package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// apply creates the objects of Options.Manifests and waits until their CustomResourceDefinitions are established.
func (c *Cluster) apply(deadline time.Time) error {
	if len(c.opts.Manifests) == 0 {
		return nil
	}
	for _, path := range c.opts.Manifests {
		args := []string{"apply", "--server-side", "--filename=" + path}
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			args = append(args, "--recursive")
		}
		_, err := c.kubectl(deadline, args...)
		// Objects beside their definition are refused until that is established, and for a moment after it.
		if early(err) {
			if err := c.established(deadline); err != nil {
				return err
			}
			for end := time.Now().Add(discovery); early(err) && time.Now().Before(end); {
				time.Sleep(200 * time.Millisecond)
				_, err = c.kubectl(deadline, args...)
			}
		}
		if err != nil {
			return fmt.Errorf("apply %s: %w", path, err)
		}
	}
	return c.established(deadline)
}

// discovery is how long the API may take to serve a definition that is established.
const discovery = 5 * time.Second

// early reports whether kubectl knew no definition of an object.
func early(err error) bool {
	return err != nil && strings.Contains(err.Error(), "ensure CRDs are installed first")
}

// established waits until all CustomResourceDefinitions are.
func (c *Cluster) established(deadline time.Time) error {
	const definitions = "customresourcedefinitions.apiextensions.k8s.io"
	names, err := c.kubectl(deadline, "get", definitions, "--output=name")
	if err != nil || names == "" { // without any, the wait would be an error
		return err
	}
	timeout := fmt.Sprintf("--timeout=%.0fs", max(1, time.Until(deadline).Seconds()))
	_, err = c.kubectl(deadline, "wait", "--for=condition=Established", "--all", timeout, definitions)
	return err
}

// kubectl runs the executable's kubectl with the rights of cluster-admin and returns its output.
func (c *Cluster) kubectl(deadline time.Time, args ...string) (string, error) {
	return run(deadline, exec.Command(c.binary, append([]string{"kubectl", "--kubeconfig=" + c.Kubeconfig(), "--cache-dir=" + c.dir.path("kubectl")}, args...)...))
}

// run runs a program to its end, or to the deadline, and returns its output. The error has its stderr in one line.
func run(deadline time.Time, cmd *exec.Cmd) (string, error) {
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		return "", err
	}
	timer := time.AfterFunc(time.Until(deadline), func() { cmd.Process.Kill() })
	err := cmd.Wait()
	if !timer.Stop() {
		return "", errors.New("did not finish within Options.StartTimeout")
	}
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, strings.Join(strings.Split(strings.TrimSpace(stderr.String()), "\n"), "; "))
	}
	return stdout.String(), nil
}
