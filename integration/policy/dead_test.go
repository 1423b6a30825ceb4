package policy

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubelith.io/kubelith/integration/harness"
)

// TestDead: rules stay while the process is dead, and over its next start.
func TestDead(t *testing.T) {
	s := shared(t)
	ns := s.Namespace(t)
	a, b, c := s.Run(t, server(ns, "a")), s.Run(t, server(ns, "b")), s.Run(t, server(ns, "c"))
	inB, inC := s.ContainerPID(t, b, "main"), s.ContainerPID(t, c, "main")
	address := net.JoinHostPort(a.Status.PodIP, "9000")
	policy(t, s, ns, "some", `
podSelector: {matchLabels: {app: a}}
ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]`)
	check(t, "before", probe{"c to a", inC, "tcp", address, false}, probe{"b to a", inB, "tcp", address, true})
	kept, err := harness.DialFrom(t.Context(), inB, "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()

	ctx, stop := context.WithCancel(t.Context())
	type result struct{ through, refused int }
	done := make(chan result, 1)
	go func() {
		var r result
		for ctx.Err() == nil {
			if ask(ctx, inC, "udp", address, patience) == nil {
				r.through++
			}
			// Over UDP: TCP would send a packet again that was dropped.
			if err := ask(ctx, inB, "udp", address, allowance); err != nil && ctx.Err() == nil {
				r.refused++
			}
		}
		done <- r
	}()
	kills := number(t, "POLICY_KILLS", 2)
	for range kills {
		s.Kill9(t)
		if err := exchange(kept, allowance); err != nil {
			t.Errorf("an allowed connection, while the server is dead: %v", err)
		}
		s.Launch(t)
		s.WaitReady(t)
		if err := exchange(kept, allowance); err != nil {
			t.Errorf("an allowed connection, after the next start: %v", err)
		}
	}
	stop()
	if r := <-done; r.through > 0 || r.refused > 0 {
		t.Errorf("over %d kill -9, %d forbidden packets passed and %d allowed connections failed", kills, r.through, r.refused)
	}
	s.Restart(t)
	check(t, "after a restart", probe{"c to a", inC, "tcp", address, false}, probe{"b to a", inB, "tcp", address, true})
}

// TestLeaves: our tables are gone where a third party enforces policies or they are switched off, and all come back.
func TestLeaves(t *testing.T) {
	s := shared(t)
	ns := s.Namespace(t)
	a, b := s.Run(t, server(ns, "a")), s.Run(t, server(ns, "b"))
	inB, address := s.ContainerPID(t, b, "main"), net.JoinHostPort(a.Status.PodIP, "9000")
	policy(t, s, ns, "deny", "podSelector: {}\npolicyTypes: [Ingress]")
	denied, allowed := probe{"b to a", inB, "tcp", address, false}, probe{"b to a", inB, "tcp", address, true}
	check(t, "at first", denied)
	tables(t, s, true)

	// Another program removes one, or all that there are, or its rules.
	for _, command := range [][]string{{"delete", "table", "bridge", "kubelith_policy"}, {"flush", "ruleset"}, {"flush", "table", "inet", "kubelith_policy"}} {
		s.Exec(t, "nft", command...)
		harness.Eventually(t, applies, strings.Join(command, " "), func() error {
			if s.TryExec(t, "nft", "list", "table", "bridge", "kubelith_policy").Code != 0 || table(t, s) == "" {
				return errors.New("the tables are not back")
			}
			return nil
		})
		check(t, strings.Join(command, " "), denied)
	}

	// A third party's network arrives, and goes.
	file := s.Path("/etc/cni/net.d/10-other.conflist")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(`{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "loopback"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	tables(t, s, false)
	check(t, "with a third party's network", allowed)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	tables(t, s, true)
	check(t, "with our own again", denied)

	configure := func(text string) {
		if err := os.WriteFile(s.Path("/etc/kubelith/config.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s.Restart(t)
	}
	t.Cleanup(func() { configure(settings) })
	configure(settings + "disable: [network-policy]\n")
	tables(t, s, false)
	check(t, "with network-policy disabled", allowed)
}
