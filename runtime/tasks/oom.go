package tasks

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"sync"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup2"
	eventstypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	kcgroups "kubelith.io/kubelith/runtime/cgroups"
)

// outOfMemory hears of containers that run out of memory, from one inotify for all. It is for cgroup v2: systemd
// removes a group with its last process, so that it may be too late to ask at the end. On v1 the group stays until runc
// deletes the container.
//
// Source: https://docs.kernel.org/admin-guide/cgroup-v2.html, memory.events.
type outOfMemory struct {
	fd int

	mu sync.Mutex
	of map[int32]*container // by watch
}

// newOutOfMemory returns nil where nothing is to be heard of.
func newOutOfMemory() *outOfMemory {
	if cgroups.Mode() != cgroups.Unified {
		return nil
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		log.L.WithError(err).Error("a container's OOM kills are noticed only when it ends")
		return nil
	}
	o := &outOfMemory{fd: fd, of: map[int32]*container{}}
	go o.listen(os.NewFile(uintptr(fd), "inotify"))
	return o
}

// add is called when the container's process is in its group.
func (o *outOfMemory) add(c *container) {
	if o == nil {
		return
	}
	group, err := cgroup2.PidGroupPath(c.pid)
	if err != nil {
		return // it has ended
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if watch, err := unix.InotifyAddWatch(o.fd, filepath.Join("/sys/fs/cgroup", group, "memory.events"), unix.IN_MODIFY); err == nil {
		o.of[int32(watch)] = c
		c.watch = int32(watch)
	}
}

// remove is called before the container is deleted: not every kernel ends the watch with the group.
func (o *outOfMemory) remove(c *container) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if c.watch != 0 && o.of[c.watch] == c {
		_, _ = unix.InotifyRmWatch(o.fd, uint32(c.watch))
		delete(o.of, c.watch)
	}
}

func (o *outOfMemory) listen(f *os.File) {
	buffer := make([]byte, 64*unix.SizeofInotifyEvent)
	for {
		n, err := f.Read(buffer)
		if err != nil {
			log.L.WithError(err).Error("read about containers that run out of memory")
			return
		}
		for events := buffer[:n]; len(events) >= unix.SizeofInotifyEvent; {
			watch, mask := int32(binary.NativeEndian.Uint32(events)), binary.NativeEndian.Uint32(events[4:])
			events = events[unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(events[12:])):]
			o.mu.Lock()
			c := o.of[watch]
			if mask&unix.IN_IGNORED != 0 {
				delete(o.of, watch)
			}
			o.mu.Unlock()
			if c != nil {
				c.checkMemory()
			}
		}
	}
}

// checkMemory reports, once, that the kernel has killed a process of the container for want of memory.
func (c *container) checkMemory() {
	if m, err := kcgroups.ContainerMemory(c.record.Cgroup); err == nil && m.Kills > 0 {
		c.outOfMemory()
	}
}

// checkEnd is checkMemory for a container that has ended. If systemd has removed its group already, the pod's group
// knows, which counts for all of its containers.
func (c *container) checkEnd(e exit) {
	if m, err := kcgroups.ContainerMemory(c.record.Cgroup); err == nil {
		if m.Kills > 0 {
			c.outOfMemory()
		}
		return
	}
	if e.status != 128+int(unix.SIGKILL) {
		return
	}
	if kills, err := kcgroups.PodKills(c.record.Cgroup); err == nil && kills > c.pod.kills.Load() {
		c.outOfMemory()
	}
}

func (c *container) outOfMemory() {
	if !c.oom.CompareAndSwap(false, true) {
		return
	}
	if kills, err := kcgroups.PodKills(c.record.Cgroup); err == nil {
		c.pod.kills.Store(kills) // they are accounted for
	}
	c.publish(&eventstypes.TaskOOM{ContainerID: c.ID()})
}

// countKills notes what the pod's group counts when the container is made.
func (c *container) countKills() {
	if kills, err := kcgroups.PodKills(c.record.Cgroup); err == nil {
		c.record.PodKills = kills
	}
}
