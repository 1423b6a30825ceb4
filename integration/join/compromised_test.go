package join

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/integration/harness"
)

// TestCompromisedAgent plays agents that an attacker has taken over: the client has an agent's key, certificate and
// token, and tries with them what no agent may. The attacks are on one cluster, each with its own agent and a comment
// on what must hold.
func TestCompromisedAgent(t *testing.T) {
	t.Parallel()
	s := server(t)
	for _, attack := range []struct {
		name string
		run  func(t *testing.T, s *harness.Server)
	}{
		{"stays after it was removed", staysAfterRemoval},
		{"renews when its Node is gone", renewsWithoutNode},
		{"renews as another machine", renewsAsAnotherMachine},
		{"reviews tokens that are none", reviewsNoTokens},
		{"is called instead of the API server", isTheAPIServer},
		{"changes the cluster's settings", changesSettings},
	} {
		t.Run(attack.name, func(t *testing.T) {
			t.Parallel()
			attack.run(t, s)
		})
	}
}

// compromised is an agent in foreign hands.
type compromised struct {
	*machine
	name   string
	config *rest.Config // of the node
	node   kubernetes.Interface
}

// takeOver returns an agent that has joined, registered its Node and is the attacker's now.
func takeOver(t *testing.T, s *harness.Server, name string, addresses ...string) *compromised {
	t.Helper()
	m := newMachine(t, s, create(t, s))
	config, cs := m.registered(t, name, addresses...)
	return &compromised{m, name, config, cs}
}

// renew asks for the next certificate with what the agent has.
func (c *compromised) renew(t *testing.T) ([]byte, error) {
	t.Helper()
	return ask(t, c.node, clientSign, newKey(t), x509.CertificateRequest{Subject: subject(c.name)}, certificatesv1.UsageClientAuth)
}

// unauthorized waits until the error is the API server's 401, and returns how long that took.
func unauthorized(t *testing.T, timeout time.Duration, what string, try func() error) (took time.Duration) {
	t.Helper()
	start := time.Now()
	harness.Eventually(t, timeout, what+" to be refused", func() error {
		if err := try(); !apierrors.IsUnauthorized(err) {
			return fmt.Errorf("it is not: %v", err)
		}
		return nil
	})
	return time.Since(start)
}

// staysAfterRemoval: from `kubelith node remove` on nothing of what the agent has is worth anything: its certificate,
// the watches that it had open, the tokens of its pods. A machine joins again under the name with a new token.
func staysAfterRemoval(t *testing.T, s *harness.Server) {
	c := takeOver(t, s, "stays", "192.0.2.81")
	bound := c.podToken(t)
	if who, err := bound.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{}); err != nil || who.Status.UserInfo.Username != "system:serviceaccount:default:default" {
		t.Fatalf("the token of its pod: %v, %v", who, err)
	}
	watch, err := c.node.CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		for range watch.ResultChan() {
		}
		close(ended)
	}()
	t.Cleanup(watch.Stop)
	if _, err := c.renew(t); err != nil {
		t.Fatalf("a renewal before: %v", err)
	}

	const said = "node stays removed; its machine needs a token to join again\nits join token %s still exists: run kubelith token delete %[1]s if the machine is compromised\n"
	if out := s.Exec(t, s.BinaryPath(), "node", "remove", c.name); out != fmt.Sprintf(said, c.token.id) {
		t.Errorf("kubelith node remove printed %q", out)
	}
	took := unauthorized(t, 3*time.Second, "its certificate", func() error {
		_, err := c.node.CoreV1().Nodes().Get(t.Context(), c.name, metav1.GetOptions{})
		return err
	})
	select {
	case <-ended:
	case <-time.After(harness.Patience(3 * time.Second)):
		t.Error("its watch goes on")
	}
	t.Logf("refused %s after the command", took)
	_, renewal := c.renew(t)
	for what, err := range map[string]error{
		"creates its Node again": second(c.node.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.name}}, metav1.CreateOptions{})),
		"asks for a renewal":     renewal,
		"watches":                second(c.node.CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{})),
		"asks for health":        c.node.Discovery().RESTClient().Get().AbsPath("/livez").Do(t.Context()).Error(),
	} {
		if !apierrors.IsUnauthorized(err) {
			t.Errorf("it %s: %v", what, err)
		}
	}
	if _, err := s.Client(t).CoreV1().Nodes().Get(t.Context(), c.name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("its Node: %v", err)
	}
	// The API server remembers for 10 s that a token was good.
	unauthorized(t, 15*time.Second, "the token of its pod", func() error {
		return second(bound.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{}))
	})
	if res := s.RunBinary(t, "node", "remove", c.name); res.Code == 0 || res.Stderr != "kubelith: node stays does not exist: kubelith kubectl get nodes lists the nodes; kubelith node remove --force stays revokes its credentials anyway\n" {
		t.Errorf("a second time: exit code %d, %s%s", res.Code, res.Stdout, res.Stderr)
	}

	again := newMachine(t, s, create(t, s, "--once"))
	_, cs := again.registered(t, c.name, "192.0.2.81")
	if _, err := cs.CoreV1().Nodes().Get(t.Context(), c.name, metav1.GetOptions{}); err != nil {
		t.Errorf("a machine that has joined again under the name: %v", err)
	}
	if _, err := c.node.CoreV1().Nodes().Get(t.Context(), c.name, metav1.GetOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("the old certificate, when another machine has the name: %v", err)
	}
}

// podToken is a client with the token of a pod on the agent, which an agent asks for as its kubelet does.
func (c *compromised) podToken(t *testing.T) kubernetes.Interface {
	t.Helper()
	admin := c.s.Client(t)
	harness.Eventually(t, 30*time.Second, "the service account default", func() error {
		return second(admin.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{}))
	})
	pod, err := admin.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "on-" + c.name},
		Spec:       corev1.PodSpec{NodeName: c.name, Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var token *authenticationv1.TokenRequest
	harness.Eventually(t, 10*time.Second, "a token for its pod", func() (err error) { // the node authorizer learns of the pod
		token, err = c.node.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}},
		}, metav1.CreateOptions{})
		return err
	})
	config := rest.AnonymousClientConfig(c.config)
	config.BearerToken = token.Status.Token
	return clientFor(t, config)
}

// renewsWithoutNode: who deletes a Node with kubectl does not shut its machine out, but the certificate that it has is
// the last.
func renewsWithoutNode(t *testing.T, s *harness.Server) {
	c := takeOver(t, s, "deleted", "192.0.2.82")
	deleteNode(t, s, c.name)
	_, err := c.renew(t)
	refusedWith(t, s, err, "NotANode", "node deleted does not exist: its machine must join again with a token")
}

// renewsAsAnotherMachine: an agent cannot pose as another machine, and another machine's Node gets no new certificate.
func renewsAsAnotherMachine(t *testing.T, s *harness.Server) {
	c := takeOver(t, s, "relabelled", "192.0.2.83")
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{"kubelith.io/machine": strings.Repeat("0", 63)}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.node.CoreV1().Nodes().Patch(t.Context(), c.name, types.MergePatchType, patch, metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("it changes the label of its machine: %v", err)
	}
	if _, err := s.Client(t).CoreV1().Nodes().Patch(t.Context(), c.name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = c.renew(t)
	refusedWith(t, s, err, "NotANode", "label kubelith.io/machine of node relabelled does not identify the machine that joined under this name")
}

// reviewsNoTokens: a token that begins with a blank is a wrong one, and no panic of the API server.
func reviewsNoTokens(t *testing.T, s *harness.Server) {
	c := takeOver(t, s, "reviews", "192.0.2.84")
	review, err := c.node.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: " x"}}, metav1.CreateOptions{})
	if err != nil || review.Status.Authenticated {
		t.Errorf("%v, %v", review, err)
	}
	if strings.Contains(s.Logs(), "observed a panic") || strings.Contains(s.Logs(), "Observed a panic") {
		t.Error("the API server has panicked")
	}
}

// isTheAPIServer: the API server, which has all rights on kubelets, calls a node at the address in its Node. It does
// not call itself for a client with nodes/proxy on this one node: it does not dial the address, and would not trust the
// certificate (TestKubeletTrust in base/pki).
func isTheAPIServer(t *testing.T, s *harness.Server) {
	c := takeOver(t, s, "deputy", s.NodeIP)
	patch := []byte(`{"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":6443}}}}`)
	if _, err := c.node.CoreV1().Nodes().PatchStatus(t.Context(), c.name, patch); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/version", "/api/v1/nodes"} {
		answer, err := s.Client(t).CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/" + c.name + "/proxy" + path).DoRaw(t.Context())
		if err == nil || !strings.Contains(string(answer)+err.Error(), s.NodeIP+":6443 is the API server, not a kubelet") {
			t.Errorf("%s by way of its node: %v\n%s", path, err, answer)
		}
	}
}

// changesSettings: no agent can write all agents' settings; a change by another client in kube-system is reverted.
func changesSettings(t *testing.T, s *harness.Server) {
	c := takeOver(t, s, "settings", "192.0.2.85")
	read := func() (string, error) {
		object, err := c.node.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "kubelith-cluster", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		return object.Data["cluster.json"], nil
	}
	before, err := read()
	if err != nil {
		t.Fatal(err)
	}
	forged := strings.Replace(before, `"network":"vxlan"`, `"network":"bridge"`, 1)
	forge, err := json.Marshal(map[string]any{"data": map[string]string{"cluster.json": forged}})
	if err != nil || forged == before {
		t.Fatalf("%v: nothing to forge in %s", err, before)
	}
	patch := func(cs kubernetes.Interface) error {
		_, err := cs.CoreV1().ConfigMaps("kube-system").Patch(t.Context(), "kubelith-cluster", types.MergePatchType, forge, metav1.PatchOptions{})
		return err
	}
	if err := patch(c.node); !apierrors.IsForbidden(err) {
		t.Errorf("an agent writes it: %v", err)
	}
	if err := patch(s.Client(t)); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 5*time.Second, "the settings to be restored", func() error {
		now, err := read()
		if err == nil && now != before {
			err = fmt.Errorf("they are %s", now)
		}
		return err
	})
}

// machineLabel returns the label with which an agent identifies its machine: the beginning of its key's hash.
func (m *machine) machineLabel(t *testing.T) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(m.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])[:63]
}
