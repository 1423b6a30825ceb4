package sandbox

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/cgroups"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// kindAnnotation tells sandboxes from containers.
//
// Source: containerd, docs/cri/crictl.md and internal/cri/annotations.
const (
	kindAnnotation = "io.kubernetes.cri.container-type"
	podAnnotation  = "io.kubernetes.cri.sandbox-id"
)

// Bundle is what the shim wants to know of a bundle's OCI configuration.
type Bundle struct {
	Sandbox *specs.Spec   // nil for a container
	Pod     string        // the sandbox's ID; "" outside pods
	OwnPIDs bool          // its first process has its own process namespace
	Mounts  []specs.Mount // of a container
	Cgroup  string        // linux.cgroupsPath
}

// ReadSpec reads the configuration of a bundle. It leaves out the seccomp filter, which is most of the file; a
// sandbox's process brings its own.
func ReadSpec(bundle string) (*Bundle, error) {
	path := filepath.Join(bundle, "config.json")
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var head struct {
		Annotations map[string]string `json:"annotations"`
		Mounts      []specs.Mount     `json:"mounts"`
		Linux       struct {
			Namespaces  []specs.LinuxNamespace `json:"namespaces"`
			CgroupsPath string                 `json:"cgroupsPath"`
		} `json:"linux"`
	}
	if err := json.Unmarshal(content, &head); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	b := &Bundle{OwnPIDs: slices.Contains(head.Linux.Namespaces, specs.LinuxNamespace{Type: specs.PIDNamespace})}
	b.Pod, b.Cgroup = head.Annotations[podAnnotation], head.Linux.CgroupsPath
	if head.Annotations[kindAnnotation] != "sandbox" {
		b.Mounts = head.Mounts
		return b, nil
	}
	// The outer fields hide the embedded ones of the same name.
	var s struct {
		specs.Spec
		Linux *struct {
			specs.Linux
			Seccomp json.RawMessage `json:"seccomp"`
		} `json:"linux"`
	}
	if err := json.Unmarshal(content, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if s.Linux != nil {
		s.Spec.Linux = &s.Linux.Linux
	}
	b.Sandbox = &s.Spec
	return b, nil
}

// crunVersion is a version of the specification that every crun takes.
const crunVersion = "1.0.2"

// ForCrun corrects the version in the bundle of a container that crun starts. Before 1.14.3 it takes only 1.0, and not
// what containerd writes, though it does what the fields say. It then dropped the check: NEWS says that it has no
// value.
func ForCrun(bundle, program string) error {
	if filepath.Base(program) != "crun" {
		return nil
	}
	return setField(bundle, "ociVersion", crunVersion)
}

// volumeFlags are the options of a mount that a pod must not lose.
var volumeFlags = map[string]int64{"nosuid": unix.ST_NOSUID, "nodev": unix.ST_NODEV, "noexec": unix.ST_NOEXEC}

// KeepVolumeFlags gives the mounts of a container the options that their volumes are mounted with, as mountOptions of a
// StorageClass: from 1.2 on, runc clears those that containerd does not name.
//
// Source: runc, libcontainer/rootfs_linux.go, case "bind".
func KeepVolumeFlags(bundle string, mounts []specs.Mount, statfs func(string, *unix.Statfs_t) error) error {
	changed := false
	for i, m := range mounts {
		if !strings.Contains(m.Source, "/volumes/kubernetes.io~csi/") && !strings.Contains(m.Source, "/volume-subpaths/") {
			continue
		}
		var fs unix.Statfs_t
		if err := statfs(m.Source, &fs); err != nil {
			continue // the runtime reports why
		}
		for option, flag := range volumeFlags {
			if fs.Flags&flag != 0 && !slices.Contains(m.Options, option) {
				mounts[i].Options = append(mounts[i].Options, option)
				changed = true
			}
		}
	}
	if !changed {
		return nil
	}
	return setField(bundle, "mounts", mounts)
}

// setField replaces a field of a bundle's configuration, and keeps the others as they are.
func setField(bundle, name string, value any) error {
	path := filepath.Join(bundle, "config.json")
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(content, &fields); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if fields[name], err = json.Marshal(value); err != nil {
		return err
	}
	if content, err = json.Marshal(fields); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o600) // it exists, and keeps its mode
}

// ForRunc returns why a bundle is for runc, or "" if it is of a sandbox that this package starts. What is not known
// here is for runc, so that a new field of the specification is never ignored for a sandbox that has it. Capabilities
// are not checked: the sandbox's process gets none.
func ForRunc(s *specs.Spec) string {
	switch {
	case s.Annotations[kindAnnotation] != "sandbox":
		return "a container"
	case s.Process == nil || s.Linux == nil:
		return "no process"
	case s.Process.Terminal, s.Process.Scheduler != nil, s.Process.IOPriority != nil, s.Process.ExecCPUAffinity != nil:
		return "settings of the process"
	case s.Process.SelinuxLabel != "" || s.Linux.MountLabel != "" || s.Process.ApparmorProfile != "":
		return "a label of a security module"
	case len(s.Process.Rlimits) > 0:
		return "resource limits"
	case s.Hooks != nil:
		return "hooks"
	case len(s.Linux.UIDMappings) > 0 || len(s.Linux.GIDMappings) > 0:
		return "a user namespace"
	case s.Linux.IntelRdt != nil, s.Linux.Personality != nil, s.Linux.MemoryPolicy != nil, len(s.Linux.NetDevices) > 0, len(s.Linux.TimeOffsets) > 0:
		return "settings of Linux"
	case s.Linux.CgroupsPath == "":
		return "no cgroup"
	}
	if r := s.Linux.Resources; r != nil {
		if r.Memory != nil || r.Pids != nil || r.BlockIO != nil || len(r.HugepageLimits) > 0 || r.Network != nil || len(r.Rdma) > 0 || len(r.Unified) > 0 {
			return "resources"
		}
		if c := r.CPU; c != nil && (c.Quota != nil || c.Burst != nil || c.Period != nil || c.RealtimeRuntime != nil ||
			c.RealtimePeriod != nil || c.Cpus != "" || c.Mems != "" || c.Idle != nil) {
			return "resources"
		}
	}
	mounts := false
	for _, n := range s.Linux.Namespaces {
		switch n.Type {
		case specs.MountNamespace:
			mounts = true
		case specs.PIDNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.NetworkNamespace, specs.CgroupNamespace:
		default:
			return "a " + string(n.Type) + " namespace"
		}
		if n.Path != "" && n.Type != specs.NetworkNamespace {
			return "a " + string(n.Type) + " namespace of another process"
		}
	}
	if !mounts {
		return "no mount namespace"
	}
	return ""
}

// namespaceFlags returns the flags of clone(2) for the namespaces that the sandbox gets, and the path of the one
// network namespace that it joins, "" for none.
func namespaceFlags(s *specs.Spec) (flags uintptr, network string) {
	of := map[specs.LinuxNamespaceType]uintptr{
		specs.MountNamespace: unix.CLONE_NEWNS, specs.PIDNamespace: unix.CLONE_NEWPID,
		specs.IPCNamespace: unix.CLONE_NEWIPC, specs.UTSNamespace: unix.CLONE_NEWUTS, specs.NetworkNamespace: unix.CLONE_NEWNET,
	}
	for _, n := range s.Linux.Namespaces {
		if n.Path != "" {
			network = n.Path
		} else {
			flags |= of[n.Type] // of the cgroup: by the process itself, once it is in its cgroup
		}
	}
	return flags, network
}

func has(s *specs.Spec, kind specs.LinuxNamespaceType) bool {
	return slices.ContainsFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == kind })
}

// settings returns what pause.c reads: strings that end with a NUL byte. root is the directory on which it mounts its
// root. A value with a NUL byte is an error.
func settings(s *specs.Spec, root string) ([]byte, error) {
	var b strings.Builder
	var bad error
	set := func(letter byte, value string) {
		if strings.ContainsRune(value, 0) {
			bad = fmt.Errorf("the sandbox's configuration has a NUL byte in %q", value)
		}
		b.WriteByte(letter)
		b.WriteString(value)
		b.WriteByte(0)
	}
	id := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	set('r', root)
	if has(s, specs.CgroupNamespace) {
		set('c', "")
	}
	if s.Hostname != "" && has(s, specs.UTSNamespace) {
		set('h', s.Hostname)
	}
	for name, value := range s.Linux.Sysctl {
		// Source: runc, libcontainer/standard_init_linux.go: every dot is a slash.
		path := filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))
		if !strings.HasPrefix(path, "/proc/sys/") || strings.Contains(path, "=") {
			return nil, fmt.Errorf("%q is not a sysctl", name)
		}
		set('s', path+"="+value)
	}
	set('u', id(s.Process.User.UID))
	set('g', id(s.Process.User.GID))
	for _, g := range s.Process.User.AdditionalGids {
		set('G', id(g))
	}
	return []byte(b.String()), bad
}

// cgroupOf returns the sandbox's cgroup as runc would make it.
//
// Source: runc, libcontainer/specconv: a path, or SLICE:PREFIX:NAME with systemd.
func cgroupOf(s *specs.Spec, systemd bool) (*cgroups.Cgroup, error) {
	c := &cgroups.Cgroup{Systemd: systemd, Resources: &cgroups.Resources{SkipDevices: true}}
	if r := s.Linux.Resources; r != nil && r.CPU != nil && r.CPU.Shares != nil {
		c.Resources.CpuShares = *r.CPU.Shares
		c.Resources.CpuWeight = cgroups.ConvertCPUSharesToCgroupV2Value(c.Resources.CpuShares)
	}
	if !systemd {
		c.Path = filepath.Clean("/" + s.Linux.CgroupsPath)
		return c, nil
	}
	parts := strings.Split(s.Linux.CgroupsPath, ":")
	if len(parts) != 3 {
		return nil, fmt.Errorf("the cgroup %q is not of the form SLICE:PREFIX:NAME", s.Linux.CgroupsPath)
	}
	c.Parent, c.ScopePrefix, c.Name = parts[0], parts[1], parts[2]
	return c, nil
}
