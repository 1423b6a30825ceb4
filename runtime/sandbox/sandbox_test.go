package sandbox

import (
	"os"
	"path/filepath"
	"testing"

	runccgroups "github.com/opencontainers/cgroups"
)

func TestRecord(t *testing.T) {
	dir := t.TempDir()
	if r, err := ReadRecord(dir); r != nil || err != nil {
		t.Errorf("readRecord of a container's bundle = %v, %v, want nothing", r, err)
	}
	want := &Record{PID: 3, StartTime: 4, Cgroup: &runccgroups.Cgroup{Path: "/a"}}
	if err := want.Write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := ReadRecord(dir)
	if err != nil || got.PID != 3 || got.StartTime != 4 || got.Cgroup.Path != "/a" {
		t.Errorf("readRecord = %+v, %v", got, err)
	}
	if pid, err := os.ReadFile(filepath.Join(dir, pidFile)); err != nil || string(pid) != "3" {
		t.Errorf("%s = %s, %v", pidFile, pid, err)
	}
	if err := os.WriteFile(filepath.Join(dir, recordFile), []byte(`{"pid":3}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadRecord(dir); err == nil {
		t.Error("a record without a cgroup is taken")
	}
}

func TestReadSpec(t *testing.T) {
	for name, c := range map[string]struct {
		content          string
		sandbox, ownPIDs bool
		bad              bool
	}{
		"sandbox":      {`{"hostname":"a","annotations":{"io.kubernetes.cri.container-type":"sandbox"},"linux":{"cgroupsPath":"/c","seccomp":{"syscalls":[{}]}}}`, true, false, false},
		"container":    {`{"annotations":{"io.kubernetes.cri.container-type":"container"},"linux":{"namespaces":[{"type":"ipc","path":"/i"},{"type":"pid"}]}}`, false, true, false},
		"of a pod":     {`{"annotations":{"io.kubernetes.cri.container-type":"container"},"linux":{"namespaces":[{"type":"pid","path":"/p"}]}}`, false, false, false},
		"of the host":  {`{"annotations":{"io.kubernetes.cri.container-type":"container"},"linux":{}}`, false, false, false},
		"broken":       {`{"annotations":`, false, false, true},
		"no container": {`{}`, false, false, false},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := ReadSpec(dir)
		if (err != nil) != c.bad {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			continue
		}
		if (b.Sandbox != nil) != c.sandbox || b.OwnPIDs != c.ownPIDs {
			t.Errorf("%s: %+v", name, b)
		}
		if s := b.Sandbox; s != nil && (s.Hostname != "a" || s.Linux == nil || s.Linux.CgroupsPath != "/c" || s.Linux.Seccomp != nil) {
			t.Errorf("%s: %+v, %+v", name, s, s.Linux)
		}
	}
	if _, err := ReadSpec(t.TempDir()); err == nil {
		t.Error("a bundle without a configuration is taken")
	}
}
