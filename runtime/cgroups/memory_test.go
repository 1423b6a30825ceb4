package cgroups

import (
	"os"
	"path/filepath"
	"testing"
)

func TestContainerMemory(t *testing.T) {
	const path, scope = "/kubepods/pod1/c1", "kubepods-burstable-pod1.slice:cri-containerd:c1"
	for name, c := range map[string]struct {
		mode  Mode
		path  string
		files map[string]string
		want  Memory
		err   bool
	}{
		"v1": {V1, path, map[string]string{
			"memory/kubepods/pod1/c1/memory.max_usage_in_bytes": "67108864\n",
			"memory/kubepods/pod1/c1/memory.oom_control":        "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
		}, Memory{Peak: 64 << 20, Kills: 2}, false},
		"v2": {V2, path, map[string]string{
			"kubepods/pod1/c1/memory.peak":   "1048576\n",
			"kubepods/pod1/c1/memory.events": "low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\noom_group_kill 0\n",
		}, Memory{Peak: 1 << 20, Kills: 1}, false},
		"v2 of an old kernel": {V2, path, map[string]string{"kubepods/pod1/c1/memory.events": "oom_kill 1\n"}, Memory{Kills: 1}, false},
		"v2 with systemd": {V2, scope, map[string]string{
			"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-c1.scope/memory.peak":   "7\n",
			"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-c1.scope/memory.events": "oom_kill 0\n",
		}, Memory{Peak: 7}, false},
		"gone":     {V2, path, nil, Memory{}, true},
		"none":     {None, path, nil, Memory{}, true},
		"nonsense": {V2, path, map[string]string{"kubepods/pod1/c1/memory.events": "oom_kill many\n"}, Memory{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			mount := t.TempDir()
			for file, text := range c.files {
				file = filepath.Join(mount, file)
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got, err := containerMemory(mount, c.mode, c.path)
			if (err != nil) != c.err || err == nil && got != c.want {
				t.Errorf("%+v, %v, want %+v", got, err, c.want)
			}
		})
	}
}

func TestPodKills(t *testing.T) {
	mount := t.TempDir()
	slice := filepath.Join(mount, "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice")
	if err := os.MkdirAll(slice, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(slice, "memory.events"), []byte("oom 4\noom_kill 3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const scope = "kubepods-burstable-pod1.slice:cri-containerd:gone"
	if got, err := podKills(mount, V2, scope); err != nil || got != 3 {
		t.Errorf("%d, %v, want 3", got, err)
	}
	if _, err := podKills(mount, V1, scope); err == nil {
		t.Error("v1 does not count what is below")
	}
	if _, err := podKills(mount, V2, "/other/c1"); err == nil {
		t.Error("a pod that is not there has a count")
	}
}
