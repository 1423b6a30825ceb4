// Package patches has the changes of upstream's source that make builds into the executable and into the programs that
// it embeds (scripts/patch.sh). A plain `go build` and `make UNPATCHED=1 build` leave upstream as it is. See
// docs/adr/038-patch-of-the-kubelet.md.
package patches

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"runtime/debug"
	"strings"
)

//go:embed */*.patch
var files embed.FS

// Applied returns a line for each patch in this executable: its name, what it does, and module and version of upstream
// that it changes. It is empty in a build without patches. programs are the patched modules of the programs that are
// embedded, "PATH VERSION".
func Applied(programs []string) []string {
	var modules []string
	if info, ok := debug.ReadBuildInfo(); ok {
		modules = replaced(info)
	}
	return applied(append(modules, programs...), files)
}

// replaced returns the modules that a build has replaced by a directory.
func replaced(info *debug.BuildInfo) []string {
	var modules []string
	for _, dep := range info.Deps {
		if dep.Replace != nil && (dep.Replace.Version == "" || dep.Replace.Version == "(devel)") {
			modules = append(modules, dep.Path+" "+dep.Version)
		}
	}
	return modules
}

// applied lists the patches of modules: each has a directory with the last name of its path that is not a major
// version.
func applied(modules []string, files fs.FS) []string {
	var lines []string
	major := regexp.MustCompile(`/v\d+$`)
	for _, module := range modules {
		name, _, _ := strings.Cut(module, " ")
		names, _ := fs.Glob(files, path.Base(major.ReplaceAllString(name, ""))+"/*.patch")
		for _, file := range names {
			text, _ := fs.ReadFile(files, file)
			subject, _, _ := strings.Cut(strings.TrimPrefix(string(text), "Subject: "), "\n")
			lines = append(lines, fmt.Sprintf("%s: %s (%s)", strings.TrimSuffix(path.Base(file), ".patch"), subject, module))
		}
	}
	return lines
}
