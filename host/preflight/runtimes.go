package preflight

import (
	"errors"
	"strings"

	"kubelith.io/kubelith/runtime/oci"
)

// checkRuntimes reports the runtimes of the host that pods can use in addition to the payload's runc.
func checkRuntimes(p probe, opts Options) []Result {
	var out []Result
	for _, name := range oci.OfHost() {
		r, err := p.runtimes.Find(name)
		switch {
		case err == nil:
			out = append(out, Result{Name: name, Status: OK, Message: r.Version + ", " + r.Path})
		case name == opts.DefaultRuntime:
			problem, fix := err.Error(), "install it"
			if i := strings.LastIndex(problem, ": "); i >= 0 { // the error ends with what to do
				problem, fix = problem[:i], problem[i+2:]
			}
			out = append(out, Result{name, Fail, "is the default runtime, but " + problem, fix + ", or set --default-runtime runc"})
		case !errors.Is(err, oci.ErrMissing): // the server runs without it
			out = append(out, Result{Name: name, Status: OK, Message: "not used: " + err.Error()})
		}
	}
	return out
}
