package upgrade

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"aead.dev/minisign"
)

func TestSkew(t *testing.T) {
	program := func(kubernetes string) Program {
		return Program{Release: "v", Kubernetes: kubernetes, Etcd: "v3.7.3"}
	}
	for _, c := range []struct{ from, to, wrong string }{
		{"v1.37.1+kubelith", "v1.37.1+kubelith", ""},
		{"v1.37.1", "v1.37.0", ""},
		{"v1.37.1", "v1.38.4", ""},
		{"v1.37.1", "v1.36.9", "would go back"},
		{"v1.37.1", "v1.39.0", "next minor release first"},
		{"v1.37.1", "v2.0.0", "different major releases"},
	} {
		if err := CheckSkew(program(c.from), program(c.to)); !fits(err, c.wrong) {
			t.Errorf("%s to %s: %v", c.from, c.to, err)
		}
	}
	next := program("v1.37.1")
	next.Etcd = "v3.6.0"
	if err := CheckSkew(program("v1.37.1"), next); !fits(err, "etcd would go back from v3.7.3 to v3.6.0") {
		t.Errorf("etcd: %v", err)
	}
	for _, c := range []struct {
		kubelet  string
		isServer bool
		wrong    string
	}{
		{"v1.37.1", true, ""},
		{"v1.36.0", true, ""},
		{"v1.35.0", true, "upgrade that one first"},
		{"v1.34.0", false, ""},
		{"v1.33.0", false, "not be more than 3 minor releases older"},
		{"?", false, "node n"},
	} {
		if err := CheckNode(program("v1.37.0"), "n", c.kubelet, c.isServer); !fits(err, c.wrong) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if err := CheckAgent(program("v1.38.0"), "https://s:6443", "v1.37.1"); !fits(err, "upgrade all servers first") {
		t.Errorf("an agent before its server: %v", err)
	}
	if err := CheckAgent(program("v1.37.9"), "https://s:6443", "v1.37.1"); err != nil {
		t.Errorf("an agent after its server: %v", err)
	}
}

// fits reports whether an error has a text and one line or, without a text, is none.
func fits(err error, text string) bool {
	if text == "" {
		return err == nil
	}
	return err != nil && strings.Contains(err.Error(), text) && !strings.Contains(err.Error(), "\n")
}

func TestProof(t *testing.T) {
	dir := t.TempDir()
	put := func(name string, content []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	public, private, err := minisign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	another, _, err := minisign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	text := func(k minisign.PublicKey) []byte {
		text, err := k.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	content := bytes.Repeat([]byte("program"), 100_000)
	file := put("file", content)
	signed := minisign.NewReader(bytes.NewReader(content))
	if _, err := io.Copy(io.Discard, signed); err != nil {
		t.Fatal(err)
	}
	signature := put("sig", signed.Sign(private))
	key := put("key", text(public))
	checksum, err := sum(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		file  string
		proof Proof
		wrong string
	}{
		"nothing":       {file, Proof{}, ""},
		"checksum":      {file, Proof{SHA256: strings.ToUpper(checksum)}, ""},
		"signature":     {file, Proof{Signature: signature, PublicKey: key}, ""},
		"both":          {file, Proof{SHA256: checksum, Signature: signature, PublicKey: key}, ""},
		"other sum":     {file, Proof{SHA256: checksum[1:] + "0"}, "its sha256 is " + checksum},
		"other content": {put("file2", append(content, 'x')), Proof{Signature: signature, PublicKey: key}, "is not the file that was signed"},
		"other key":     {file, Proof{Signature: signature, PublicKey: put("key2", text(another))}, "was made with another key"},
		"no key":        {file, Proof{Signature: signature, PublicKey: filepath.Join(dir, "none")}, "give the file with --key"},
		"not a key":     {file, Proof{Signature: signature, PublicKey: signature}, "is not a public key"},
		"no signature":  {file, Proof{Signature: key, PublicKey: key}, "is not a signature"},
		"old format":    {file, Proof{Signature: put("sig2", minisign.Sign(private, content)), PublicKey: key}, "old format"},
	} {
		to := filepath.Join(dir, "staged")
		got, err := c.proof.stage(c.file, to)
		if !fits(err, c.wrong) {
			t.Errorf("%s: error %v", name, err)
		}
		copied, readErr := os.ReadFile(to)
		if c.wrong != "" && !os.IsNotExist(readErr) {
			t.Errorf("%s: the refused file is left", name)
		}
		if c.wrong == "" && (got != checksum || !bytes.Equal(copied, content)) {
			t.Errorf("%s: %s, %d bytes", name, got, len(copied))
		}
	}
}

func TestRecognize(t *testing.T) {
	dir := t.TempDir()
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	other := bytes.Clone(self)
	other[18], other[19] = 0x08, 0 // e_machine: MIPS
	for name, c := range map[string]struct {
		content []byte
		wrong   string
	}{
		"a script":          {[]byte("#!/bin/sh\n"), "is not an executable: give the file of a release"},
		"another program":   {self, "is not an executable of Kubelith"},
		"another processor": {other, "is built for EM_MIPS, and this machine needs "},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, c.content, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := recognize(path); !fits(err, c.wrong) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := recognize(filepath.Join(dir, "none")); !os.IsNotExist(err) {
		t.Errorf("no file: %v", err)
	}
}

// TestServiceFiles reads the services that install.sh installs.
func TestServiceFiles(t *testing.T) {
	for _, name := range []string{"kubelith", "kubelith-agent"} {
		role := "server"
		if name == "kubelith-agent" {
			role = "agent"
		}
		text, err := os.ReadFile("../../scripts/" + name + ".openrc")
		if err != nil {
			t.Fatal(err)
		}
		command, log := initScript(string(text))
		want := []string{"/usr/local/bin/kubelith", role, "--log-file", "/var/log/" + name + ".log"}
		if !slices.Equal(command, want) || log != "/var/log/"+name+".log" {
			t.Errorf("%s: %q, %s", name, command, log)
		}
	}
	const shown = "{ path=/usr/local/bin/kubelith ; argv[]=/usr/local/bin/kubelith server --data-dir /d ; ignore_errors=no ; start_time=[n/a] ; pid=0 ; code=(null) ; status=0/0 }\n"
	if got := execStart(shown); !slices.Equal(got, []string{"/usr/local/bin/kubelith", "server", "--data-dir", "/d"}) {
		t.Errorf("%q", got)
	}
	for _, none := range []string{"", "\n", "{ path=/bin/x ; argv[]=/bin/x ; }", "{ argv[]=x server ; }"} {
		if got := execStart(none); got != nil {
			t.Errorf("%q: %q", none, got)
		}
	}
}

func TestLastError(t *testing.T) {
	for output, want := range map[string]string{
		"": "",
		"2030-01-01T00:00:00.000Z info  component=etcd fine\n":                                           "",
		"2030-01-01T00:00:00.000Z error component=etcd no disk\nx\n":                                     "2030-01-01T00:00:00.000Z error component=etcd no disk",
		"2030-01-01T00:00:00.000Z error component=etcd no disk\nkubelith: etcd: disk full\nRestarting\n": "etcd: disk full",
	} {
		if got := lastError(output); got != want {
			t.Errorf("%q: %q, want %q", output, got, want)
		}
	}
}

// TestSystemd: how systemctl and journalctl are called, and how their output is read.
func TestSystemd(t *testing.T) {
	dir := t.TempDir()
	calls := filepath.Join(dir, "calls")
	for name, script := range map[string]string{
		"systemctl":  `case "$1" in show) printf 'ActiveState=%s\nNRestarts=3\n' "$(cat ` + dir + `/state)" ;; start) [ ! -e ` + dir + `/refuse ] || { echo "Unit is masked."; echo more; exit 1; } ;; esac`,
		"journalctl": `echo kubelith: no disk`,
	} {
		text := "#!/bin/sh\necho " + name + ` "$@" >>` + calls + "\n" + script + "\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	ctx := t.Context()
	s := &systemd{unit: "kubelith.service"}
	for state, want := range map[string]bool{"active": true, "activating": false, "failed": false} {
		if err := os.WriteFile(filepath.Join(dir, "state"), []byte(state), 0o600); err != nil {
			t.Fatal(err)
		}
		if up, ended, err := s.Up(ctx); err != nil || up != want || ended != 3 {
			t.Errorf("%s: %v %d %v", state, up, ended, err)
		}
	}
	if err := os.Remove(calls); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(ctx); err != nil {
		t.Error(err)
	}
	if err := s.Start(ctx); err != nil {
		t.Error(err)
	}
	if got := lastError(s.Output(ctx, time.Unix(1000, 5))); got != "no disk" {
		t.Errorf("last error %q", got)
	}
	const want = "systemctl stop kubelith.service\nsystemctl reset-failed kubelith.service\nsystemctl start --no-block kubelith.service\n" +
		"journalctl --unit=kubelith.service --output=cat --no-pager --lines=500 --since=@1000\n"
	if got, err := os.ReadFile(calls); err != nil || string(got) != want {
		t.Errorf("calls %v\n%s, want\n%s", err, got, want)
	}
	if err := os.WriteFile(filepath.Join(dir, "refuse"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(ctx); !fits(err, "systemctl start kubelith.service: Unit is masked.") {
		t.Errorf("a refused start: %v", err)
	}
}
