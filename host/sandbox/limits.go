package sandbox

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
)

// inotifyInstances is enough for some forty clusters. The kernel's default, 128 for all of root's processes, is enough
// for five: a server has 22, an agent 10.
const inotifyInstances = 1024

// raiseLimits raises the host's limits that all sandboxes share; they stay raised.
var raiseLimits = sync.OnceValue(func() error {
	const name = "/proc/sys/fs/inotify/max_user_instances"
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if now, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || now >= inotifyInstances {
		return err
	}
	if err := os.WriteFile(name, []byte(strconv.Itoa(inotifyInstances)), 0); err != nil {
		return fmt.Errorf("clusters need more inotify instances: set fs.inotify.max_user_instances to %d: %w", inotifyInstances, err)
	}
	return nil
})
