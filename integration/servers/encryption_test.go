package servers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"kubelith.io/kubelith/integration/harness"
)

// keysInUse is what the test reads of kubelith encryption status.
type keysInUse struct {
	Rotation struct{ Key, Phase string }
	Waiting  string
	Secrets  map[string]int
	Servers  []struct {
		Name, Writes, Problem string
		Reads                 []string
	}
}

func encryptionStatus(t *testing.T, s *harness.Server) (v keysInUse, err error) {
	r := s.RunBinary(t, "encryption", "status", "-o", "json")
	if r.Code != 0 {
		return v, errors.New(r.Stderr)
	}
	return v, json.Unmarshal([]byte(r.Stdout), &v)
}

// askKeys is encryptionStatus without starting the program, for what is asked again and again.
func askKeys(t *testing.T, s *harness.Server) (v keysInUse, err error) {
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience(10*time.Second))
	defer cancel()
	text, err := s.Client(t).CoreV1().RESTClient().Get().AbsPath("/kubelith/v1/encryption").SetHeader("Accept", "application/json").DoRaw(ctx)
	if err == nil {
		err = json.Unmarshal(text, &v)
	}
	return v, err
}

// only returns why not every server uses exactly this key, for all Secrets.
func (v keysInUse) only(key string, servers int) error {
	if len(v.Servers) != servers || len(v.Secrets) != 1 || v.Secrets[key] == 0 {
		return fmt.Errorf("%+v", v)
	}
	for _, s := range v.Servers {
		if s.Writes != key || !slices.Equal(s.Reads, []string{key}) || s.Problem != "" {
			return fmt.Errorf("%+v", v)
		}
	}
	return nil
}

// TestRotateEncryption: three servers get a new key for Secrets while clients write Secrets on each of them and read
// them on another. Servers are killed on the way, first the only one that has the new key, and the rotation goes on. In
// the end every Secret is encrypted with the new key, no server has the old one, and the new one has never been in
// etcd.
func TestRotateEncryption(t *testing.T) {
	t.Parallel()
	c := three(t)
	c.leader(t)
	first := c.servers[0]
	for i := range 100 {
		if err := writeSecret(t.Context(), first.Client(t), fmt.Sprintf("before-%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	harness.Eventually(t, time.Minute, "every server to report key1", func() error {
		v, err := askKeys(t, first)
		return errors.Join(err, v.only("key1", 3))
	})

	stop := c.useSecrets(t)
	began := time.Now()
	if r := first.RunBinary(t, "encryption", "rotate", "--no-wait"); r.Code != 0 || !strings.Contains(r.Stdout, "Rotation to key-") {
		t.Fatalf("status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	first.Kill9(t)
	first.Launch(t)
	phase := func(s *harness.Server, not string) {
		t.Helper()
		harness.Eventually(t, 2*time.Minute, "a phase after "+not, func() error {
			v, err := askKeys(t, s)
			if err == nil && v.Rotation.Phase == not {
				err = fmt.Errorf("it waits for %s", v.Waiting)
			}
			return err
		})
	}
	phase(c.servers[1], "distribute")
	leader := c.leader(t)
	leader.Kill9(t)
	leader.Launch(t)
	harness.Eventually(t, 3*time.Minute, "the end of the rotation", func() error {
		v, err := askKeys(t, c.servers[2])
		if err == nil && v.Rotation.Phase != "done" {
			err = fmt.Errorf("phase %s, waiting for %s", v.Rotation.Phase, v.Waiting)
		}
		return err
	})
	took := time.Since(began)
	written := stop()
	v, err := encryptionStatus(t, c.servers[2])
	if err := errors.Join(err, v.only(v.Rotation.Key, 3)); err != nil {
		t.Error(err)
	}
	t.Logf("%s: %v Secrets, of which %d were written meanwhile; two servers killed", took.Round(time.Millisecond), v.Secrets, written)
	t.Logf("\n%s", first.RunBinary(t, "encryption", "status").Stdout)

	secret := ""
	for _, s := range c.servers {
		keys := keysOf(t, s)
		if len(keys) != 1 || keys[v.Rotation.Key] == "" || secret != "" && secret != keys[v.Rotation.Key] {
			t.Errorf("%s has %d keys", s.NodeName(), len(keys))
		}
		secret = keys[v.Rotation.Key]
		for _, file := range etcdFiles(t, s) {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(content, []byte(secret)) {
				t.Errorf("%s: the key is in etcd: %s", s.NodeName(), file)
			}
			if !bytes.Contains(content, []byte(v.Rotation.Key)) && strings.HasSuffix(file, "/db") {
				t.Errorf("%s: %s has not even the name of the key", s.NodeName(), file)
			}
		}
	}
	c.rotateAgain(t)
	// A server that starts with what it has now reads all of them.
	c.servers[1].Kill9(t)
	c.servers[1].Launch(t)
	harness.Eventually(t, time.Minute, "all Secrets", func() error {
		for _, s := range c.servers {
			all, err := s.Client(t).CoreV1().Secrets(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			if len(all.Items) < 100+written {
				return fmt.Errorf("%s: %d Secrets", s.NodeName(), len(all.Items))
			}
			for _, secret := range all.Items {
				if string(secret.Data["name"]) != secret.Name {
					return harness.Permanent(fmt.Errorf("%s has the content of %q", secret.Name, secret.Data["name"]))
				}
			}
		}
		return nil
	})
}

// rotateAgain waits for a rotation, as the command does by default. A Secret that may not be written holds it up, and
// the status names it.
func (c *cluster) rotateAgain(t *testing.T) {
	t.Helper()
	s := c.servers[2]
	const policy = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: keep}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [secrets]}]}
  validations: [{expression: "object.metadata.name != 'before-7'", message: it stays as it is}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: keep}
spec: {policyName: keep, validationActions: [Deny]}
`
	s.KubectlInput(t, policy, "apply", "-f", "-")
	for _, s := range c.servers {
		harness.Eventually(t, time.Minute, "the policy on "+s.NodeName(), func() error {
			_, err := s.Client(t).CoreV1().Secrets(metav1.NamespaceDefault).Patch(t.Context(), "before-7", "application/merge-patch+json",
				fmt.Appendf(nil, `{"metadata":{"annotations":{"at":%q}}}`, time.Now().String()), metav1.PatchOptions{})
			if err == nil || !strings.Contains(err.Error(), "it stays as it is") {
				return fmt.Errorf("it is not refused by the policy: %v", err)
			}
			return nil
		})
	}
	rotate := s.BinaryCommand("encryption", "rotate")
	var out bytes.Buffer
	rotate.Stdout, rotate.Stderr = &out, &out
	if err := rotate.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- rotate.Wait() }()
	harness.Eventually(t, 2*time.Minute, "the status to name the Secret", func() error {
		v, err := askKeys(t, s)
		if err == nil && (v.Rotation.Phase != "rewrite" || !strings.Contains(v.Waiting, "cannot write Secret default/before-7") || v.Secrets[v.Rotation.Key] < 100) {
			err = fmt.Errorf("%+v", v)
		}
		return err
	})
	s.Kubectl(t, "delete", "validatingadmissionpolicybinding/keep", "validatingadmissionpolicy/keep")
	select {
	case err := <-ended:
		if err != nil || !strings.Contains(out.String(), "\nThe last rotation, to key-") {
			t.Errorf("%v\n%s", err, out.String())
		}
	case <-time.After(harness.Patience(2 * time.Minute)):
		rotate.Process.Kill()
		t.Fatalf("it does not end\n%s", out.String())
	}
	t.Logf("\n%s", out.String())
	v, err := encryptionStatus(t, s)
	if err := errors.Join(err, v.only(v.Rotation.Key, 3)); err != nil {
		t.Error(err)
	}
}

func writeSecret(ctx context.Context, cs kubernetes.Interface, name string) error {
	_, err := cs.CoreV1().Secrets(metav1.NamespaceDefault).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"name": []byte(name)}}, metav1.CreateOptions{})
	return err
}

// useSecrets writes Secrets on each server in turn and reads each on the next one, until stop, which returns how many
// were written. A server that is away is no failure; one that cannot decrypt is.
func (c *cluster) useSecrets(t *testing.T) (stop func() int) {
	ctx, cancel := context.WithCancel(t.Context())
	var clients []kubernetes.Interface
	for _, s := range c.servers {
		clients = append(clients, s.Client(t))
	}
	written, done := 0, make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			name := fmt.Sprintf("meanwhile-%d", i)
			one, end := context.WithTimeout(ctx, 2*time.Second)
			err := writeSecret(one, clients[i%len(clients)], name)
			if err == nil {
				written++
				var got *corev1.Secret
				got, err = clients[(i+1)%len(clients)].CoreV1().Secrets(metav1.NamespaceDefault).Get(one, name, metav1.GetOptions{})
				if err == nil && string(got.Data["name"]) != name || apierrors.IsNotFound(err) {
					t.Errorf("%s, written on one server and read on another: %v, %v", name, got, err)
				}
			}
			end()
			if err != nil && (strings.Contains(err.Error(), "decrypt") || strings.Contains(err.Error(), "prefix") || strings.Contains(err.Error(), "transform")) {
				t.Errorf("%s: %v", name, err)
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return func() int { cancel(); <-done; return written }
}

// keysOf returns the keys in a server's file, by name.
func keysOf(t *testing.T, s *harness.Server) map[string]string {
	t.Helper()
	text, err := os.ReadFile(s.Path(harness.DataDir + "/server/cred/encryption.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Resources []struct {
			Providers []struct {
				Secretbox struct {
					Keys []struct{ Name, Secret string }
				}
			}
		}
	}
	if err := yaml.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	keys := map[string]string{}
	for _, r := range c.Resources {
		for _, p := range r.Providers {
			for _, k := range p.Secretbox.Keys {
				keys[k.Name] = k.Secret
			}
		}
	}
	return keys
}

// etcdFiles are the database and the log of a server's etcd.
func etcdFiles(t *testing.T, s *harness.Server) []string {
	t.Helper()
	member := s.Path(harness.DataDir + "/server/db/member")
	logs, err := filepath.Glob(member + "/wal/*.wal")
	if err != nil || len(logs) == 0 {
		t.Fatalf("%v %v", logs, err)
	}
	return append(logs, member+"/snap/db")
}
