package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// openRCRoot names a directory with a Debian that has OpenRC: `make openrc-test` creates one.
const openRCRoot = "KUBELITH_OPENRC_ROOT"

// machine makes the directory in $1 the root of its own mount namespace, with the sandbox's network, cgroups, /run and
// disk, and starts OpenRC there. Overlays cannot hold containerd's layers, so /var/lib is on the sandbox's disk.
const machine = `set -eu
at=/var/lib/openrc
mkdir -p $at/root $at/upper $at/work $at/lib
mount -t overlay overlay -o lowerdir="$1",upperdir=$at/upper,workdir=$at/work $at/root
cd $at/root
mkdir -p root/k
for dir in proc sys dev run; do mount --rbind /$dir $dir; done
mount --bind $at/lib var/lib
mount --bind "$2" root/k
mkdir -p lib/modules; [ ! -d /lib/modules ] || mount --bind /lib/modules lib/modules
cat /etc/resolv.conf >etc/resolv.conf; cat /etc/hosts >etc/hosts; cat /etc/protocols >etc/protocols; hostname >etc/hostname
for name in network cgroups; do # the host has both
	printf '#!/sbin/openrc-run\ndepend() { provide net; }\nstart() { :; }\n' >etc/init.d/$name; chmod 755 etc/init.d/$name
done
mkdir -p old; pivot_root . old; umount -l old; cd /
mount --make-rshared /
echo 'rc_sys="lxc"' >>/etc/rc.conf # it owns neither the kernel's settings nor the clock
for level in sysinit boot default; do openrc $level >&2; done
echo up; exec sleep 100000
`

// TestOpenRC: install.sh, the service and uninstall.sh on a machine whose init system is OpenRC.
func TestOpenRC(t *testing.T) {
	root := os.Getenv(openRCRoot)
	if root == "" {
		t.Skip(openRCRoot + " names no Debian with OpenRC: run make openrc-test")
	}
	s := harness.New(t, harness.Options{NoTestImage: true})
	in := startMachine(t, s, root)
	config := "apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\nkubeletArgs: [cgroup-root=" + s.CgroupRoot() + ", eviction-hard=memory.available<100Mi, image-gc-high-threshold=100]\n"
	write := "cat >/etc/kubelith/config.yaml <<'E'\n" + config + "E\n"
	in("cp /root/k/bin/kubelith /root/kubelith; mkdir -p /etc/kubelith\n" + write + "echo oops: yes >>/etc/kubelith/config.yaml")
	// A server that ends again and again is not waited for.
	if said := in("! READY_WITHIN=3000 timeout 60 sh /root/k/scripts/install.sh /root/kubelith"); !strings.Contains(said, "kubelith did not start: see /var/log/kubelith.log") {
		t.Errorf("with a wrong configuration install.sh printed\n%s", said)
	}
	in(write)
	if said := in("sh /root/k/scripts/install.sh /root/kubelith"); strings.Contains(strings.ToLower(said), "limit") {
		t.Errorf("the service does not get its limits:\n%s", said)
	}
	if levels := in("rc-update show default"); !strings.Contains(levels, "kubelith") {
		t.Errorf("the service does not start at boot:\n%s", levels)
	}
	in("for i in $(seq 300); do ! kubelith kubectl get nodes -o name | grep -q . || break; sleep 0.2; done; kubelith kubectl wait --for=condition=Ready node --all --timeout=120s")
	in("kubelith kubectl apply -f /root/k/manifests/hello.yaml; kubelith kubectl wait --for=condition=Available deployment/hello --timeout=120s")
	in("kubelith kubectl wait --for=condition=Complete job/hello-by-name --timeout=120s; kubelith kubectl delete job hello-by-name; kubelith kubectl wait --for=delete pod -l job-name=hello-by-name --timeout=60s")
	answers := func() {
		t.Helper()
		harness.Eventually(t, time.Minute, "hello to answer", func() error {
			ip := in("kubelith kubectl get service hello -o jsonpath='{.spec.clusterIP}'")
			if out := s.TryExec(t, "curl", "-sS", "--max-time", "5", "http://"+ip+"/"); !strings.Contains(out.Stdout, "Hello from Kubelith") {
				return fmt.Errorf("%s%s", out.Stdout, out.Stderr)
			}
			return nil
		})
	}
	answers()
	containers := func() string { return in("kubelith ctr -n k8s.io tasks ls | sort") }
	// Processes of this machine have its mount namespace; the host may have other clusters.
	processes := func(command string) string {
		return strings.TrimSpace(in("for p in $(pgrep -f '" + command + "'); do [ /proc/$p/ns/mnt -ef /proc/self/ns/mnt ] && [ $p != $$ ] && echo $p; done; true"))
	}
	server := func() string { return processes("^/usr/local/bin/kubelith server") }
	keepers := func() string { return processes("^[^ ]*/kubelith-keeper ") }
	running := containers()

	replaced := func(what, before string) {
		t.Helper()
		harness.Eventually(t, 2*time.Minute, "a ready server after "+what, func() error {
			if got := server(); got == before || got == "" {
				return fmt.Errorf("the process is %q", got)
			}
			if out := in("kubelith kubectl get --raw /readyz 2>&1 || true"); out != "ok" {
				return fmt.Errorf("readyz: %s", out)
			}
			return nil
		})
		if got := containers(); got != running {
			t.Errorf("after %s the containers are\n%swere\n%s", what, got, running)
		}
		answers()
	}
	before := server()
	in("kill -9 " + before)
	replaced("kill -9", before)
	before = server()
	in("rc-service kubelith restart")
	replaced("rc-service restart", before)

	before = server()
	in("printf '#!/bin/sh\\n[ \"$1\" = version ]\\n' >/root/bad; chmod 755 /root/bad; ! READY_WITHIN=15 sh /root/k/scripts/install.sh /root/bad")
	replaced("an upgrade that failed", before)

	before = server()
	// Of the same length: another version of Kubernetes, and a program that is never ready for the one that waits for
	// it.
	in("export LC_ALL=C; sed s/+kubelith/+kubelitH/g /usr/local/bin/kubelith >/root/next; sed s:/readyz:/readyX:g /root/next >/root/never")
	if said := in("kubelith upgrade /root/next"); !strings.Contains(said, "the former program is /usr/local/bin/kubelith.previous") {
		t.Errorf("kubelith upgrade printed\n%s", said)
	}
	replaced("kubelith upgrade", before)
	before = server()
	if said := in("! kubelith upgrade /root/never --within 40s"); !strings.Contains(said, "runs again with its data: it was not ready within 40s") {
		t.Errorf("kubelith upgrade to a program that is never ready printed\n%s", said)
	}
	replaced("an upgrade that went back", before)
	if got := in("kubelith version"); !strings.Contains(got, "+kubelitH") {
		t.Errorf("the program is\n%s", got)
	}

	in("rc-service kubelith stop")
	if left := server(); left != "" {
		t.Errorf("a stop left process %s", left)
	}
	if keepers() == "" {
		t.Error("a stop ended the pods")
	}
	in("rc-service kubelith start")
	replaced("stop and start", "")

	in("openrc shutdown")
	if left := keepers(); left != "" {
		t.Errorf("a shutdown of the machine left keepers %s", left)
	}
	said := strings.TrimSpace(in("openrc default; sh /root/k/scripts/uninstall.sh --yes"))
	if last := said[strings.LastIndexByte(said, '\n')+1:]; !strings.HasPrefix(last, "kept in /var/lib/kubelith: server/snapshots ") { // those of upgrades
		t.Errorf("uninstall.sh ends with %q", last)
	}
	in("rm -r /var/lib/kubelith")
	left := in("ls -d /usr/local/bin/kubelith* /etc/init.d/kubelith* /etc/runlevels/default/kubelith* /var/lib/kubelith /run/kubelith /var/log/kubelith* 2>/dev/null || true")
	if left != "" {
		t.Errorf("uninstall.sh left\n%s", left)
	}
}

// startMachine starts OpenRC in the sandbox and returns a function that runs a shell script there.
func startMachine(t *testing.T, s *harness.Server, root string) func(script string) string {
	t.Helper()
	repository, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	init := s.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", machine, "machine", root, repository)
	out, err := init.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	init.Stderr = os.Stderr
	if err := init.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		init.Process.Kill()
		init.Wait()
	})
	if _, err := fmt.Fscanln(out, new(string)); err != nil {
		t.Fatalf("OpenRC's machine does not start: %v", err)
	}
	in := func(script string) string {
		t.Helper()
		cmd := s.Command("nsenter", fmt.Sprintf("--target=%d", init.Process.Pid), "--mount", "--", "env", "-i",
			"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "sh", "-ec", "cd /\n"+script)
		text, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, text)
		}
		return string(text)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(in("rc-status 2>/dev/null; grep '^kubelith: ' /var/log/kubelith.log; grep -v ' info ' /var/log/kubelith.log | tail -n 40; true"))
		}
	})
	return in
}
