package process

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubelith.io/kubelith/integration/harness"
)

// systemctl is a service manager for install.sh: a service runs well unless its program is a bad one, which fails again
// and again.
const systemctl = `#!/bin/sh
bad() { grep -q bad /usr/local/bin/kubelith; }
case "$1" in
is-active) ! bad ;;
show) if bad; then echo 9; else echo 0; fi ;;
start) echo "restart $(cat /usr/local/bin/kubelith | tail -n 1)" >>/run/restarts ;;
esac
`

// TestInstall: an upgrade that does not become ready is taken back, the configuration is never lost, and the token goes
// when the machine has joined. uninstall.sh leaves what people have put into /etc/kubelith.
func TestInstall(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{NoTestImage: true})
	for _, dir := range []string{"/usr/local/bin", "/etc/systemd", "/etc/kubelith"} {
		s.Exec(t, "mkdir", "-p", dir)
		s.Exec(t, "mount", "-t", "tmpfs", "tmpfs", dir)
	}
	s.Exec(t, "mkdir", "-p", "/etc/systemd/system", "/run/systemd/system", "/run/programs")
	put := func(path, text string) {
		t.Helper()
		cmd := s.Command("sh", "-c", "cat >"+path+" && chmod 755 "+path)
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", path, err, out)
		}
	}
	put("/usr/local/bin/systemctl", systemctl)
	for _, name := range []string{"one", "bad", "two"} {
		put("/run/programs/"+name, "#!/bin/sh\n# "+name+"\necho "+name+"\n")
	}
	script := func(name string, args ...string) harness.Result {
		t.Helper()
		path, err := filepath.Abs("../../scripts/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return s.TryExec(t, "env", append([]string{"PATH=/usr/local/bin:" + os.Getenv("PATH"), "sh", path}, args...)...)
	}
	install := func(want string, fails bool, args ...string) {
		t.Helper()
		res := script("install.sh", args...)
		if (res.Code != 0) != fails {
			t.Errorf("install.sh %q: exit code %d\n%s%s", args, res.Code, res.Stdout, res.Stderr)
		}
		if got := strings.TrimSpace(s.Exec(t, "/usr/local/bin/kubelith")); got != want {
			t.Errorf("install.sh %q: the program is %q, want %q", args, got, want)
		}
		if fails && strings.Count(res.Stderr, "\n") != 1 {
			t.Errorf("install.sh %q printed\n%s", args, res.Stderr)
		}
	}
	agent := func(program string) []string {
		return []string{"--agent", "--server", "https://192.0.2.1:6443", "--token-file", "/run/token", "/run/programs/" + program}
	}
	put("/run/token", "kl1_x\n")
	witness := []string{"--witness", "--server", "https://192.0.2.1:6443", "--token-file", "/run/token", "/run/programs/one"}
	install("one", false, witness...)
	if got := s.Exec(t, "cat", "/etc/kubelith/config.yaml"); !strings.Contains(got, "\nwitness: true\n") || !strings.Contains(got, "\nserver: https://192.0.2.1:6443\n") {
		t.Errorf("the configuration of a witness is\n%s", got)
	}
	if unit := s.Exec(t, "cat", "/etc/systemd/system/kubelith.service"); !strings.Contains(unit, "/kubelith server") {
		t.Errorf("the unit of a witness is\n%s", unit)
	}
	s.Exec(t, "sh", "-c", "rm -r /usr/local/bin/kubelith* /etc/kubelith/* /etc/systemd/system/* /run/restarts")
	if res := script("install.sh", append([]string{"--agent"}, witness...)...); res.Code == 0 || !strings.Contains(res.Stderr, "--witness is for servers: leave out --agent") {
		t.Errorf("install.sh --agent --witness: %+v", res)
	}
	put("/run/token", "kl1_x\n")
	install("one", false, agent("one")...)
	if res := s.TryExec(t, "cat", "/etc/kubelith/token"); res.Code == 0 {
		t.Error("the token is left on a machine that has joined")
	}
	put("/etc/kubelith/config.yaml", s.Exec(t, "cat", "/etc/kubelith/config.yaml")+"nodeLabels: [a=b]\n")
	install("one", true, agent("bad")...)
	if got := s.Exec(t, "cat", "/run/restarts"); got != "restart echo one\nrestart echo bad\nrestart echo one\n" {
		t.Errorf("restarts:\n%s", got)
	}
	if res := s.TryExec(t, "cat", "/etc/kubelith/token"); res.Code != 0 {
		t.Error("the token is gone, and the machine has not joined with it")
	}
	install("two", false, append([]string{"--node-ip", "192.0.2.5,2001:db8::5"}, agent("two")...)...)
	if now := s.Exec(t, "cat", "/etc/kubelith/config.yaml"); !strings.Contains(now, "\nnodeIP: [\"192.0.2.5\", \"2001:db8::5\"]\n") {
		t.Errorf("the configuration with --node-ip is\n%s", now)
	}

	// A disk that is full, and one that cannot be read.
	before := s.Exec(t, "cat", "/etc/kubelith/config.yaml")
	s.Exec(t, "mkdir", "/etc/kubelith/config.yaml.new")
	install("two", true, agent("two")...)
	s.Exec(t, "rmdir", "/etc/kubelith/config.yaml.new")
	put("/usr/local/bin/grep", "#!/bin/sh\ncase \"$*\" in *server*config.yaml) exit 2 ;; esac\nexec /bin/grep \"$@\"\n")
	install("two", true, agent("two")...)
	s.Exec(t, "rm", "/usr/local/bin/grep", "/etc/kubelith/config.yaml.new")
	if now := s.Exec(t, "cat", "/etc/kubelith/config.yaml"); now != before || !strings.Contains(now, "a=b") || !strings.Contains(now, "server: https://192.0.2.1:6443") {
		t.Errorf("the configuration is now\n%s\nwas\n%s", now, before)
	}

	// A snapshot outlives its cluster; the last line of uninstall.sh names it. This takes the real reset.
	const snapshot = harness.DataDir + "/server/snapshots/upgrade-vm-20261124T070455Z.snapshot"
	s.Exec(t, "mkdir", "-p", harness.DataDir+"/server/db", harness.DataDir+"/server/snapshots")
	s.Exec(t, "sh", "-c", "echo 1 >"+harness.DataDir+"/version; echo snapshot >"+snapshot)
	put("/usr/local/bin/kubelith", "#!/bin/sh\nexec "+s.BinaryPath()+" \"$@\"\n")
	res := script("uninstall.sh", "--yes")
	if res.Code != 0 || !strings.Contains(res.Stdout, "left /etc/kubelith with config.yaml") {
		t.Errorf("uninstall.sh: exit code %d\n%s%s", res.Code, res.Stdout, res.Stderr)
	}
	lines := strings.Split(strings.TrimSpace(res.Stdout), "\n")
	if last := lines[len(lines)-1]; last != "kept in "+harness.DataDir+": server/snapshots (snapshots outlive their cluster, other files are yours): remove "+harness.DataDir+" if you do not need them" {
		t.Errorf("the last line of uninstall.sh is %q", last)
	}
	if left := s.Exec(t, "find", harness.DataDir, "-type", "f"); left != snapshot+"\n" {
		t.Errorf("left in the data directory:\n%s", left)
	}
	if now := s.Exec(t, "cat", "/etc/kubelith/config.yaml"); now != before {
		t.Errorf("the configuration is now\n%s", now)
	}
	if left := s.Exec(t, "ls", "/usr/local/bin"); left != "systemctl\n" {
		t.Errorf("left in /usr/local/bin: %s", left)
	}

	// A further server has a server's configuration, and does not keep the token.
	s.Exec(t, "rm", "/etc/kubelith/config.yaml")
	install("one", false, "--server", "https://192.0.2.1:6443", "--token-file", "/run/token", "/run/programs/one")
	if now := s.Exec(t, "cat", "/etc/kubelith/config.yaml"); !strings.Contains(now, "kind: ServerConfig") || !strings.Contains(now, "server: https://192.0.2.1:6443") || !strings.Contains(now, "tokenFile: /etc/kubelith/token") {
		t.Errorf("the configuration of a further server is\n%s", now)
	}
	if res := s.TryExec(t, "cat", "/etc/kubelith/token"); res.Code == 0 {
		t.Error("the token is left on a server that has joined")
	}
}
