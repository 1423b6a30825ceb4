// Package harness starts real kubelith servers for the integration tests and lets tests inspect the real thing:
// processes, cgroup files, mounts, packets, log lines. It drives the built executable (KUBELITH_BIN, else bin/kubelith
// of this repository) and imports nothing of the product except its sandboxes.
//
// Every server lives in a sandbox (host/sandbox): its own network namespace (joined to the host by a veth pair,
// 10.123.N.1 outside and 10.123.N.2 inside) and its own mount namespace in which /run, /var/lib, /var/log, /etc, /opt
// and /usr/libexec are private, and its own cgroup root. Process ids are shared with the host. So several packages may
// run at once, and nothing on the host changes.
//
// A test that only needs an API, or a node without looking into its server, needs none of that:
//
//	s := harness.StartLibrary(t, cluster.Options{}) // kubelith.io/kubelith/cluster, with Client, Kubectl, Namespace, Run ...
//
// One server for a whole package, the usual case:
//
//	var cluster = harness.NewShared(harness.Options{})
//
//	func TestMain(m *testing.M) { harness.Main(m, cluster) }
//
//	func TestSleeps(t *testing.T) {
//		t.Parallel()
//		s := cluster.Get(t)                      // started and Ready; skips when not root
//		ns := s.Namespace(t)                     // deleted afterwards; dumped when the test fails
//		pod := s.Run(t, harness.Pod(ns, "a", "sleep", "1000")) // created and Running
//		pid := s.ContainerPID(t, pod, "main")    // a process of the host's /proc
//		s.Kubectl(t, "-n", ns, "exec", "a", "--", "true")
//		harness.Eventually(t, 10*time.Second, "something true", func() error { return nil })
//	}
//
// A test's own server (every package still needs TestMain with harness.Main):
//
//	s := harness.Start(t, harness.Options{Args: []string{"--tls-san=example.org"}})
//	took := s.Stop(t)    // SIGTERM and wait
//	s.Launch(t)          // start again on the same data
//	s.WaitReady(t)
//	s.Kill9(t)           // containers stay
//	s.Restart(t)         // Stop, Launch, WaitReady
//
// Several nodes on one Ethernet (a bridge kltbN), each in its own sandbox:
//
//	c := harness.StartCluster(t, harness.ClusterOptions{Agents: 2}) // all Ready
//	c.Server.Run(t, pod)                   // the API's side; an agent's Client, Kubectl ... are its server's
//	c.NodeOf(t, pod).Exec(t, "ip", "route") // the node that a pod runs on
//	c.Agents[0].Isolate(t)                 // pull its cable; Rejoin
//	heal := harness.Partition(t, c.Agents[0], c.Agents[1])
//	c.Server.Kill9(t)                      // the server away
//	a := c.Prepare(t, harness.Options{}, harness.AgentOptions{Token: "kl1_..."}) // not started
//	res := a.RunBinary(t, a.ServerArgs()...) // a join that must fail
//
// Without waiting, or without starting anything:
//
//	s := harness.New(t, harness.Options{})                 // sandbox only
//	os.WriteFile(s.Path("/etc/kubelith/config.yaml"), ...) // a file as the server sees it
//	res := s.RunBinary(t, "server", "--cluster-cidr=bad")  // res.Code, res.Stdout, res.Stderr
//	s.Exec(t, "ip", "addr")                                // any program, in the namespaces
//	s.Launch(t); s.WaitExit(t, 10*time.Second)             // exit code of a server that must fail
//
// Network, from both sides: s.Client(t), s.RESTConfig(t), s.Dynamic(t) talk to https://10.123.N.2:6443 from the test
// process; s.HTTPGet(url) and s.DialContext dial from inside the server's namespace (ClusterIPs, pod IPs, 127.0.0.1);
// s.HostIP is the test process as the server sees it: listen there to be a webhook, a DNS upstream (the sandbox's
// resolv.conf names s.HostIP) or an outside client.
//
// Containers run testimage.Ref, which has busybox's sh, tar, cat ... and the program probe (see
// integration/testimage/probe): http, tcp and udp servers, DNS look-ups, an admission webhook and an aggregated API
// server. The harness puts it into <data-dir>/agent/images/ before each start.
//
// Main fails the run when a server died unexpectedly, when the cache mutation detector found a change, or when
// KUBELITH_REQUIRE_INTEGRATION=1 and the host cannot run the tests. The sandbox's own holder process, or the next run,
// removes what an interrupted run has left. KUBELITH_TEST_DIR (default /var/tmp/kubelith-test) must be on a disk that
// overlayfs can use; KUBELITH_TEST_LOGS names a directory that receives the log of every server. KUBELITH_TEST_IMAGE is
// an archive of the test image, built by integration/testimage/make, for a machine without Go and the sources.
// KUBELITH_TEST_PATIENCE=5 makes waits five times as long (see Patience), for a busy or an emulated machine; make sets
// 4.
package harness
