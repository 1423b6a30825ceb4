package kubelith

import (
	"fmt"
	"path"
	"runtime/debug"
	"strings"
)

// moduleVersions returns "name version" for each module, from the build info.
func moduleVersions(modules ...string) []string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	var lines []string
	for _, m := range modules {
		for _, d := range info.Deps {
			if d.Path == m {
				lines = append(lines, fmt.Sprintf("%-10s %s", name(m), d.Version))
			}
		}
	}
	return lines
}

// name returns the last element of a module path that is not a major version.
func name(module string) string {
	n := path.Base(module)
	if len(n) < 4 && strings.HasPrefix(n, "v") {
		n = path.Base(path.Dir(module))
	}
	if n == "server" {
		n = "etcd"
	}
	return n
}
