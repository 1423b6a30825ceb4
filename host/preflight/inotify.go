package preflight

import (
	"fmt"
	"strconv"
	"strings"
)

// The limits of inotify apply to all processes of a user together: this one, including the kubelet's and containerd's
// watches, and root's in pods without user namespaces. The kernel allows 128 instances by default.
const (
	minInotifyInstances = 512
	minInotifyWatches   = 65536
)

// checkInotify: when a limit is reached, no process of that user can watch more files. Kubelith then polls instead;
// pods may not.
func checkInotify(p probe) Result {
	const name = "inotify"
	var low, set []string
	for _, l := range []struct {
		key   string
		least int
	}{{"fs.inotify.max_user_instances", minInotifyInstances}, {"fs.inotify.max_user_watches", minInotifyWatches}} {
		text := p.files.Text("/proc/sys/" + strings.ReplaceAll(l.key, ".", "/"))
		if n, err := strconv.Atoi(strings.TrimSpace(text)); err == nil && n < l.least {
			low = append(low, fmt.Sprintf("%s is %d", l.key, n))
			set = append(set, fmt.Sprintf("%s=%d", l.key, l.least))
		}
	}
	if len(low) > 0 {
		return Result{name, Warn, strings.Join(low, " and ") + ", which a few pods can use up for all processes of root",
			"`sysctl -w " + strings.Join(set, " ") + "`, and the same lines in /etc/sysctl.d/90-kubelith.conf"}
	}
	return Result{Name: name, Status: OK, Message: "limits are high enough"}
}
