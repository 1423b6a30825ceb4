// Package patches has the changes of upstream's source that make builds into the executable (scripts/patch.sh). A plain `go build` and
// `make UNPATCHED=1 build` leave upstream as it is. See docs/adr/038-patch-of-the-kubelet.md.
package patches

import (
	"embed"
	"fmt"
	"io/fs"
	"runtime/debug"
	"strings"
)

//go:embed *.patch
var files embed.FS

const upstream = "k8s.io/kubernetes"

// Applied returns a line for each patch in this executable: its name, what it does and the version of upstream that it changes. It is
// empty in a build without patches.
func Applied() []string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	return applied(info, files)
}

// applied is Applied for a given build and directory of patches. A patched build has replaced the module by a directory.
func applied(info *debug.BuildInfo, files fs.FS) []string {
	var lines []string
	for _, dep := range info.Deps {
		if dep.Path != upstream || dep.Replace == nil || dep.Replace.Version != "" && dep.Replace.Version != "(devel)" {
			continue
		}
		names, _ := fs.Glob(files, "*.patch")
		for _, name := range names {
			text, _ := fs.ReadFile(files, name)
			subject, _, _ := strings.Cut(strings.TrimPrefix(string(text), "Subject: "), "\n")
			lines = append(lines, fmt.Sprintf("%s: %s (%s %s)", strings.TrimSuffix(name, ".patch"), subject, upstream, dep.Version))
		}
	}
	return lines
}
