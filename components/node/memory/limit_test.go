package memory

import (
	"testing"
	"testing/fstest"
)

func TestLimit(t *testing.T) {
	const meminfo = "MemTotal:        2048 kB\nMemFree:         1 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  uint64
	}{
		"nothing known": {nil, 0},
		"a machine":     {map[string]string{"proc/meminfo": meminfo}, 2 << 20},
		"no limit, v2":  {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, 2 << 20},
		"its group, v2": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "1000\n"}, 1000},
		"one above it": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "1000\n", "sys/fs/cgroup/a/memory.max": "900\n"}, 900},
		"in a container": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "800\n"}, 800},
		"v1": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "4:pids:/p\n3:memory:/a\n0::/\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "700\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 700},
	} {
		root := fstest.MapFS{}
		for file, text := range c.files {
			root[file] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := limit(root); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
