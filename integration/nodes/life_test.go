package nodes

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// testLife takes an agent through its life, on a machine that gets the name of a deleted Node: before it joins, check
// reports whether it can and leaves nothing; it notifies systemd that it has started, even when the server is away; and
// reset removes all of it from its machine, except what users put there. At the end the server is off.
func testLife(t *testing.T, c *harness.Cluster, name, token string) {
	a := c.Prepare(t, harness.Options{NodeName: name, Env: []string{"NOTIFY_SOCKET=/run/notify"}}, harness.AgentOptions{Token: token})
	started := notified(t, a)
	before := traces(t, a)
	args := append([]string{"check"}, a.ServerArgs()...)
	res := a.RunBinary(t, args...)
	if res.Code != 0 || !strings.Contains(res.Stdout, "cluster: found at "+c.Server.URL()) {
		t.Errorf("check agent: exit code %d\n%s%s", res.Code, res.Stdout, res.Stderr)
	}
	if after := traces(t, a); after != before {
		t.Errorf("check left something behind. Before:\n%s\nafter:\n%s", before, after)
	}
	wrong := slices.Clone(args)
	for i := range wrong {
		wrong[i] = strings.Replace(wrong[i], ":6443", ":6444", 1)
	}
	if res := a.RunBinary(t, wrong...); res.Code == 0 || !strings.Contains(res.Stdout, "failed   cluster: the server https://") {
		t.Errorf("check agent with another port: exit code %d\n%s%s", res.Code, res.Stdout, res.Stderr)
	}

	a.Launch(t)
	started("with the server")
	a.WaitReady(t)
	if got := a.Node(t).Status.Addresses[0].Address; got != a.NodeIP {
		t.Errorf("the node has the address %s, not %s", got, a.NodeIP)
	}
	c.Server.Run(t, on(a, web(c.Server.Namespace(t), "web", "web")))

	c.Server.Kill9(t)
	a.Stop(t)
	a.Agent.Token = "" // it has joined
	a.Launch(t)
	started("without the server")

	a.Stop(t)
	if res := a.RunBinary(t, "reset", "--yes", "--data"); res.Code != 0 {
		t.Errorf("reset: exit code %d\n%s%s", res.Code, res.Stdout, res.Stderr)
	}
	// The image was put there by the test, as people do: it stays.
	if left := a.Exec(t, "sh", "-c", "find /var/lib /var/log /run /etc/kubelith -type f -o -type l | grep -v -e /run/kubelith-test-id -e "+harness.TestImageArchive+"; ip -o link | grep -v ' lo:\\| eth0'; nft list ruleset"); strings.TrimSpace(left) != "" {
		t.Errorf("reset left\n%s", left)
	}
}

// notified listens as a service manager; the returned function waits until the agent has notified it of its start.
func notified(t *testing.T, a *harness.Server) (started func(when string)) {
	t.Helper()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: a.Path("/run/notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	return func(when string) {
		t.Helper()
		if err := socket.SetReadDeadline(time.Now().Add(harness.Patience(60 * time.Second))); err != nil {
			t.Fatal(err)
		}
		buffer := make([]byte, 4096)
		for {
			n, err := socket.Read(buffer)
			if err != nil {
				t.Fatalf("%s: no READY=1: %v", when, err)
			}
			if strings.Contains(string(buffer[:n]), "READY=1") {
				return
			}
		}
	}
}
