package preflight

import (
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/host"
)

const (
	mib = 1 << 20
	// minMemory is what an idle server and a few small pods need.
	minMemory = 700 * mib
	// minDisk is what the first start writes, and some room. Later starts do with less.
	minDisk = 512 * mib
	// minOpenFiles is enough for a full node of 110 pods and the control plane, with their connections and watches.
	minOpenFiles = 16384
	// evictionShare is the kubelet's default threshold nodefs.available, in percent: below it the kubelet evicts pods.
	evictionShare = 10
)

func checkClock(p probe, opts Options) Result {
	if p.now.Before(opts.NotBefore) {
		return Result{"clock", Fail, fmt.Sprintf("the clock says %s, but %s %s",
			p.now.UTC().Format(time.RFC3339), opts.NotBeforeOf, opts.NotBefore.UTC().Format(time.RFC3339)), "set the clock, for example with chronyd or `date -s`"}
	}
	return Result{Name: "clock", Status: OK, Message: p.now.UTC().Format(time.RFC3339)}
}

// checkNodeName checks the name of an object, RFC 1123.
func checkNodeName(name string) Result {
	subdomain := regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	if len(name) > 253 || !subdomain.MatchString(name) {
		return Result{"node name", Fail, fmt.Sprintf("%q must consist of lower-case letters, digits, dashes and dots", name),
			"change the host name, or set --node-name"}
	}
	return Result{Name: "node name", Status: OK, Message: name}
}

// meminfo reads a value of /proc/meminfo in bytes.
func meminfo(files host.Tree, key string) uint64 {
	for _, line := range strings.Split(files.Text("/proc/meminfo"), "\n") {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == key+":" {
			n, _ := strconv.ParseUint(fields[1], 10, 64)
			return n * 1024
		}
	}
	return 0
}

func checkMemory(p probe, needed uint64) Result {
	needed = cmp.Or(needed, minMemory)
	free := meminfo(p.files, "MemAvailable")
	message := fmt.Sprintf("%d of %d MiB available", free/mib, meminfo(p.files, "MemTotal")/mib)
	if free < needed {
		return Result{"memory", Warn, message, fmt.Sprintf("at least %d MiB are recommended", needed/mib)}
	}
	return Result{Name: "memory", Status: OK, Message: message}
}

func checkSwap(p probe) Result {
	if lines := strings.Split(p.files.Text("/proc/swaps"), "\n"); len(lines) > 1 {
		return Result{Name: "swap", Status: OK, Message: "on; pods do not use it"}
	}
	return Result{Name: "swap", Status: OK, Message: "off"}
}

// checkOpenFiles checks the hard limit, to which a Go program raises its own. The service files set one; a shell or
// another service manager may not.
func checkOpenFiles(p probe) Result {
	for line := range strings.Lines(p.files.Text("/proc/self/limits")) {
		rest, is := strings.CutPrefix(line, "Max open files")
		fields := strings.Fields(rest)
		if !is || len(fields) < 2 {
			continue
		}
		message := "at most " + fields[1]
		if n, err := strconv.ParseUint(fields[1], 10, 64); err == nil && n < minOpenFiles {
			return Result{"open files", Warn, message, "raise the hard limit, with `ulimit -Hn 1048576` or in the service's file"}
		}
		return Result{Name: "open files", Status: OK, Message: message}
	}
	return Result{Name: "open files", Status: OK, Message: "limit unknown"}
}

// checkDataDir checks the directory or its nearest existing parent.
func checkDataDir(p probe, opts Options) []Result {
	dir := nearest(p.files, opts.DataDir)
	if err := p.writable(dir); err != nil {
		return []Result{{"data directory", Fail, fmt.Sprintf("cannot write to %s: %v", dir, err), "mount it writable or use another --data-dir"}}
	}
	var st unix.Statfs_t
	if err := p.statfs(dir, &st); err != nil {
		return []Result{{"data directory", Fail, fmt.Sprintf("%s: %v", dir, err), "use another --data-dir"}}
	}
	free, total := st.Bavail*uint64(st.Bsize), st.Blocks*uint64(st.Bsize)
	message := fmt.Sprintf("%s, %d of %d MiB free", dir, free/mib, total/mib)
	space := Result{Name: "data directory", Status: OK, Message: message}
	switch {
	case free < minDisk && hasNode(p.files, opts.DataDir):
		// The kubelet, and users of the API, free space.
		space = Result{"data directory", Warn, message, fmt.Sprintf("free at least %d MiB: the kubelet evicts pods, and etcd may be unable to write", minDisk/mib)}
	case free < minDisk:
		space = Result{"data directory", Fail, message, fmt.Sprintf("free at least %d MiB or use another --data-dir", minDisk/mib)}
	case total > 0 && free*100/total < evictionShare:
		space = Result{"data directory", Warn, message, fmt.Sprintf("free some: below %d %% the kubelet evicts pods", evictionShare)}
	case st.Files > 0 && st.Ffree*100/st.Files < 5:
		space = Result{"data directory", Warn, message + ", but few inodes", "delete files: below 5 % of free inodes the kubelet evicts pods"}
	}
	out := []Result{space}
	if opts.Containers && st.Flags&unix.ST_NOEXEC != 0 {
		out = append(out, Result{"data directory", Fail, dir + " is mounted noexec, and containers' programs run from there",
			"mount it with exec or use another --data-dir"})
	}
	if opts.Containers {
		out = append(out, checkOverlay(p, dir))
	}
	return out
}

// nearest returns the directory or its nearest existing parent.
func nearest(files host.Tree, dir string) string {
	dir = filepath.Clean(dir)
	for !files.Exists(dir) && dir != "/" && dir != "." {
		dir = filepath.Dir(dir)
	}
	return dir
}

// hasNode reports whether a server or an agent has run from the data directory before.
func hasNode(files host.Tree, dataDir string) bool {
	return files.Exists(filepath.Join(dataDir, datadir.Member)) || files.Exists(filepath.Join(dataDir, datadir.Containerd))
}

// checkOverlay: overlayfs stacks image layers; on some file systems that does not work, and containerd copies instead.
func checkOverlay(p probe, dir string) Result {
	has := func() bool { return strings.Contains(p.files.Text("/proc/filesystems")+"\n", "\toverlay\n") }
	if !has() {
		_, _ = p.run("", "modprobe", "overlay") // the file shows whether it helped
	}
	if !has() {
		return Result{"overlayfs", Fail, "the kernel has none", "load it with `modprobe overlay` or use a kernel with CONFIG_OVERLAY_FS"}
	}
	if err := p.isolated(func() error { return p.overlayOn(dir) }); err != nil {
		return Result{"overlayfs", Warn, fmt.Sprintf("does not work on %s (%v), so images are copied for each container", dir, err), "put --data-dir on ext4 or xfs"}
	}
	return Result{Name: "overlayfs", Status: OK, Message: "works on " + dir}
}
