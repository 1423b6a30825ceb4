// Package oci finds the runtimes of the host, crun and youki, that can start containers in place of the payload's runc.
// See docs/adr/040-runtimes-of-the-host.md.
package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"kubelith.io/kubelith/runtime/cgroups"
)

// The runtimes: the names of their programs, of containerd's handlers and of the RuntimeClasses.
const (
	Runc  = "runc" // of the payload
	Crun  = "crun"
	Youki = "youki"
)

// version is major, minor and patch.
type version [3]int

func (v version) String() string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }

// oldest is the version of a runtime from which on it is used.
func oldest(name string) version {
	switch name {
	case Crun:
		return version{1, 8, 1} // earlier ones read the mappings of idmapped mounts the other way round, and leak cgroups
	case Youki:
		return version{0, 5, 7} // earlier ones let a container write to the host's /proc: CVE-2025-62161, CVE-2025-62596
	}
	return version{}
}

// OfHost are the runtimes that a host may have.
func OfHost() []string { return []string{Crun, Youki} }

// All are the runtimes that a node may have.
func All() []string { return append([]string{Runc}, OfHost()...) }

// ErrMissing means that a runtime is not installed.
var ErrMissing = errors.New("not in PATH")

// Runtime is one of the host that can be used.
type Runtime struct{ Name, Path, Version string }

// Host is the access to a host; tests use another one.
type Host struct {
	Look   func(program string) (path string, err error)
	Run    func(path string, args ...string) (output string, err error)
	Driver string // of cgroups
	// Unified are the controllers of the v2 hierarchy where others are of v1.
	Unified string
}

// answerTimeout is how long a program may take to name its version.
const answerTimeout = 5 * time.Second

// This returns the host that the process runs on.
func This(ctx context.Context) Host {
	unified, _ := os.ReadFile("/sys/fs/cgroup/unified/cgroup.controllers") // there is none elsewhere
	return Host{
		Look: exec.LookPath,
		Run: func(path string, args ...string) (string, error) {
			ctx, cancel := context.WithTimeout(ctx, answerTimeout)
			defer cancel()
			// crun creates the directory of its state even to print its version.
			dir, err := os.MkdirTemp("", "kubelith-runtime-")
			if err != nil {
				return "", err
			}
			defer os.RemoveAll(dir)
			cmd := exec.CommandContext(ctx, path, args...)
			cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+dir)
			output, err := cmd.Output()
			return string(output), err
		},
		Driver:  cgroups.DetectCgroupDriver(),
		Unified: strings.TrimSpace(string(unified)),
	}
}

// Find returns a runtime of OfHost. The error says why the host has none that works; it is ErrMissing, or says what to
// do.
func (h Host) Find(name string) (Runtime, error) {
	path, err := h.Look(name)
	if errors.Is(err, exec.ErrNotFound) {
		return Runtime{}, ErrMissing
	}
	if err != nil {
		return Runtime{}, fmt.Errorf("%w: correct PATH or the file", err)
	}
	needed := oldest(name)
	output, err := h.Run(path, "--version")
	if err != nil {
		return Runtime{}, fmt.Errorf("%s --version fails (%w): install %s %s or later", path, err, name, needed)
	}
	v, ok := versionOf(name, output)
	switch {
	case !ok:
		return Runtime{}, fmt.Errorf("%s --version names no version: install %s %s or later", path, name, needed)
	case slices.Compare(v[:], needed[:]) < 0:
		return Runtime{}, fmt.Errorf("%s is version %s: install %s or later", path, v, needed)
	}
	if feature := h.lacking(name, output); feature != "" {
		return Runtime{}, fmt.Errorf("%s was built without %s: install another build", path, feature)
	}
	// Source: crun, src/libcrun/cgroup.c: "cgroups in hybrid mode not supported".
	if name == Crun && h.Unified != "" {
		return Runtime{}, fmt.Errorf("it supports no host with cgroups of v1 and v2 where v2 has controllers (%s): "+
			"boot with systemd.unified_cgroup_hierarchy=1", h.Unified)
	}
	return Runtime{Name: name, Path: path, Version: v.String()}, nil
}

// versionLine is the first line of the output: "crun version 1.8.1", "youki version: 0.5.7", "youki 0.3.3".
var versionLine = regexp.MustCompile(`^(\w+) (?:version:? )?v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?:[-.+~ ].*)?$`)

// versionOf returns the version in the output of --version.
func versionOf(name, output string) (v version, ok bool) {
	line, _, _ := strings.Cut(output, "\n")
	m := versionLine.FindStringSubmatch(strings.TrimSpace(line))
	if m == nil || m[1] != name {
		return v, false
	}
	for i := range v {
		v[i], _ = strconv.Atoi(m[2+i]) // a missing patch is 0
	}
	return v, true
}

// lacking returns what crun was built without and our containers need, as the last line of its output shows
// ("+SYSTEMD +SELINUX +CAP +SECCOMP"). Without seccomp it would start them without their filter, and not report it.
func (h Host) lacking(name, output string) string {
	if name != Crun {
		return ""
	}
	needed := []string{"CAP", "SECCOMP"}
	if h.Driver == cgroups.DriverSystemd {
		needed = append(needed, "SYSTEMD")
	}
	built := strings.Fields(output)
	for _, feature := range needed {
		if !slices.Contains(built, "+"+feature) {
			return feature
		}
	}
	return ""
}
