package nodes

import (
	"bufio"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// testRotation: an agent gets new certificates before its old ones expire. Neither its watches nor streams through its
// kubelet notice.
func testRotation(t *testing.T, c *harness.Cluster, a *harness.Server) {
	ns := c.Namespace(t)
	pod := c.Server.Run(t, on(a, harness.Pod(ns, "prints", "/bin/probe", "print", "line")))
	follow := c.Server.KubectlCommand("-n", ns, "logs", "--follow", pod.Name)
	out, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		follow.Process.Kill()
		follow.Wait()
	})
	var last atomic.Int64 // when a line came
	go func() {
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			last.Store(time.Now().UnixNano())
		}
	}()

	client, serving := certificate(t, a, "*client-current.pem"), certificate(t, a, "kubelet-server-current.pem")
	open := map[string]bool{} // by audit id
	for _, e := range watches(t, c.Server, a) {
		if e.Stage == "ResponseStarted" {
			open[e.AuditID] = true
		} else {
			delete(open, e.AuditID)
		}
	}
	if len(open) == 0 {
		t.Fatal("the agent watches nothing")
	}
	for _, old := range []struct {
		cert *x509.Certificate
		name string
	}{{client, "*client-current.pem"}, {serving, "kubelet-server-current.pem"}} {
		harness.Eventually(t, signedFor+30*time.Second, "the certificate that replaces "+old.cert.Subject.CommonName+" in "+old.name, func() error {
			if now := certificate(t, a, old.name); now.SerialNumber.Cmp(old.cert.SerialNumber) == 0 {
				return fmt.Errorf("it is still the one that ends at %s", now.NotAfter)
			}
			return nil
		})
	}
	// Everything must go on without the old ones.
	harness.Eventually(t, signedFor+30*time.Second, "the old certificates to expire", func() error {
		for _, old := range []*x509.Certificate{client, serving} {
			if left := time.Until(old.NotAfter); left > 0 {
				return fmt.Errorf("one has %s left", left)
			}
		}
		return nil
	})
	expired := time.Now()

	for _, e := range watches(t, c.Server, a) {
		if open[e.AuditID] && e.Stage == "ResponseComplete" && !e.ranOut() {
			t.Errorf("the agent's watch of %s ended (%d)", e.ObjectRef.Resource, e.ResponseStatus.Code)
		}
	}
	renewed(t, a, expired)
	harness.Eventually(t, 10*time.Second, "a line through kubectl logs --follow of before", func() error {
		if last := time.Unix(0, last.Load()); last.Before(expired) {
			return fmt.Errorf("the last one came at %s", last)
		}
		return nil
	})
	if got := c.Server.Kubectl(t, "-n", ns, "exec", pod.Name, "--", "echo", "here"); got != "here\n" {
		t.Errorf("exec: %q", got)
	}
	c.Server.Run(t, on(a, harness.Pod(ns, "new", "/bin/probe", "sleep")))
	if res := a.TryExec(t, "sh", "-c", "ls "+harness.DataDir+"/agent/pki"); res.Code != 0 || strings.Contains(res.Stdout, ".tmp") {
		t.Errorf("the directory of certificates: %s%s", res.Stdout, res.Stderr)
	}
}

// certificate is the current one of an agent, by the name of its file.
func certificate(t *testing.T, a *harness.Server, name string) *x509.Certificate {
	t.Helper()
	files, err := filepath.Glob(a.Path(harness.DataDir + "/agent/pki/" + name))
	if err != nil || len(files) != 1 {
		t.Fatalf("%s: %v %v", name, files, err)
	}
	// A link with an absolute target, as the agent sees it.
	target, err := os.Readlink(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(harness.DataDir, "agent/pki", target)
	}
	content, err := os.ReadFile(a.Path(target))
	if err != nil {
		t.Fatal(err)
	}
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			return cert
		}
	}
	t.Fatalf("%s has no certificate", target)
	return nil
}

// event is a line of the audit log.
type event struct {
	AuditID, Stage           string
	User                     struct{ Username string }
	ObjectRef                struct{ Resource string }
	ResponseStatus           struct{ Code int }
	RequestURI               string
	RequestReceivedTimestamp time.Time
	StageTimestamp           time.Time
}

// ranOut reports whether a watch ended when its client had asked for: after 5 to 10 minutes.
func (e event) ranOut() bool {
	u, err := url.Parse(e.RequestURI)
	if err != nil {
		return false
	}
	seconds, err := strconv.Atoi(u.Query().Get("timeoutSeconds"))
	return err == nil && e.StageTimestamp.Sub(e.RequestReceivedTimestamp) >= time.Duration(seconds)*time.Second
}

// watches returns the events of watches that last until one side closes them: the kubelet opens and closes those of
// single Secrets and ConfigMaps with the pods.
func watches(t *testing.T, s, node *harness.Server) []event {
	t.Helper()
	content, err := os.ReadFile(s.Path(auditLog))
	if err != nil {
		t.Fatal(err)
	}
	var events []event
	lines := strings.Split(string(content), "\n")
	for _, line := range lines[:len(lines)-1] { // the last one may be being written
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("audit log: %v: %s", err, line)
		}
		switch e.ObjectRef.Resource {
		case "pods", "nodes", "services", "endpointslices", "namespaces":
			if e.User.Username == "system:node:"+node.NodeName() {
				events = append(events, e)
			}
		}
	}
	return events
}
