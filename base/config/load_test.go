package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

// loadServer runs Load as a command with these arguments would.
func loadServer(t *testing.T, flags []cli.Flag, args ...string) (*Server, error) {
	t.Helper()
	return run(t, flags, Load, args...)
}

// run runs one of the load functions as a command with these flags and arguments would.
func run[T any](t *testing.T, flags []cli.Flag, load func(*cli.Context) (T, error), args ...string) (T, error) {
	t.Helper()
	var s T
	app := &cli.App{
		Writer: &strings.Builder{}, ErrWriter: &strings.Builder{},
		ExitErrHandler: func(*cli.Context, error) {},
		Commands: []*cli.Command{{Name: "server", Flags: flags, Action: func(c *cli.Context) (err error) {
			s, err = load(c)
			return err
		}}},
	}
	err := app.Run(append([]string{"kubelith", "server"}, args...))
	return s, err
}

func writeFile(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const (
	header      = "apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\n"
	agentHeader = "apiVersion: kubelith.io/v1alpha1\nkind: AgentConfig\n"
)

// asSettings turns a loader of one kind into a loader of settings.
func asSettings[T settings](load func(*cli.Context) (T, error)) func(*cli.Context) (settings, error) {
	return func(c *cli.Context) (settings, error) { return load(c) }
}

// kinds are both commands.
var kinds = map[string]struct {
	header string
	flags  func() []cli.Flag
	load   func(*cli.Context) (settings, error)
	def    func() settings
}{
	"server": {header, Flags, asSettings(Load), func() settings { return Default() }},
	"agent":  {agentHeader, AgentFlags, asSettings(LoadAgent), func() settings { return DefaultAgent() }},
}

// TestFieldsAndFlags proves that every field has a flag, its help and a key, every flag a field, and that a flag
// reaches its own field and no other.
func TestFieldsAndFlags(t *testing.T) {
	for command, k := range kinds {
		t.Run(command, func(t *testing.T) {
			names := map[string]cli.Flag{}
			for _, f := range k.flags() {
				if !slices.Contains([]string{k3sS3, k3sCompress, k3sNoSnapshots}, f.Names()[0]) {
					names[f.Names()[0]] = f
				}
			}
			table := slices.DeleteFunc(fields(k.def()), func(f field) bool { return f.key == "plugins" }) // has no flag
			if len(names) != len(table)+1 || names[configFlag] == nil {
				t.Errorf("%d flags for %d fields and --config", len(names), len(table))
			}
			if n := len(k.def().usages()); n != len(table) {
				t.Errorf("the help of %d flags for %d fields", n, len(table))
			}
			keys, file := map[string]bool{}, writeFile(t, k.header)
			for _, f := range table {
				if f.flag == "" || f.usage == "" || keys[f.name()] {
					t.Errorf("field %d has an incomplete or repeated row: %+v", f.index, f)
					continue
				}
				keys[f.name()] = true
				if names[f.flag] == nil {
					t.Errorf("no flag --%s for %s", f.flag, f.key)
					continue
				}
				value := "7"
				if f.in(k.def()).Kind() == reflect.Bool {
					value = "true"
				}
				s, err := run(t, k.flags(), k.load, "--config="+file, "--"+f.flag+"="+value)
				if err != nil {
					t.Errorf("--%s: %v", f.flag, err)
					continue
				}
				want, err := run(t, k.flags(), k.load, "--config="+file)
				if err != nil {
					t.Fatal(err)
				}
				if reflect.DeepEqual(f.in(s).Interface(), f.in(want).Interface()) {
					t.Errorf("--%s did not change %s", f.flag, f.key)
				}
				f.in(want).Set(f.in(s))
				if !reflect.DeepEqual(s, want) {
					t.Errorf("--%s changed more than %s:\n%+v\n%+v", f.flag, f.key, s, want)
				}
			}
		})
	}
}

// TestFileKeys proves that the file can set every field.
func TestFileKeys(t *testing.T) {
	for command, k := range kinds {
		for _, f := range fields(k.def()) {
			if f.key == "" {
				continue
			}
			value := map[reflect.Kind]string{reflect.String: "/x", reflect.Int: "7", reflect.Bool: "true", reflect.Slice: "[a=b, 'c,d']"}[f.in(k.def()).Kind()]
			if f.key == "plugins" {
				value = "[{name: a}]"
			}
			s := k.def()
			if err := decode("f", []byte(k.header+f.key+": "+value+"\n"), s); err != nil {
				t.Errorf("%s: %s: %v", command, f.key, err)
			}
			if reflect.DeepEqual(s, k.def()) {
				t.Errorf("%s: %s in the file changes nothing", command, f.key)
			}
		}
	}
}

// The token is better not on the command line, where other users of the machine can read it.
func TestTokenFromEnvironment(t *testing.T) {
	t.Setenv("KUBELITH_TOKEN", "from-environment")
	file := writeFile(t, agentHeader+"token: from-file\n")
	a, err := run(t, AgentFlags(), LoadAgent, "--config", file)
	if err != nil || a.Token != "from-environment" {
		t.Errorf("token %q, error %v", a.Token, err)
	}
	if a, err = run(t, AgentFlags(), LoadAgent, "--config", file, "--token=from-flag"); err != nil || a.Token != "from-flag" {
		t.Errorf("token %q, error %v", a.Token, err)
	}
	var help strings.Builder
	app := &cli.App{Name: "x", Flags: AgentFlags(), Writer: &help}
	if err := app.Run([]string{"x", "--help"}); err != nil || strings.Contains(help.String(), "from-environment") || !strings.Contains(help.String(), "KUBELITH_TOKEN") {
		t.Errorf("error %v, help:\n%s", err, help.String())
	}
}

// The keys of the store's account have no place in the file, which is a part of every snapshot, and k3s' flags are
// understood.
func TestS3(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	file := writeFile(t, header+"snapshotS3Bucket: b\nsnapshotS3Insecure: true\n")
	s, err := run(t, Flags(), Load, "--config", file)
	if err != nil || s.SnapshotS3AccessKey != "id" || s.SnapshotS3SecretKey != "secret" || !s.SnapshotS3Insecure {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err = run(t, SnapshotFlags(), Load, "--config", file, "--etcd-s3", "--etcd-s3-endpoint=h:9000", "--etcd-s3-bucket=other", "--etcd-s3-folder=a/b", "--etcd-s3-region=r",
		"--etcd-s3-access-key=k", "--etcd-s3-secret-key=s", "--etcd-s3-session-token=t", "--etcd-s3-endpoint-ca=/ca", "--etcd-s3-skip-ssl-verify", "--etcd-s3-insecure=false",
		"--etcd-s3-bucket-lookup-type=path", "--etcd-s3-timeout=1m", "--etcd-s3-retention=9"); err != nil {
		t.Fatal(err)
	}
	if want := (S3{"h:9000", "other", "a/b", "r", 9, "", "k", "s", "t", "/ca", true, false, "path", "1m"}); s.S3 != want {
		t.Errorf("got %+v, want %+v", s.S3, want)
	}
	if _, err := run(t, Flags(), Load, "--config", writeFile(t, header), "--etcd-s3"); err == nil || !strings.Contains(err.Error(), "--snapshot-s3-bucket") {
		t.Errorf("no bucket: %v", err)
	}
	for _, line := range []string{"snapshotS3SecretKey: s", "snapshot-s3-secret-key: s", `"": s`, `"-": s`, "snapshotS3Insecure: yes please", `snapshotS3Insecure: "true"`} {
		if err := decode("f", []byte(header+line+"\n"), Default()); err == nil {
			t.Errorf("%s is taken", line)
		}
	}
}

// TestK3sSwitches: k3s' switches of snapshots mean the same here, or are refused.
func TestK3sSwitches(t *testing.T) {
	file := writeFile(t, header+"snapshotSchedule: '@daily'\n")
	for want, args := range map[string][]string{
		"@daily":       {"--etcd-snapshot-compress"},
		"@hourly":      {"--etcd-snapshot-schedule-cron=@hourly", "--etcd-disable-snapshots=false"},
		SnapshotsNever: {"--etcd-snapshot-schedule-cron=@hourly", "--etcd-disable-snapshots"},
	} {
		s, err := run(t, Flags(), Load, append([]string{"--config", file}, args...)...)
		if err != nil || s.SnapshotSchedule != want {
			t.Errorf("%q: %+v, %v", args, s, err)
		}
	}
	for command, flags := range map[string]func() []cli.Flag{"server": Flags, "snapshot": SnapshotFlags} {
		s, err := run(t, flags(), Load, "--config", file, "--etcd-snapshot-compress", "--etcd-snapshot-retention=3")
		if err != nil || s.SnapshotRetention != 3 {
			t.Errorf("%s: %+v, %v", command, s, err)
		}
		if _, err := run(t, flags(), Load, "--config", file, "--etcd-snapshot-compress=false"); err == nil || !strings.Contains(err.Error(), "always compressed: leave it out") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: without compression: %v", command, err)
		}
	}
}

// The help of a command names the components that it can disable.
func TestDisableHelp(t *testing.T) {
	for command, k := range kinds {
		for _, f := range k.flags() {
			if f.Names()[0] != "disable" {
				continue
			}
			usage := f.(cli.DocGenerationFlag).GetUsage()
			for _, name := range k.def().disableable() {
				if !strings.Contains(usage, " "+name) {
					t.Errorf("%s: %s is not in %q", command, name, usage)
				}
			}
		}
	}
}

// ctr and reset work on what either command has left, with the directories of its file.
func TestLoadDirs(t *testing.T) {
	server := writeFile(t, header+"runDir: /s\nwriteKubeconfig: /k\n")
	agent := writeFile(t, agentHeader+"runDir: /a\nserver: https://h:1\n")
	for _, tc := range []struct {
		args            []string
		run, kubeconfig string
	}{
		{[]string{"--config", server}, "/s", "/k"},
		{[]string{"--config", agent}, "/a", Default().WriteKubeconfig},
		{[]string{"--config", agent, "--run-dir=/b", "--write-kubeconfig=/l"}, "/b", "/l"},
	} {
		s, err := run(t, DirFlags("writeKubeconfig"), LoadDirs, tc.args...)
		if err != nil || s.RunDir != tc.run || s.WriteKubeconfig != tc.kubeconfig || s.ClusterDomain == "" {
			t.Errorf("%v: %+v, %v", tc.args, s, err)
		}
	}
	for text, want := range map[string]string{
		"apiVersion: kubelith.io/v1alpha1\nkind: Pod\n": `:2: kind "Pod" is not for this command: use "ServerConfig"`,
		agentHeader + "servr: x\n":                      `:3: unknown key "servr": did you mean "server"?`,
	} {
		if _, err := run(t, DirFlags(), LoadDirs, "--config", writeFile(t, text)); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%q: error %v, want %s", text, err, want)
		}
	}
}

func TestPrecedence(t *testing.T) {
	file := writeFile(t, header+`
clusterDomain: file.example
nodeName: from-file
httpsPort: 7443
disable: [dns, proxy]
tlsSAN: [a.example]
kubeletArgs: ["v=2", "feature-gates=A=true,B=false"]
`)
	s, err := loadServer(t, Flags(), "--config", file, "--node-name", "from-flag", "--data-dir", "x",
		"--disable", "kubelet,containerd", "--disable", "network", "--tls-san", "",
		"--apiserver-arg=feature-gates=C=true,D=false", "--apiserver-arg=v=3")
	if err != nil {
		t.Fatal(err)
	}
	cwd, _ := os.Getwd()
	want := Default()
	want.File = file
	want.ClusterDomain = "file.example"
	want.NodeName = "from-flag"
	want.HTTPSPort = 7443
	want.DataDir = filepath.Join(cwd, "x")
	want.Disable = []string{"kubelet", "containerd", "network"}
	want.TLSSAN = nil
	want.KubeletArgs = Args{"v=2", "feature-gates=A=true,B=false"}
	want.APIServerArgs = Args{"feature-gates=C=true,D=false", "v=3"}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("\ngot  %+v\nwant %+v", s, want)
	}
}

func TestLoadDefaults(t *testing.T) {
	s, err := loadServer(t, DirFlags(), "--config", writeFile(t, header), "--run-dir", "/r")
	if err != nil {
		t.Fatal(err)
	}
	if s.RunDir != "/r" || s.DataDir != Default().DataDir || s.NodeName == "" || s.NodeName != strings.ToLower(s.NodeName) {
		t.Errorf("%+v", s)
	}
	if _, err := loadServer(t, Flags(), "--config", "/nonexistent/c.yaml"); err == nil ||
		!strings.Contains(err.Error(), "/nonexistent/c.yaml: file does not exist: name an existing file with --config") {
		t.Errorf("a missing --config: %v", err)
	}
}

func TestStrictFile(t *testing.T) {
	for name, tc := range map[string]struct{ body, want string }{
		"misspelt":          {header + "\n# why\nclusterCidr: [a]\n", `f:5: unknown key "clusterCidr": did you mean "clusterCIDR"?`},
		"flag name":         {header + "node-label: [a]\n", `f:3: unknown key "node-label": did you mean "nodeLabels"?`},
		"nothing near":      {header + "frobnicate: true\n", `f:3: unknown key "frobnicate": remove it`},
		"twice":             {header + "nodeName: a\nnodeName: b\n", `f:4: key "nodeName" is already given in line 3: remove one`},
		"string for list":   {header + "disable: dns\n", `f:3: disable must be a list: write disable: [a, b]`},
		"map in list":       {header + "disable:\n- dns\n- a: b\n", `f:5: an item of disable must be a string`},
		"number in list":    {header + "disable: [1]\n", `f:3: an item of disable must be a string: put 1 in quotes`},
		"number for string": {header + "nodeName: 12\n", `f:3: nodeName must be a string: put 12 in quotes`},
		"list for string":   {header + "nodeName: [a]\n", `f:3: nodeName must be a string`},
		"string for number": {header + "httpsPort: '6443'\n", `f:3: httpsPort must be a whole number, without quotes`},
		"too big":           {header + "httpsPort: 99999999999999999999\n", `f:3: httpsPort must be a whole number, without quotes`},
		"no value":          {header + "nodeName:\n", `f:3: nodeName has no value: give it one or remove the line`},
		"kind":              {"apiVersion: kubelith.io/v1alpha1\nkind: AgentConfig\n", `f:2: kind "AgentConfig" is not for this command: use "ServerConfig"`},
		"version":           {"apiVersion: kubelith.io/v2\nkind: ServerConfig\n", `f:1: apiVersion "kubelith.io/v2" is not known to this kubelith: use "kubelith.io/v1alpha1"`},
		"no kind":           {"apiVersion: kubelith.io/v1alpha1\n", `f: kind is missing: the file must begin with "apiVersion: kubelith.io/v1alpha1" and "kind: ServerConfig"`},
		"empty":             {"# nothing\n", `f: the file is empty: it must begin with`},
		"scalar":            {"hello\n", `f:1: must be settings in the form "key: value"`},
		"two documents":     {header + "---\n" + header, `: a second document: put all settings into one`},
		"syntax":            {header + "nodeName: a: b\n", `f:3: not valid YAML: mapping values are not allowed`},
		"tab":               {header + "\tnodeName: a\n", `not valid YAML`},
		"unknown anchor":    {header + "nodeName: *x\n", `f: not valid YAML: yaml: unknown anchor`},
	} {
		t.Run(name, func(t *testing.T) {
			err := decode("f", []byte(tc.body), Default())
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error %v, want %q", err, tc.want)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
		})
	}
}

// Every wrong key is reported at once, and the others are read.
func TestAllThatIsWrong(t *testing.T) {
	file := writeFile(t, header+`nodeLables: [a=b]
nodeName: one
httpsPort: "6443"
nodeName: two
disable: dns
plugins:
  - {name: a, kind: admission, path: /a, tiemout: 1s, sha256: 5}
  - {name: b, kind: admission, path: /b}
`)
	s, err := loadServer(t, Flags(), "--config", file)
	want := []string{
		file + `:6: key "nodeName" is already given in line 4: remove one`,
		file + `:3: unknown key "nodeLables": did you mean "nodeLabels"?`,
		file + `:5: httpsPort must be a whole number, without quotes`,
		file + `:7: disable must be a list: write disable: [a, b]`,
		file + `:9: unknown key "tiemout" of a plugin: did you mean "timeout"?`,
		file + `:9: sha256 must be a string: put 5 in quotes`,
	}
	if err == nil || err.Error() != strings.Join(want, "\n") {
		t.Errorf("got\n%v\nwant\n%s", err, strings.Join(want, "\n"))
	}
	if s == nil || s.NodeName != "one" || s.HTTPSPort != 6443 || len(s.Plugins) != 1 || s.Plugins[0].Name != "b" {
		t.Errorf("read: %+v", s)
	}
	if s, err := loadServer(t, Flags(), "--config", writeFile(t, agentHeader)); s != nil || err == nil {
		t.Errorf("a file of another kind: %+v, %v", s, err)
	}
}

func TestAnchors(t *testing.T) {
	s := Default()
	if err := decode("f", []byte(header+"nodeName: &n a\nclusterDomain: *n\ntlsSAN: [*n]\n"), s); err != nil {
		t.Fatal(err)
	}
	if s.ClusterDomain != "a" || len(s.TLSSAN) != 1 || s.TLSSAN[0] != "a" {
		t.Errorf("%+v", s)
	}
}

func TestAdminKubeconfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if got := AdminKubeconfig(file); got != Default().WriteKubeconfig {
		t.Errorf("without a file: %s", got)
	}
	for text, want := range map[string]string{
		"apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\nwriteKubeconfig: /k\n":             "/k",
		"apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\nwriteKubeconfig: /k\nmoon: full\n": Default().WriteKubeconfig,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := AdminKubeconfig(file); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// TestNeedsRoot: a control plane alone does not.
func TestNeedsRoot(t *testing.T) {
	for disable, want := range map[string]bool{"": true, "kubelet,containerd": true, "proxy,dns": true, "kubelet,containerd,proxy": false, "kubelet,containerd,proxy,dns": false} {
		s := Default()
		s.Disable = strings.Split(disable, ",")
		if s.NeedsRoot() != want {
			t.Errorf("without %q: %t", disable, s.NeedsRoot())
		}
	}
}
