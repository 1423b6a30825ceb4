package memory

import (
	"fmt"
	"io/fs"
	"math"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// limit returns how many bytes of memory this process may use: the machine's memory, GOMEMLIMIT, or the limit of its
// cgroup or one above it, whichever is least. 0 is unknown. root is the root of the file system.
func limit(root fs.FS) uint64 {
	least := uint64(math.MaxInt64)
	text := func(name string) string {
		content, _ := fs.ReadFile(root, name)
		return strings.TrimSpace(string(content))
	}
	var kib uint64
	if _, err := fmt.Sscanf(text("proc/meminfo"), "MemTotal: %d kB", &kib); err == nil {
		least = min(least, kib<<10)
	}
	least = min(least, uint64(debug.SetMemoryLimit(-1))) // returns it and changes nothing
	for line := range strings.Lines(text("proc/self/cgroup")) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3) // cgroups(7)
		if len(fields) != 3 {
			continue
		}
		var tree, file string
		switch fields[1] {
		case "":
			tree, file = "sys/fs/cgroup", "memory.max"
		case "memory":
			tree, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for group := path.Join("/", fields[2]); ; group = path.Dir(group) {
			if limit, err := strconv.ParseUint(text(path.Join(tree, group, file)), 10, 64); err == nil {
				least = min(least, limit)
			}
			if group == "/" {
				break
			}
		}
	}
	if least == math.MaxInt64 {
		return 0
	}
	return least
}
