package oci

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kubelith.io/kubelith/runtime/cgroups"
)

// crunOfDebian is what crun of Debian 12 prints.
const crunOfDebian = `crun version 1.8.1
commit: f8a096be060b22ccd3d5f3ebe44108517fbf6c30
rundir: /run/crun
spec: 1.0.0
+SYSTEMD +SELINUX +APPARMOR +CAP +SECCOMP +EBPF +YAJL
`

func TestFind(t *testing.T) {
	crun := func(version string) string { return strings.Replace(crunOfDebian, "1.8.1", version, 1) }
	without := func(feature string) string { return strings.Replace(crunOfDebian, feature, "", 1) }
	for name, tc := range map[string]struct {
		runtime, driver, output string
		err                     error
		want                    string // version, or part of the error
	}{
		"Debian 12":              {Crun, cgroups.DriverSystemd, crunOfDebian, nil, "1.8.1"},
		"newer":                  {Crun, cgroups.DriverCgroupfs, crun("1.18.2"), nil, "1.18.2"},
		"between releases":       {Crun, cgroups.DriverCgroupfs, crun("1.14.4.0.0.0.8-e571"), nil, "1.14.4"},
		"two numbers":            {Crun, cgroups.DriverCgroupfs, crun("1.20"), nil, "1.20.0"},
		"patch too old":          {Crun, cgroups.DriverCgroupfs, crun("1.8"), nil, "/bin/crun is version 1.8.0: install 1.8.1 or later"},
		"Ubuntu 22.04":           {Crun, cgroups.DriverCgroupfs, crun("0.17"), nil, "/bin/crun is version 0.17.0: install 1.8.1 or later"},
		"no version":             {Crun, cgroups.DriverCgroupfs, crun("UNKNOWN"), nil, "/bin/crun --version names no version: install crun 1.8.1 or later"},
		"no filter":              {Crun, cgroups.DriverCgroupfs, without("+SECCOMP"), nil, "/bin/crun was built without SECCOMP: install another build"},
		"no capabilities":        {Crun, cgroups.DriverCgroupfs, without("+CAP"), nil, "built without CAP"},
		"no systemd":             {Crun, cgroups.DriverSystemd, without("+SYSTEMD"), nil, "built without SYSTEMD"},
		"systemd not needed":     {Crun, cgroups.DriverCgroupfs, without("+SYSTEMD"), nil, "1.8.1"},
		"youki":                  {Youki, cgroups.DriverSystemd, "youki version: 0.5.7\ncommit: 0.5.7-dcc125df20df4d71a102efebe8497a0e64824645\n", nil, "0.5.7"},
		"youki, other form":      {Youki, cgroups.DriverSystemd, "youki version 0.6.0\ncommit: 0.6.0-0-1\n", nil, "0.6.0"},
		"youki, old":             {Youki, cgroups.DriverSystemd, "youki 0.3.3\n", nil, "/bin/youki is version 0.3.3: install 0.5.7 or later"},
		"another program":        {Youki, cgroups.DriverSystemd, crunOfDebian, nil, "names no version"},
		"says nothing":           {Crun, cgroups.DriverSystemd, "", nil, "names no version"},
		"does not start":         {Crun, cgroups.DriverSystemd, "", errors.New("exit status 127"), "/bin/crun --version fails (exit status 127): install crun 1.8.1 or later"},
		"a number like no other": {Crun, cgroups.DriverSystemd, crun("99999999999999999999.1"), nil, "names no version"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := Host{
				Look:   func(name string) (string, error) { return "/bin/" + name, nil },
				Run:    func(string, ...string) (string, error) { return tc.output, tc.err },
				Driver: tc.driver,
			}.Find(tc.runtime)
			if err != nil {
				if !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
					t.Errorf("error %q, want %q", err, tc.want)
				}
				return
			}
			if want := (Runtime{tc.runtime, "/bin/" + tc.runtime, tc.want}); r != want {
				t.Errorf("found %+v, want %+v", r, want)
			}
		})
	}
}

// TestThis finds programs in PATH, and starts them.
func TestThis(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	on := func() Host {
		h := This(t.Context())
		h.Driver, h.Unified = cgroups.DriverCgroupfs, ""
		return h
	}
	if _, err := on().Find(Crun); !errors.Is(err, ErrMissing) {
		t.Errorf("without crun: %v, want %v", err, ErrMissing)
	}
	program := "#!/bin/sh\n[ \"$*\" = --version ] || exit 1\necho 'a warning' >&2\necho 'crun version 1.8.1\n+CAP +SECCOMP'\n"
	if err := os.WriteFile(filepath.Join(dir, Crun), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	if r, err := on().Find(Crun); err != nil || r.Path != filepath.Join(dir, Crun) {
		t.Errorf("found %+v, %v", r, err)
	}
	hybrid := on()
	hybrid.Unified = "hugetlb"
	if _, err := hybrid.Find(Crun); err == nil || !strings.Contains(err.Error(), "where v2 has controllers (hugetlb): boot with") {
		t.Errorf("on a hybrid host: %v", err)
	}
	t.Setenv("PATH", ".")
	t.Chdir(dir)
	if _, err := on().Find(Crun); !errors.Is(err, exec.ErrDot) {
		t.Errorf("a program of the current directory: %v, want %v", err, exec.ErrDot)
	}
}

func FuzzVersionOf(f *testing.F) {
	f.Add(Crun, crunOfDebian)
	f.Add(Youki, "youki version: 0.5.7")
	f.Fuzz(func(t *testing.T, name, output string) {
		if v, ok := versionOf(name, output); ok && (v[0] < 0 || v[1] < 0 || v[2] < 0) {
			t.Errorf("version %v", v)
		}
	})
}

// What a runtime writes while it prints its version goes to a directory that is removed.
func TestVersionLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "crun")
	script := "#!/bin/sh\nmkdir \"$XDG_RUNTIME_DIR/crun\" && echo \"$XDG_RUNTIME_DIR\"\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	used, err := This(t.Context()).Run(program, "--version")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(strings.TrimSpace(used)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", used, err)
	}
}
