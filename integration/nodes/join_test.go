package nodes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"kubelith.io/kubelith/integration/harness"
)

const (
	auditLog    = "/var/log/kubelith-audit.log"
	auditPolicy = "/etc/kubelith/audit.yaml"
	// signedFor is how long a certificate lives after it was signed. It begins five minutes before, so that it is
	// rotated, after 70 to 90 % of its life, 15 to 105 s after it was signed.
	signedFor = 150 * time.Second
)

// TestJoin: which machines may join and which may not, and how an agent renews its certificates.
func TestJoin(t *testing.T) {
	t.Parallel()
	c := harness.StartCluster(t, harness.ClusterOptions{Server: harness.Options{
		Args: []string{
			"--controller-manager-arg=cluster-signing-duration=" + signedFor.String(),
			"--apiserver-arg=audit-log-path=" + auditLog,
			"--apiserver-arg=audit-policy-file=" + auditPolicy,
		},
		Prepare: func(s *harness.Server) error {
			if err := os.MkdirAll(s.Path(filepath.Dir(auditPolicy)), 0o755); err != nil {
				return err
			}
			policy := "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n" +
				"- {level: Metadata, verbs: [watch], userGroups: [\"system:nodes\"]}\n- {level: None}\n"
			return os.WriteFile(s.Path(auditPolicy), []byte(policy), 0o600)
		},
	}})
	// The token that the server keeps for a user to copy, as it logs.
	kept, err := os.ReadFile(c.Server.Path(harness.DataDir + "/server/token"))
	if err != nil {
		t.Fatal(err)
	}
	first := c.Prepare(t, harness.Options{}, harness.AgentOptions{Token: strings.TrimSpace(string(kept))})
	first.Launch(t)
	first.WaitReady(t)
	c.Agents = append(c.Agents, first)

	t.Run("first", func(t *testing.T) { testFirst(t, c, first) })
	// Before the other joins: a kubelet that lacks CPU closes its watches.
	t.Run("rotation", func(t *testing.T) { testRotation(t, c, first) })
	t.Run("then", func(t *testing.T) {
		parts := []harness.Part{{Name: "expired", Run: func(t *testing.T) { testExpired(t, c) }}}
		for _, tc := range slices.Concat(refusals(c), refusedServers(t, c), refusedMachines(c)) {
			parts = append(parts, harness.Part{Name: tc.name, Run: func(t *testing.T) {
				tc.token = tc.make(t)
				refused(t, c, tc)
			}})
		}
		together(t, parts...)
	})
	t.Run("removed", func(t *testing.T) { testRemoved(t, c, first) })
}

// testRemoved shuts an agent out that does not know of it, and lets it join again, with a token for one machine that no
// other can use. (integration/join plays one that is not honest.)
func testRemoved(t *testing.T, c *harness.Cluster, a *harness.Server) {
	if res := c.Server.RunBinary(t, "node", "remove", c.Server.NodeName()); res.Code != 1 || !strings.Contains(res.Stderr, " is the only server: a cluster needs one") {
		t.Errorf("the server's own node: exit code %d, %s%s", res.Code, res.Stdout, res.Stderr)
	}
	machine := a.Node(t).Labels["kubelith.io/machine"]
	if res := c.Server.RunBinary(t, "node", "remove", a.NodeName()); res.Code != 0 {
		t.Fatalf("exit code %d, %s", res.Code, res.Stderr)
	}
	harness.Eventually(t, 20*time.Second, "the agent to log it", func() error {
		if !strings.Contains(a.Logs(), "the server refuses this node's certificate: if the node was removed from the cluster, start its agent with a token") {
			return errors.New("its log does not")
		}
		return nil
	})
	if out := c.Server.Kubectl(t, "get", "nodes", "--output=name"); strings.Contains(out, a.NodeName()) {
		t.Errorf("it has registered again: %s", out)
	}
	a.Stop(t)
	a.Agent.Token = c.Server.Token(t, "--once")
	a.Launch(t)
	a.WaitReady(t)
	if now := a.Node(t).Labels["kubelith.io/machine"]; now != machine || machine == "" {
		t.Errorf("it is the machine %q, and was %q", now, machine)
	}
	ns := c.Namespace(t)
	pod := c.Server.Run(t, on(a, harness.Pod(ns, "again", "/bin/probe", "sleep")))
	if got := c.Server.Kubectl(t, "-n", ns, "exec", pod.Name, "--", "echo", "here"); got != "here\n" {
		t.Errorf("exec: %q", got)
	}
	refused(t, c, refusal{token: a.Agent.Token, agent: `is valid for one machine|does not know token`, server: `is valid for one machine|refused token`})
}

// testFirst checks what a join creates, on both sides.
func testFirst(t *testing.T, c *harness.Cluster, a *harness.Server) {
	for n, role := range map[*harness.Server]string{c.Server: "server", a: "agent"} {
		if got := n.Node(t).Labels["kubelith.io/role"]; got != role {
			t.Errorf("node %s has the role %q", n.NodeName(), got)
		}
	}
	// NAME STATUS ROLES: agents have none, as elsewhere.
	for n, want := range map[*harness.Server]string{c.Server: "control-plane", a: "<none>"} {
		if got := strings.Fields(c.Server.Kubectl(t, "get", "node", n.NodeName(), "--no-headers"))[2]; got != want {
			t.Errorf("kubectl get nodes shows %s with the role %q, want %q", n.NodeName(), got, want)
		}
	}
	const here = "kubelith: this machine is an agent, which has no administrator's credentials: use kubectl on the server, or give --kubeconfig\n"
	if res := a.TryExec(t, "env", "HOME=/nonexistent", a.BinaryPath(), "kubectl", "get", "nodes"); res.Code != 1 || res.Stderr != here {
		t.Errorf("kubectl on an agent: exit code %d, %s", res.Code, res.Stderr)
	}
	parts := strings.Split(a.Agent.Token, "_")
	if len(parts) != 4 || parts[0] != "kl1" {
		t.Fatalf("the token is %q", a.Agent.Token)
	}
	if !strings.Contains(c.Server.Logs(), "kubelith agent --server https://"+c.Server.NodeIP+":6443 --token-file token") {
		t.Error("the server has not logged how to join")
	}
	for _, n := range c.Nodes() {
		if strings.Contains(n.Logs(), parts[3]) {
			t.Errorf("the token's secret is in the log of %s", n.NodeName())
		}
	}
	if res := a.TryExec(t, "grep", "-rlF", parts[3], harness.DataDir, harness.RunDir); res.Stdout != "" {
		t.Errorf("the token's secret is in files of the agent:\n%s", res.Stdout)
	}
	info, err := os.Stat(a.Path(harness.DataDir + "/agent/identity.key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the agent's key: %v, %v", info, err)
	}
	// A node may do what nodes may, and no more.
	for verb, want := range map[string]string{"list services": "yes", "list secrets": "no", "create clusterrolebindings": "no", "delete nodes/" + c.Server.NodeName(): "no"} {
		args := append([]string{"auth", "can-i", "--as=system:node:" + a.NodeName(), "--as-group=system:nodes", "--as-group=system:authenticated"}, strings.Fields(verb)...)
		// A no may be followed by the reason.
		if got, _, _ := strings.Cut(strings.TrimSpace(c.Server.TryKubectl(t, args...).Stdout), " "); got != want {
			t.Errorf("may an agent %s? %q", verb, got)
		}
	}
}

// refusal is a join that must fail.
type refusal struct {
	name     string
	make     func(t *testing.T) string // the token
	token    string
	nodeName string
	agent    string                                // regular expression of the line that the agent logs
	server   string                                // the same for the server's log; "" where it cannot know, since the agent sends nothing
	unnamed  bool                                  // the line of the server's log has neither the token's id nor the node's name
	url      string                                // of the server, where it is not its own
	binary   string                                // where it is not the one under test
	spoil    func(t *testing.T, a *harness.Server) // does to the machine what makes the join fail
}

// refusals have a bad token, name or address. TestRefused of components/worker/join has the agent's other errors,
// TestRefusedTokens of integration/join what the server logs about deleted and expired tokens.
func refusals(c *harness.Cluster) []refusal {
	fresh := func(args ...string) func(*testing.T) string {
		return func(t *testing.T) string { return c.Server.Token(t, args...) }
	}
	part := func(i int, change func(string) string) func(*testing.T) string {
		return func(t *testing.T) string {
			parts := strings.Split(c.Server.Token(t), "_")
			parts[i] = change(parts[i])
			return strings.Join(parts, "_")
		}
	}
	other := func(text string) string { // of the same alphabet, and different in each character
		return strings.Map(func(r rune) rune {
			if r == 'a' {
				return 'b'
			}
			return 'a'
		}, text)
	}
	return []refusal{
		{name: "malformed", make: func(*testing.T) string { return "K10abc::server:def" }, agent: `token`},
		{name: "wrong-ca-hash", make: part(1, other), agent: `the server's CA is not the token's`,
			server: `a machine at 10\.123\.\d+\.\d+:\d+ reports that it cannot join: its token is for a cluster with another CA`, unnamed: true},
		{name: "wrong-id", make: part(2, other), agent: `does not know token`, server: `refused token .* does not exist`},
		{name: "wrong-secret", make: part(3, other), agent: `secret of token \S+ is wrong`, server: `refused token .* secret is wrong`},
		{name: "name-of-server", make: fresh(), nodeName: c.Server.NodeName(), agent: `belongs to another machine`, server: `NameTaken`},
		{name: "name-of-agent", make: fresh(), nodeName: c.Agents[0].NodeName(), agent: `belongs to another machine`, server: `NameTaken`},
		{name: "address-of-server", make: fresh(), agent: `address \S+ already belongs to node \S+: set this machine's own with --node-ip`, server: `AddressTaken`,
			spoil: func(t *testing.T, a *harness.Server) { configure(t, a, "nodeIP: ["+c.Server.NodeIP+"]") }},
	}
}

// refused runs an agent that must exit by itself, with the reason in one line. The server must log the same, and
// nothing may remain.
func refused(t *testing.T, c *harness.Cluster, tc refusal) {
	t.Helper()
	a := c.Prepare(t, harness.Options{NoTestImage: true, NodeName: tc.nodeName}, harness.AgentOptions{Token: tc.token, URL: tc.url})
	if tc.spoil != nil {
		tc.spoil(t, a)
	}
	if tc.binary == "" {
		tc.binary = a.BinaryPath()
	}
	before := traces(t, a)
	logged := len(c.Server.Logs())
	res := a.TryExec(t, tc.binary, a.ServerArgs()...)
	if res.Code == 0 {
		t.Errorf("exit code 0")
	}
	if lines := regexp.MustCompile(`(?m)^.*(`+tc.agent+`).*$`).FindAllString(res.Stderr, -1); len(lines) != 1 {
		t.Errorf("%d lines of the agent have %q:\n%s", len(lines), tc.agent, res.Stderr)
	}
	if strings.Contains(res.Stderr, "\ngoroutine ") {
		t.Errorf("the agent ended with a stack:\n%s", res.Stderr)
	}
	if after := traces(t, a); after != before {
		t.Errorf("the failed join left something behind. Before:\n%s\nafter:\n%s", before, after)
	}
	if parts := strings.Split(tc.token, "_"); len(parts) == 4 {
		if strings.Contains(res.Stderr+res.Stdout+c.Server.Logs(), parts[3]) {
			t.Error("the token's secret is in a log")
		}
		if tc.server != "" {
			// The id, or for a taken name the name, identifies the refusal.
			about := parts[2]
			if tc.nodeName != "" {
				about = tc.nodeName
			}
			if tc.unnamed {
				about = ""
			}
			harness.Eventually(t, 10*time.Second, "a line of the server's log", func() error {
				for line := range strings.Lines(c.Server.Logs()[logged:]) {
					if strings.Contains(line, about) && regexp.MustCompile(tc.server).MatchString(line) {
						return nil
					}
				}
				return fmt.Errorf("none has %q and %q", about, tc.server)
			})
		}
	}
	if tc.nodeName == "" {
		noTrace(t, c, a.NodeName())
	}
	if tc.spoil != nil && tc.server == "" {
		unheard(t, c, strings.Split(tc.token, "_")[2])
	}
}

// noTrace: the server has nothing of a machine that it refused.
func noTrace(t *testing.T, c *harness.Cluster, name string) {
	t.Helper()
	client := c.Server.Dynamic(t)
	for resource, group := range map[string]string{"nodes": "", "leases": "coordination.k8s.io", "configmaps": "", "secrets": ""} {
		all, err := client.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatalf("%s: %v", resource, err)
		}
		for _, o := range all.Items {
			if o.GetName() == name || strings.HasSuffix(o.GetName(), "."+name) {
				t.Errorf("%s is among the %s", o.GetName(), resource)
			}
		}
	}
}

// traces is what a join may leave on a machine: files, interfaces, routes, nftables rules, processes.
func traces(t *testing.T, s *harness.Server) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(s.Exec(t, "sh", "-c", `find /var/lib /var/log /run /etc/kubelith /etc/cni /opt -printf '%p %y\n' 2>/dev/null | sort
ip -o link | cut -d: -f2; ip route; nft list ruleset`))
	home := harness.NamespaceOf(t, s.HolderPID(), "mnt")
	entries, err := filepath.Glob("/proc/[0-9]*/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if ns, err := os.Readlink(e); err == nil && ns == home {
			fmt.Fprintln(&b, "process", e)
		}
	}
	return b.String()
}

// testExpired: an expired token goes, and with it the signature without which agents do not know it.
func testExpired(t *testing.T, c *harness.Cluster) {
	id := strings.Split(c.Server.Token(t, "--ttl=20s"), "_")[2]
	client := c.Server.Client(t).CoreV1()
	harness.Eventually(t, time.Minute, "the token and its signature to go", func() error {
		if _, err := client.Secrets(metav1.NamespaceSystem).Get(t.Context(), "bootstrap-token-"+id, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("its Secret: %v", err)
		}
		info, err := client.ConfigMaps(metav1.NamespacePublic).Get(t.Context(), "cluster-info", metav1.GetOptions{})
		if err == nil && info.Data["jws-kubeconfig-"+id] != "" {
			err = errors.New("the signature is there")
		}
		return err
	})
}

// testSameMachine: a machine whose Node was deleted, and which has registered again, may join again under its own name.
func testSameMachine(t *testing.T, c *harness.Cluster, a *harness.Server, token string) {
	a.Stop(t)
	a.Agent.Token = token
	if err := os.RemoveAll(a.Path(harness.DataDir + "/agent/pki")); err != nil { // as when its certificate has expired
		t.Fatal(err)
	}
	again := time.Now()
	a.Launch(t)
	renewed(t, a, again)
	a.WaitReady(t)
}

// remove deletes the node of a machine that is off and waits until its name is free, also for the next sandbox that
// gets it.
func remove(t *testing.T, c *harness.Cluster, name string) {
	t.Helper()
	client := c.Server.Client(t).CoreV1()
	if err := client.Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 30*time.Second, "the name "+name+" to be free", func() error {
		if _, err := client.ConfigMaps(metav1.NamespaceSystem).Get(t.Context(), "kubelith-node."+name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("its reservation: %v", err)
		}
		return nil
	})
}
